"""Find causes of failures in engines' words, and list fallbacks: experiments to measure instead of a failed one.

Engines share no classes of errors, and a process that died says nothing: only their messages and logs tell. Each
fallback differs from the failed experiment in one respect, and its result never replaces that experiment's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, WattdockError
from wattdock.inputs import memory_fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.analysis import ExperimentResult
    from wattdock.planning import ExecutionPlan

SEE_LOG = (
    "the runner's log holds its last words; an empty log means that it was killed, by a person or by the kernel's "
    "out-of-memory killer"
)
# What helps against each cause of a failed measurement; other causes have no fallback.
ADVICE = {
    Cause.KV_CACHE: "fewer requests in flight (batch_size) or shorter ones (max_model_len), more room for the cache "
    "(kv_cache_memory_bytes, gpu_memory_utilization), or a split over more GPUs",
    Cause.HOST_MEMORY: "a machine with more memory, fewer replicas or ranks on this one, or a higher "
    "container.memory_gb",
    Cause.GPU_MEMORY: "a split over more GPUs (tensor_parallel_size, tp_plan, device_map), fewer requests in flight "
    "(batch_size), or weights in fewer bits (dtype, quantization)",
    Cause.MEMORY: "the runner's log may say of which memory; fewer requests in flight (batch_size), weights in fewer "
    "bits (dtype), or a split over more GPUs",
    Cause.EXCHANGE: "see `wattdock doctor` for links; NCCL_DEBUG=INFO says more, and "
    "NCCL_P2P_DISABLE=1 goes through the host instead",
    Cause.HANG: "the runner's log says what it did last; if it is only slow, raise the limit: timeouts.heartbeat_s, "
    "timeouts.stall_s, or the engine's own",
    Cause.WORKER: SEE_LOG,
    Cause.RUNNER: SEE_LOG,
}
# Words of engines and libraries, from root causes to consequences; the first match wins. Source: vLLM
# (v1/core/kv_cache_utils.py), torch (allocators, ProcessGroupNCCL), gloo, Python and numpy.
WORDS = {
    Cause.KV_CACHE: "No available memory for the cache blocks|available KV cache memory|KV cache is needed",
    Cause.HOST_MEMORY: "DefaultCPUAllocator|Available memory on node|Cannot allocate memory|for an array with shape|"
    "(?<!OutOf)MemoryError",
    # A guess of the runner's about a killed process stands in brackets.
    Cause.GPU_MEMORY: "OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|Free memory on device|not enough GPU memory|"
    r"(?<!\()out of memory",
    Cause.EXCHANGE: "NCCL error|nccl(System|Internal|Remote|UnhandledCuda)Error|"
    "Watchdog caught collective operation timeout|Gloo connectFullMesh failed",
}
# What a runner logs when it dies of a cause, and never otherwise; upper and lower case differ.
LOGGED = {
    Cause.HOST_MEMORY: "DefaultCPUAllocator|(?<!OutOf)MemoryError",
    Cause.GPU_MEMORY: "CUDA out of memory|torch.OutOfMemoryError",
    Cause.EXCHANGE: "NCCL error|nccl(System|Remote)Error|Watchdog caught collective operation timeout",
}
MEMORY_CAUSES = frozenset({Cause.KV_CACHE, Cause.GPU_MEMORY, Cause.HOST_MEMORY, Cause.MEMORY})
# These say only that a process is gone; the log may say why.
DEATHS = frozenset({Cause.WORKER, Cause.RUNNER})


def cause_of(error: WattdockError, log: str = "", *, oom_kills: int = 0) -> Cause | None:
    """Return what a runner's failure was; None where neither its cause nor the engine's words tell.

    Args:
        log: The runner's last lines.
        oom_kills: Processes that the kernel has killed for lack of memory meanwhile, of the runner's control group or,
            where that is not known, as a container's, of the whole machine.
    """
    if error.cause in MEMORY_CAUSES - {Cause.MEMORY}:
        return error.cause
    said = (cause for cause, words in WORDS.items() if re.search(words, error.what, re.IGNORECASE))
    cause = next(said, error.cause)
    if cause not in DEATHS:
        return cause
    if oom_kills > 0:
        return Cause.HOST_MEMORY
    return next((logged for logged, words in LOGGED.items() if re.search(words, log)), cause)


BATCH_DIVISORS = (2, 4)


@dataclass(frozen=True)
class FallbackStep:
    """One fallback of a failed experiment; `change` is what differs, in words."""

    config: ExperimentConfig
    change: str


def fallback_steps(plan: ExecutionPlan, failed: ExperimentResult) -> tuple[FallbackStep, ...]:
    """Return the fallbacks of an experiment that failed under a plan, in the order in which to measure them."""
    return fallbacks(
        plan.config,
        cause=failed.error.cause if failed.error else None,
        gpus=len(plan.gpus) or plan.config.section.gpus_needed(),
        dtype=failed.environment.runner.engine_args.get("dtype") if failed.environment else None,
        memory_bytes=max((gpu.vram_total_bytes or 0 for gpu in plan.gpus), default=0) or None,
    )


def fallbacks(
    failed: ExperimentConfig,
    *,
    cause: str | None,
    gpus: int,
    dtype: str | None = None,
    memory_bytes: int | None = None,
) -> tuple[FallbackStep, ...]:
    """Return fallbacks in order: other splits over the same GPUs, replicas, fewer requests in flight, fewer bits.

    Args:
        cause: The failure's cause; without advice, such as for a mistake in a setting, there is no fallback.
        gpus: How many GPUs the experiment had; on a CPU as many as its settings would take.
        dtype: The weights' type as loaded; None where nothing was loaded.
        memory_bytes: Memory of the largest GPU; None on a CPU.
    """
    if cause not in ADVICE:
        return ()
    steps = []
    for settings in _changes(failed, cause, gpus, dtype or failed.section.dtype):
        step = _step(failed, settings)
        if step and step.config.experiment_id != failed.experiment_id and _fits(step.config, gpus, memory_bytes):
            steps.append(step)
    return tuple(steps)


def _fits(config: ExperimentConfig, gpus: int, memory_bytes: int | None) -> bool:
    """Whether the model can be split so, and its weights fit as far as their size is known."""
    try:
        memory_fit(config, gpus=gpus, memory_bytes=memory_bytes, weights_only=True)
    except WattdockError:
        return False
    return True


def _changes(failed: ExperimentConfig, cause: str | None, gpus: int, dtype: str) -> Iterator[Mapping[str, Any]]:
    """Yield the settings, by dotted name, that each fallback changes."""
    section, backend = failed.section, failed.backend
    for split in section.other_splits(gpus):
        yield {f"{backend}.{name}": value for name, value in split.items()}
    replicas = section.as_replicas(gpus)
    # A copy on each GPU takes more memory than a part.
    if replicas and cause not in MEMORY_CAUSES:
        yield {f"{backend}.{name}": value for name, value in replicas.items()}
    # Fewer requests in flight save only memory, the lack of which may be why a process died.
    if cause in MEMORY_CAUSES | DEATHS:
        sizes = [failed.workload.batch_size // divisor for divisor in BATCH_DIVISORS]
        yield from ({"workload.batch_size": size} for size in dict.fromkeys(sizes) if size)
    if cause in MEMORY_CAUSES:
        fewer_bits = section.fewer_bits(dtype, random_weights=failed.model.shape is not None)
        yield from ({f"{backend}.{name}": value} for name, value in fewer_bits.items())


def _step(failed: ExperimentConfig, changes: Mapping[str, Any]) -> FallbackStep | None:
    """Return `failed` with changed settings; None where they contradict the others."""
    settings = failed.model_dump(mode="json", exclude={"name", "on_failure"})
    # An engine argument that was not set stays unset.
    settings[failed.backend] = failed.section.model_dump(mode="json", exclude_unset=True)
    for name, value in changes.items():
        section, key = name.split(".")
        settings[section] = {**settings[section], key: value}
    change = ", ".join(f"{name}: {value}" for name, value in changes.items() if value is not None)
    try:
        config = ExperimentConfig.model_validate({**settings, "name": f"{failed.label}, fallback {change}"})
    except ValidationError:
        return None
    return FallbackStep(config, change)
