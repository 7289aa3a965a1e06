"""What the vLLM runner makes of an exception, in its own process or below it; without vLLM."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import ROOT, VLLM_FOLDER

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
    monkeypatch.setenv("PYTHONPATH", f"{VLLM_FOLDER}:{ROOT / 'runners/common'}")
    import wattdock_vllm_processes

    monkeypatch.setenv(wattdock_vllm_processes.PLACE, "")
    return wattdock_vllm_processes


def child_raises(exception: str) -> None:
    """Log an exception in a process below this one, as vLLM's workers do."""
    subprocess.run([sys.executable, "-c", CHILD.format(exception)], check=True, stderr=subprocess.DEVNULL)


class ValidationError(ValueError):
    """As pydantic's."""

    def __init__(self, **mistake: object) -> None:
        super().__init__("1 validation error for CacheConfig\n  For further information visit a page")
        self.mistake = mistake

    def errors(self) -> list[dict[str, object]]:
        """Return the mistakes, as pydantic does."""
        return [self.mistake, {"loc": ("later",), "msg": "Not told"}]


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (
            {"loc": ("cache_dtype",), "msg": "Input should be 'auto' or 'fp8'", "input": "int3"},
            "cache_dtype: Input should be 'auto' or 'fp8', not 'int3'",
        ),
        ({"loc": (), "msg": "Value error, awq needs float16", "input": object()}, "awq needs float16"),
    ],
)
def test_a_value_that_pydantic_refuses_is_told_in_one_line(
    faults: ModuleType, mistake: dict[str, object], line: str
) -> None:
    """With the choices that vLLM's own classes declare, and the value seen; without a page of the internet."""
    fault = faults.fault_of(ValidationError(**mistake))
    assert (fault.message, fault.is_refusal) == (line, True)


def test_a_childs_exception_reaches_the_runner_and_the_lack_of_memory_comes_first(faults: ModuleType) -> None:
    """A worker that lost its neighbour may report first; a report from before a pass is no cause of a later failure."""
    reports = faults.ChildFaults()
    assert reports.cause() is None
    child_raises("RuntimeError('connection closed by ä')")
    assert str(reports.cause()) == "RuntimeError: connection closed by ä"
    since = reports.reported()
    child_raises("RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')")
    assert reports.cause() == reports.cause(since)
    assert reports.cause().is_memory
    assert faults.ChildFaults().cause() is None


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class VLLMClientError(Exception):
    """As vLLM names the base of its refusals; 0.26 had ValueError."""


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (OutOfMemoryError("x"), {"memory"}),
        (MemoryError(), {"memory"}),
        (RuntimeError("std::bad_alloc"), {"memory"}),
        (OSError(12, "Cannot allocate memory"), {"memory", "refusal"}),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), {"memory"}),
        (ValueError("No available memory for the cache blocks. Try increasing"), {"memory", "refusal"}),
        (RuntimeError("Worker failed with error 'CUDA out of memory.', please check the stack trace"), {"memory"}),
        (ValueError("the fp8 KV cache is not supported"), {"refusal"}),
        (VLLMClientError("x"), {"refusal"}),
        (RuntimeError("Cannot find any model weights with `./model`"), {"refusal"}),
        (Exception("WorkerProc initialization failed"), set()),
        # Only vLLM's executor waits for its workers in these words.
        (TimeoutError("RPC call to execute_model timed out."), {"refusal", "silence"}),
        (TimeoutError("timed out"), {"refusal"}),
        (RuntimeError("RPC call to execute_model timed out."), set()),
    ],
)
def test_a_fault_is_known_by_class_and_words(faults: ModuleType, error: Exception, kinds: set[str]) -> None:
    """vLLM has no class of its own for a lack of memory, nor for workers that do not answer."""
    fault = faults.fault_of(error)
    answers = {"memory": fault.is_memory, "refusal": fault.is_refusal, "silence": fault.is_silence}
    assert {kind for kind, is_of_kind in answers.items() if is_of_kind} == kinds
