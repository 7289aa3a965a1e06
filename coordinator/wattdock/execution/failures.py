"""Classify failures by their messages, and list the fallbacks: experiments to measure instead of a failed one.

Engines share no classes of errors, and a process that died says nothing: the words of messages and logs decide. Each
fallback differs from the failed experiment in one respect, and its result never replaces that experiment's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import ExperimentConfig
from wattdock.errors import WattdockError
from wattdock.inputs import memory_fit
from wattdock.runner import OUT_OF_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.analysis import ExperimentResult
    from wattdock.checks import ExecutionPlan

KV_CACHE, GPU_MEMORY, HOST_MEMORY = "KV cache too small", "out of GPU memory", "out of host memory"
MEMORY = "out of memory"
EXCHANGE, HANG, WORKER, RUNNER = "GPUs cannot exchange data", "hang", "worker died", "runner died"


@dataclass(frozen=True)
class Cause:
    """One kind of failure.

    Attributes:
        message: Pattern of error messages, upper or lower case.
        log: Pattern of what a runner logs when it dies of this cause, and never otherwise; None where nothing is.
    """

    name: str
    advice: str
    message: str
    log: str | None = None


SEE_LOG = (
    "the runner's log holds its last words; an empty log means that it was killed, by a person or by the kernel's "
    "out-of-memory killer"
)
# Ordered from root causes to consequences; the first match wins. The words are wattdock's, vLLM's
# (v1/core/kv_cache_utils.py), torch's (allocators, ProcessGroupNCCL), gloo's, Python's and numpy's.
CAUSES = (
    Cause(
        KV_CACHE,
        "fewer requests in flight (batch_size) or shorter ones (max_model_len), more room for the cache "
        "(kv_cache_memory_bytes, gpu_memory_utilization), or a split over more GPUs",
        "blocks of KV cache|KV cache could not hold|No available memory for the cache blocks|"
        "available KV cache memory|KV cache is needed",
    ),
    Cause(
        HOST_MEMORY,
        "a machine with more memory, fewer replicas or ranks on this one, or a higher container.memory_gb",
        "DefaultCPUAllocator|host memory is used up|Available memory on node|killed by the kernel|"
        "Cannot allocate memory|for an array with shape|(?<!OutOf)MemoryError",
        log="DefaultCPUAllocator|(?<!OutOf)MemoryError",
    ),
    Cause(
        GPU_MEMORY,
        "a split over more GPUs (tensor_parallel_size, tp_plan, device_map), fewer requests in flight (batch_size), or "
        "weights in fewer bits (dtype, quantization)",
        "OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|Free memory on device|not enough GPU memory|GB on each of|"
        r"does not fit in|(?<!\()out of memory",
        log="CUDA out of memory|torch.OutOfMemoryError",
    ),
    Cause(
        MEMORY,
        "the runner's log may say of which memory; fewer requests in flight (batch_size), weights in fewer bits "
        "(dtype), or a split over more GPUs",
        OUT_OF_MEMORY,
    ),
    Cause(
        EXCHANGE,
        "see `wattdock doctor` for links and peer access; NCCL_DEBUG=INFO says more, and NCCL_P2P_DISABLE=1 goes "
        "through the host instead",
        "could not exchange data|NCCL error|nccl(System|Internal|Remote|UnhandledCuda)Error|"
        "Watchdog caught collective operation timeout|Gloo connectFullMesh failed",
        log="NCCL error|nccl(System|Remote)Error|Watchdog caught collective operation timeout",
    ),
    Cause(
        HANG,
        "the runner's log says what it did last; if it is only slow, raise the limit: timeouts.heartbeat_s, "
        "timeouts.stall_s, or the engine's own",
        "was silent for too long|produced nothing for|did not answer a request|workers did not answer within",
    ),
    Cause(
        WORKER,
        SEE_LOG,
        r"\) died: it |\) stopped answering|a process of vLLM's engine|the engine's server is gone"
        "|a process of TensorRT-LLM's engine died",
    ),
    Cause(RUNNER, SEE_LOG, "the runner died|the runner ended before it answered"),
)
MEMORY_CAUSES = frozenset({KV_CACHE, GPU_MEMORY, HOST_MEMORY, MEMORY})
# These say only that a process is gone; the log may say why.
DEATHS = frozenset({WORKER, RUNNER})


def cause_of(message: str, log: str = "", *, oom_kills: int = 0) -> Cause | None:
    """Return what a failure was; None where its words do not tell.

    Args:
        message: The coordinator's error message.
        log: The runner's last lines.
        oom_kills: Processes that the kernel has killed for lack of memory meanwhile, of the runner's control group or,
            where that is not known, as a container's, of the whole machine.
    """
    cause = next((cause for cause in CAUSES if re.search(cause.message, message, re.IGNORECASE)), None)
    if cause is None or cause.name not in DEATHS:
        return cause
    if oom_kills > 0:
        return next(cause for cause in CAUSES if cause.name == HOST_MEMORY)
    return next((logged for logged in CAUSES if logged.log and re.search(logged.log, log)), cause)


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
        cause=(failed.error and failed.error.cause) or "",
        gpus=len(plan.gpus) or plan.config.section.gpus_needed(),
        dtype=failed.environment.runner.engine_args.get("dtype") if failed.environment else None,
        memory_bytes=max((gpu.vram_total_bytes or 0 for gpu in plan.gpus), default=0) or None,
    )


def fallbacks(
    failed: ExperimentConfig, *, cause: str, gpus: int, dtype: str | None = None, memory_bytes: int | None = None
) -> tuple[FallbackStep, ...]:
    """Return fallbacks in order: other splits over the same GPUs, replicas, fewer requests in flight, fewer bits.

    Args:
        cause: Name of the failure's cause; without any, such as for a mistake in a setting, there is no fallback.
        gpus: How many GPUs the experiment had; on a CPU as many as its settings would take.
        dtype: The weights' type as loaded; None where nothing was loaded.
        memory_bytes: Memory of the largest GPU; None on a CPU.
    """
    if not cause:
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


def _changes(failed: ExperimentConfig, cause: str, gpus: int, dtype: str) -> Iterator[Mapping[str, Any]]:
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
