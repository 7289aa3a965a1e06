"""What a failure was, from the words that engines really say."""

from __future__ import annotations

import pytest

from wattdock.execution.failures import (
    CAUSES,
    EXCHANGE,
    GPU_MEMORY,
    HANG,
    HOST_MEMORY,
    KV_CACHE,
    MEMORY,
    RUNNER,
    WORKER,
    cause_of,
)

# Seen in the tests of the runners, or written in the sources of vLLM (v1/core/kv_cache_utils.py, v1/worker/utils.py)
# and of torch (c10/cuda/CUDACachingAllocator.cpp, ProcessGroupNCCL.cpp).
MESSAGES = {
    "loading failed: vLLM: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (4.1 GiB).": KV_CACHE,
    "loading failed: vLLM: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": KV_CACHE,
    "a pass failed: 4 requests in flight need 16 blocks of KV cache at their full length, and there are 9": KV_CACHE,
    "a pass failed: generating with 64 in flight: CUDA out of memory. Tried to allocate 2.00 GiB.": GPU_MEMORY,
    "loading failed: rank 1: out of memory while loading the model: CUDA out of memory. Tried to allocate": GPU_MEMORY,
    "loading failed: vLLM: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired": GPU_MEMORY,
    "loading failed: the weights take 141.2 GB on each of 1 GPU(s), which have 80.0 GB; split the model": GPU_MEMORY,
    "loading failed: out of memory while loading the model: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: "
    "can't allocate memory": HOST_MEMORY,
    "the runner died during loading: ran out of memory and was killed by the kernel (exit code 137)": HOST_MEMORY,
    "loading failed for lack of memory: vLLM: MemoryError": HOST_MEMORY,
    "loading failed: OSError: [Errno 12] Cannot allocate memory": HOST_MEMORY,
    "loading failed for lack of memory: vLLM: Unable to allocate 8.00 GiB for an array with shape (1, 2)": HOST_MEMORY,
    "loading failed for lack of memory: vLLM: OutOfMemoryError": GPU_MEMORY,
    "a pass failed: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`": GPU_MEMORY,
    "loading failed for lack of memory: TensorRT-LLM: ": MEMORY,
    "loading failed: rank 0: the ranks could not exchange data while loading the model: NCCL error in: …": EXCHANGE,
    "a pass failed: RuntimeError: NCCL error: ncclRemoteError: A call failed possibly due to a network error": EXCHANGE,
    "the runner was silent for too long during a pass; it was stopped (see `timeouts:`)": HANG,
    "the engine produced nothing for 600 s though its runner lives; it was stopped (see timeouts.stall_s)": HANG,
    "a pass failed: RuntimeError: vLLM's workers did not answer within 300 s (VLLM_EXECUTE_MODEL_…)": HANG,
    "a pass failed: rank 1 of 2 (pid 71) died: it was killed by SIGKILL (out of memory?)": WORKER,
    "a pass failed: RuntimeError: a process of vLLM's engine died during the pass": WORKER,
    "the runner died during a pass: killed by SIGKILL (out of memory?)": RUNNER,
    "the runner ended before it answered: exited with code 1": RUNNER,
}


@pytest.mark.parametrize(
    ("message", "cause"), MESSAGES.items(), ids=[f"{cause} {i}" for i, cause in enumerate(MESSAGES.values())]
)
def test_a_failure_is_named_by_its_words_and_has_advice(message: str, cause: str) -> None:
    """A guess of ours about memory, in brackets, is none of the engine's words."""
    classified = cause_of(message)
    assert classified is not None
    assert classified.name == cause
    assert len(classified.advice) > 20


def test_words_that_tell_nothing_name_nothing() -> None:
    """A defect is not called a lack of memory."""
    assert cause_of("loading failed: KeyError: 'rope'; the traceback is in the runner's log", "out of memory") is None


@pytest.mark.parametrize(
    ("log", "oom_kills", "cause"),
    [
        ("", 1, HOST_MEMORY),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", 0, EXCHANGE),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", 0, GPU_MEMORY),
        ("all is well", 0, RUNNER),
    ],
)
def test_a_death_is_explained_by_the_log_or_by_the_kernel(log: str, oom_kills: int, cause: str) -> None:
    """The process itself said nothing."""
    classified = cause_of("the runner died during a pass: exited with code 1", log, oom_kills=oom_kills)
    assert classified is not None
    assert classified.name == cause


def test_every_cause_is_met_here() -> None:
    """None can lose its words unseen."""
    assert {cause.name for cause in CAUSES} == set(MESSAGES.values())
