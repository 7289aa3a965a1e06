"""Classify failures by their messages, and list the experiments to measure instead: a ladder of other settings.

Engines have no common classes of errors, and a process that died says nothing at all: its words decide. Each step of a
ladder differs from the failed experiment in one respect, is an experiment of its own, and never stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import ExperimentConfig
from wattdock.errors import WattdockError
from wattdock.inputs import memory_fit
from wattdock.runner import LACKS_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.checks import ExecutionPlan

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


# Failures of processes, memory and links between GPUs; a mistake in a setting is none of them.
ELIGIBLE = frozenset(cause.name for cause in CAUSES)
# Fewer requests in flight, or fewer bits, take memory only.
HELPED_BY_LESS = MEMORY_CAUSES | DEATHS
DIVISORS = (2, 4)


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        config: The experiment to measure instead.
        change: What is different in it.
    """

    config: ExperimentConfig
    change: str


def fallback_steps(plan: ExecutionPlan, failed: ExperimentResult) -> tuple[Step, ...]:
    """Return the ladder of an experiment that failed under a plan."""
    return ladder(
        plan.config,
        cause=(failed.error and failed.error.cause) or "",
        gpus=len(plan.gpus) or plan.config.section.gpus_needed(),
        dtype=failed.environment.runner.engine_args.get("dtype") if failed.environment else None,
        memory_bytes=max((gpu.vram_total_bytes or 0 for gpu in plan.gpus), default=0) or None,
    )


def ladder(
    asked: ExperimentConfig, *, cause: str, gpus: int, dtype: str | None = None, memory_bytes: int | None = None
) -> tuple[Step, ...]:
    """Return the steps in order: other splits over the same GPUs, replicas, fewer requests in flight, fewer bits.

    Args:
        cause: Why the experiment failed, by its name in `CAUSES`.
        gpus: How many GPUs it had; on a CPU as many as its settings would take.
        dtype: The weights' type as loaded; None where nothing was loaded.
        memory_bytes: Memory of the largest GPU; None on a CPU.
    """
    if cause not in ELIGIBLE:
        return ()
    steps = []
    for settings in _changes(asked, cause, gpus, dtype or asked.section.dtype):
        step = _step(asked, settings)
        if step and step.config.experiment_id != asked.experiment_id and _is_possible(step.config, gpus, memory_bytes):
            steps.append(step)
    return tuple(steps)


def _is_possible(config: ExperimentConfig, gpus: int, memory_bytes: int | None) -> bool:
    """Whether the model can be split so, and its weights fit as far as their size is known."""
    try:
        memory_fit(config, gpus=gpus, memory_bytes=memory_bytes, weights_only=True)
    except WattdockError:
        return False
    return True


def describe_ladder(asked: ExperimentConfig, failed: ExperimentResult, steps: Sequence[Step]) -> str:
    """Return the ladder in words."""
    why = (failed.error and (failed.error.cause or failed.error.kind)) or "failed"
    listed = "; ".join(f"{number}. {step.change}" for number, step in enumerate(steps, 1))
    return f"{asked.label}: {why}; " + (f"measured instead, until one works: {listed}" if steps else "no fallback")


def _changes(asked: ExperimentConfig, cause: str, gpus: int, dtype: str) -> Iterator[Mapping[str, Any]]:
    """Yield settings, dotted, of each step."""
    section, backend = asked.section, asked.backend
    for split in section.other_splits(gpus):
        yield {f"{backend}.{name}": value for name, value in split.items()}
    replicas = section.as_replicas(gpus)
    # A copy on each GPU takes more memory than a part.
    if replicas and cause not in MEMORY_CAUSES:
        yield {f"{backend}.{name}": value for name, value in replicas.items()}
    if cause in HELPED_BY_LESS:
        sizes = [asked.workload.batch_size // divisor for divisor in DIVISORS]
        yield from ({"workload.batch_size": size} for size in dict.fromkeys(sizes) if size)
    if cause in MEMORY_CAUSES:
        fewer = section.fewer_bits(dtype, random_weights=asked.model.shape is not None)
        yield from ({f"{backend}.{name}": value} for name, value in fewer.items())


def _step(asked: ExperimentConfig, settings: Mapping[str, Any]) -> Step | None:
    """Return `asked` with other settings; None where they contradict its others."""
    given = asked.model_dump(mode="json", exclude={"name", "on_failure"})
    # What was left to the engine stays so.
    given[asked.backend] = asked.section.model_dump(mode="json", exclude_unset=True)
    for name, value in settings.items():
        place, key = name.split(".")
        given[place] = {**given[place], key: value}
    change = ", ".join(f"{name}: {value}" for name, value in settings.items() if value is not None)
    try:
        config = ExperimentConfig.model_validate({**given, "name": f"{asked.label}, fallback {change}"})
    except ValidationError:
        return None
    return Step(config, change)
