"""What a failure was, from the words that engines really say."""

from __future__ import annotations

import pytest
from seams.execution import ADVICE, WORDS, cause_of

from wattdock.errors import Cause, LaunchError, RunnerError
from wattdock_runner import errors

# Seen in the tests of the runners, or written in the sources of vLLM (v1/core/kv_cache_utils.py, v1/worker/utils.py)
# and of torch (c10/cuda/CUDACachingAllocator.cpp, ProcessGroupNCCL.cpp).
MESSAGES = {
    "loading failed: vLLM: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (4.1 GiB).": Cause.KV_CACHE,
    "loading failed: vLLM: No available memory for the cache blocks.": Cause.KV_CACHE,
    "a pass failed: generating with 64 in flight: CUDA out of memory. Tried to allocate 2.00 GiB.": Cause.GPU_MEMORY,
    "loading failed: rank 1: CUDA out of memory. Tried to allocate": Cause.GPU_MEMORY,
    "loading failed: vLLM: Free memory on device cuda:0 (3.1/139.8 GiB) is less than": Cause.GPU_MEMORY,
    "loading failed: out of memory while loading the model: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: "
    "can't allocate memory": Cause.HOST_MEMORY,
    "loading failed for lack of memory: vLLM: MemoryError": Cause.HOST_MEMORY,
    "loading failed: OSError: [Errno 12] Cannot allocate memory": Cause.HOST_MEMORY,
    "loading failed: vLLM: Unable to allocate 8.00 GiB for an array with shape (1, 2)": Cause.HOST_MEMORY,
    "loading failed for lack of memory: vLLM: OutOfMemoryError": Cause.GPU_MEMORY,
    "a pass failed: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED": Cause.GPU_MEMORY,
    "loading failed: rank 0: the ranks could not exchange data: NCCL error in: …": Cause.EXCHANGE,
    "a pass failed: RuntimeError: NCCL error: ncclRemoteError: A call failed": Cause.EXCHANGE,
    "loading failed: Error 803: system has unsupported display driver / cuda driver combination": Cause.NO_DRIVER,
    "no container could be started: nvidia-container-cli: initialization error: nvml error: driver/library version "
    "mismatch: unknown": Cause.NO_DRIVER,
    "a pass failed: CUDA error: uncorrectable ECC error encountered": Cause.GPU_LOST,
    "a pass failed: NVMLError: Failed to initialize NVML: Unknown Error": Cause.GPU_LOST,
}


@pytest.mark.parametrize(
    ("message", "cause"), MESSAGES.items(), ids=[f"{cause} {i}" for i, cause in enumerate(MESSAGES.values())]
)
def test_an_engine_s_words_name_the_cause(message: str, cause: Cause) -> None:
    """Whether its runner knew that memory ran out, or not."""
    assert cause_of(RunnerError(message)) == cause == cause_of(RunnerError(message, cause=Cause.MEMORY))


def test_a_cause_that_is_known_is_not_guessed_from_words() -> None:
    """A limit of the container's is no lack of the GPU's memory; a guess of ours, in brackets, is nobody's word."""
    killed = RunnerError("the runner died: ran out of memory", cause=Cause.HOST_MEMORY)
    assert cause_of(killed) == Cause.HOST_MEMORY
    assert cause_of(RunnerError("killed by SIGKILL (out of memory?)", cause=Cause.WORKER)) == Cause.WORKER
    assert cause_of(RunnerError("the pass took longer", cause=Cause.HANG)) == Cause.HANG
    assert cause_of(LaunchError("no such version", cause=Cause.VERSION)) == Cause.VERSION


def test_an_engine_s_root_cause_comes_before_what_follows_from_it() -> None:
    """Processes die of a broken link."""
    error = RunnerError("a process died; first reported: NCCL error: ncclRemoteError", cause=Cause.WORKER)
    assert cause_of(error) == Cause.EXCHANGE


def test_words_that_tell_nothing_name_nothing() -> None:
    """A defect is not called a lack of memory."""
    error = RunnerError("loading failed: KeyError: 'rope'; the traceback is in the runner's log")
    assert cause_of(error, "out of memory") is None


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", Cause.EXCHANGE),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", Cause.GPU_MEMORY),
        ("all is well", Cause.RUNNER),
    ],
)
def test_a_death_is_explained_by_the_log(log: str, cause: Cause) -> None:
    """The process itself said nothing."""
    assert cause_of(RunnerError("exited with code 1", cause=Cause.RUNNER), log) == cause


def test_every_cause_is_met_here_and_has_advice() -> None:
    """None can lose its words unseen; the runner's names of causes are the coordinator's."""
    assert set(WORDS) == set(MESSAGES.values())
    assert all(len(advice) > 20 for advice in ADVICE.values())
    kinds = (errors.OutOfMemory, errors.CacheTooSmall, errors.WorkerDied, errors.ExchangeFailed)
    sent = {errors.HOST_MEMORY, errors.GPU_MEMORY, errors.HANG, errors.WORKER, *(kind.cause for kind in kinds)}
    assert {*map(Cause, sent), Cause.RUNNER, Cause.COMMAND, Cause.NO_DRIVER, Cause.GPU_LOST} == set(ADVICE)
