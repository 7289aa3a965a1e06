"""Tell from what a failed runner said what it was, and what helps. Pure but for one counter of the kernel's.

Engines have no common classes for these, and an engine's process that died says nothing at all: its words decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattdock.runner import LACKS_MEMORY

VMSTAT = Path("/proc/vmstat")
KV_CACHE, GPU_MEMORY, HOST_MEMORY = "KV cache too small", "out of GPU memory", "out of host memory"
MEMORY = "out of memory"
EXCHANGE, HANG, WORKER, RUNNER = "GPUs cannot exchange data", "hang", "worker died", "runner died"
MEMORY_CAUSES = frozenset({KV_CACHE, GPU_MEMORY, HOST_MEMORY, MEMORY})


@dataclass(frozen=True)
class Cause:
    """One kind of failure.

    Attributes:
        words: Any of these in a message tells it, in either case.
        advice: What helps against it.
    """

    name: str
    words: tuple[str, ...]
    advice: str


# In the order in which they are looked for: what follows from another stands behind it.
CAUSES = (
    Cause(
        KV_CACHE,
        (
            # Ours, then those of vLLM's v1/core/kv_cache_utils.py.
            "blocks of KV cache",
            "KV cache could not hold",
            "No available memory for the cache blocks",
            "available KV cache memory",
            "KV cache is needed",
        ),
        "fewer requests in flight (batch_size) or shorter ones (max_model_len), more room for the cache "
        "(kv_cache_memory_bytes, gpu_memory_utilization), or a split over more GPUs",
    ),
    Cause(
        HOST_MEMORY,
        (
            "DefaultCPUAllocator",
            "host memory is used up",
            "Available memory on node",
            "ran out of memory and was killed by the kernel",
            # Python's, the C library's and numpy's; torch's OutOfMemoryError is of a GPU.
            " MemoryError",
            "Cannot allocate memory",
            "for an array with shape",
            "ArrayMemoryError",
        ),
        "a machine with more memory, fewer replicas or ranks on this one, or a higher container.memory_gb",
    ),
    Cause(
        GPU_MEMORY,
        (
            "out of memory while",
            "CUDA out of memory",
            "CUDA error: out of memory",
            "OutOfMemoryError",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "Free memory on device",
            "not enough GPU memory",
            "GB on each of",
            "does not fit in",
            "out of memory",
        ),
        "a split over more GPUs (tensor_parallel_size, tp_plan, device_map), fewer requests in flight (batch_size), or "
        "weights in fewer bits (dtype, quantization)",
    ),
    Cause(
        MEMORY,
        (LACKS_MEMORY,),
        "the runner's log may say of which memory; fewer requests in flight (batch_size), weights in fewer bits "
        "(dtype), or a split over more GPUs",
    ),
    Cause(
        EXCHANGE,
        # Ours, then those of torch's ProcessGroupNCCL and of gloo.
        (
            "could not exchange data",
            "NCCL error",
            "ncclSystemError",
            "ncclInternalError",
            "ncclRemoteError",
            "ncclUnhandledCudaError",
            "Watchdog caught collective operation timeout",
            "Gloo connectFullMesh failed",
        ),
        "see `wattdock doctor` for links and peer access; NCCL_DEBUG=INFO says more, and NCCL_P2P_DISABLE=1 goes "
        "through the host instead",
    ),
    Cause(
        HANG,
        (
            "was silent for too long",
            "produced nothing for",
            "did not answer a request",
            "workers did not answer within",
        ),
        "the runner's log says what it did last; where it only is slow, raise the limit: timeouts.heartbeat_s, "
        "timeouts.stall_s, or the engine's own",
    ),
    Cause(
        WORKER,
        (") died: it ", ") stopped answering", "a process of vLLM's engine", "a process of TensorRT-LLM's engine died"),
        "the runner's log holds its last words; killed without any, it was by somebody or for lack of host memory",
    ),
    Cause(
        RUNNER,
        ("the runner died", "the runner ended before it answered"),
        "the runner's log holds its last words; killed without any, it was by somebody or for lack of host memory",
    ),
)
# What we add to a death by SIGKILL.
OUR_GUESS = "(out of memory?)"
# These say only that something is gone; why may stand in the log.
DEATHS = frozenset({WORKER, RUNNER})
# A log may speak of memory that was free in the end; of these nobody speaks without need.
TOLD_BY_LOGS = (EXCHANGE, GPU_MEMORY, HOST_MEMORY)
LOG_WORDS = {
    EXCHANGE: ("Watchdog caught collective operation timeout", "NCCL error", "ncclSystemError", "ncclRemoteError"),
    GPU_MEMORY: ("CUDA out of memory", "torch.OutOfMemoryError"),
    HOST_MEMORY: ("DefaultCPUAllocator", "MemoryError"),
}


def cause_of(message: str, log: str = "", *, oom_kills: int = 0) -> Cause | None:
    """Return what a failure was; None where its words do not tell.

    Args:
        message: What the coordinator says of it.
        log: The runner's last lines.
        oom_kills: Processes of this host that the kernel has killed for lack of memory meanwhile.
    """
    said = message.replace(OUR_GUESS, "").lower()
    found = next((cause for cause in CAUSES if any(words.lower() in said for words in cause.words)), None)
    if found is None or found.name not in DEATHS:
        return found
    if oom_kills > 0:
        return by_name(HOST_MEMORY)
    told = next((name for name in TOLD_BY_LOGS if any(words in log for words in LOG_WORDS[name])), None)
    return by_name(told) if told else found


def by_name(name: str) -> Cause:
    """Return the cause of that name."""
    return next(cause for cause in CAUSES if cause.name == name)


def oom_kills() -> int:
    """Return how many processes this kernel has killed for lack of memory since it was started; 0 where it hides it.

    Source: `oom_kill` in /proc/vmstat, which counts memory limits of groups too.
    """
    if not VMSTAT.is_file():
        return 0
    fields = (line.split() for line in VMSTAT.read_text(encoding="ascii").splitlines())
    return next((int(value) for name, value in fields if name == "oom_kill"), 0)
