"""What the vLLM runner makes of an exception, in its own process or below it; without vLLM."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_FOLDER

if TYPE_CHECKING:
    from types import ModuleType

CHILD = """
import logging
from wattdock_vllm_processes import report_to_parent
report_to_parent()
log = logging.getLogger("vllm.v1.executor")
log.error("no exception")
try:
    raise {}
except Exception:
    log.exception("WorkerProc failed to start.")
"""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, which imports no vLLM; children find it and the file they report to."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    monkeypatch.setenv("PYTHONPATH", str(VLLM_FOLDER))
    import wattdock_vllm_processes

    monkeypatch.setenv(wattdock_vllm_processes.PLACE, "")
    return wattdock_vllm_processes


def child_raises(exception: str) -> None:
    """Log an exception in a process below this one, as vLLM's workers do."""
    subprocess.run([sys.executable, "-c", CHILD.format(exception)], check=True, stderr=subprocess.DEVNULL)


def test_a_childs_exception_reaches_the_runner_and_the_lack_of_memory_comes_first(faults: ModuleType) -> None:
    """A worker that lost its neighbour may be the first to speak; later engines do not inherit it."""
    reports = faults.ChildFaults()
    assert reports.cause() is None
    child_raises("RuntimeError('connection closed by peer')")
    assert str(reports.cause()) == "RuntimeError: connection closed by peer"
    child_raises("RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')")
    assert reports.cause().message == "CUDA out of memory. Tried to allocate 2 GiB"
    assert faults.ChildFaults().cause() is None


def test_what_was_reported_before_a_pass_is_no_cause_of_what_fails_in_it(faults: ModuleType) -> None:
    """Whoever logs an exception may have handled it, as one that tries a size and takes a smaller one."""
    reports = faults.ChildFaults()
    child_raises("RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')")
    since = reports.reported()
    assert reports.cause(since) is None
    child_raises("AssertionError('blocks of ä')")
    assert str(reports.cause(since)) == "AssertionError: blocks of ä"
    assert reports.cause().is_memory


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class VLLMClientError(Exception):
    """As vLLM names the base of its refusals; 0.26 had ValueError."""


@pytest.mark.parametrize(
    ("error", "is_memory", "is_refusal"),
    [
        (OutOfMemoryError("x"), True, False),
        (MemoryError(), True, False),
        (OSError(12, "Cannot allocate memory"), True, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, False),
        (ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"), True, True),
        (RuntimeError("Worker failed with error 'CUDA out of memory.', please check the stack trace"), True, False),
        (ValueError("the fp8 KV cache is not supported"), False, True),
        (VLLMClientError("x"), False, True),
        (RuntimeError("Cannot find any model weights with `./model`"), False, True),
        (Exception("WorkerProc initialization failed"), False, False),
    ],
)
def test_a_fault_is_told_by_class_and_words(
    faults: ModuleType, error: Exception, is_memory: bool, is_refusal: bool
) -> None:
    """vLLM has no class of its own for a lack of memory."""
    fault = faults.fault_of(error)
    assert (fault.is_memory, fault.is_refusal) == (is_memory, is_refusal)


@pytest.mark.parametrize(
    ("error", "is_silence"),
    [
        (TimeoutError("RPC call to execute_model timed out."), True),
        (TimeoutError("timed out"), False),
        (RuntimeError("RPC call to execute_model timed out."), False),
    ],
)
def test_workers_that_do_not_answer_are_told_from_other_limits(
    faults: ModuleType, error: Exception, is_silence: bool
) -> None:
    """Only vLLM's executor waits for its workers in these words."""
    assert faults.fault_of(error).is_silence == is_silence
