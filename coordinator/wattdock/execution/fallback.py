"""What to measure instead of an experiment whose parallelism or memory failed: a ladder of other settings. Pure.

Each step differs from the failed experiment in one respect, is an experiment of its own, and never stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import ExperimentConfig
from wattdock.errors import WattdockError
from wattdock.execution.failures import CAUSES, DEATHS, MEMORY_CAUSES
from wattdock.inputs import memory_fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.checks import ExecutionPlan

# Failures of processes, memory and links between GPUs; a mistake in a setting is none of them.
ELIGIBLE = frozenset(cause.name for cause in CAUSES)
# Fewer requests in flight, or fewer bits, take memory only.
HELPED_BY_LESS = MEMORY_CAUSES | DEATHS
DIVISORS = (2, 4)
# Share of a device's memory that weights may take; the rest is for the KV cache, activations and the engine.
WEIGHTS_SHARE = 0.8


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        config: The experiment to measure instead.
        change: What is different in it.
    """

    config: ExperimentConfig
    change: str


@dataclass(frozen=True)
class FailureContext:
    """What decides about the ladder besides the settings.

    Attributes:
        cause: Why the experiment failed, by its name in `launch.CAUSES`.
        gpus: How many GPUs it had; on a CPU as many as its settings would take.
        fits_one_gpu: Whether the whole model fits each GPU; None where that is unknown.
        dtype: The weights' type as loaded; None where nothing was loaded.
        memory_bytes: Memory of the largest GPU; None on a CPU.
    """

    cause: str
    gpus: int
    fits_one_gpu: bool | None
    dtype: str | None
    memory_bytes: int | None = None


def ladder(asked: ExperimentConfig, seen: FailureContext) -> tuple[Step, ...]:
    """Return the steps in order: other splits over the same GPUs, replicas, fewer requests in flight, fewer bits."""
    if seen.cause not in ELIGIBLE:
        return ()
    steps = []
    for settings in _changes(asked, seen):
        step = _step(asked, settings)
        if step and step.config.experiment_id != asked.experiment_id and _is_possible(step.config, seen):
            steps.append(step)
    return tuple(steps)


def _is_possible(config: ExperimentConfig, seen: FailureContext) -> bool:
    """Whether the model can be split so, and its weights fit."""
    try:
        memory_fit(config, gpus=seen.gpus, memory_bytes=seen.memory_bytes, weights_only=True)
    except WattdockError:
        return False
    return True


def failure_context(plan: ExecutionPlan, failed: ExperimentResult) -> FailureContext:
    """Return what decides about the ladder of a failed experiment."""
    runner = failed.environment
    gpus = _gpus(plan)
    return FailureContext(
        cause=(failed.error and failed.error.cause) or "",
        gpus=gpus,
        fits_one_gpu=_fits(plan, runner.model.weight_bytes if runner else None, gpus),
        dtype=runner.engine_args.get("dtype") if runner else None,
        memory_bytes=max((gpu.vram_total_bytes or 0 for gpu in plan.gpus), default=0) or None,
    )


def _fits(plan: ExecutionPlan, loaded_bytes: int | None, gpus: int) -> bool | None:
    """Whether the whole model's weights fit each device; a CPU's memory is shared by as many as there are to be."""
    weight_bytes = loaded_bytes
    if weight_bytes is None:
        weight_bytes = memory_fit(plan.config, gpus=gpus, memory_bytes=None).weight_bytes
    rooms = [gpu.vram_total_bytes for gpu in plan.gpus]
    if not rooms and plan.machine.memory_total_bytes is not None:
        rooms = [plan.machine.memory_total_bytes // max(1, gpus)]
    known = [room for room in rooms if room is not None]
    if weight_bytes is None or not known or len(known) < len(rooms):
        return None
    return weight_bytes <= WEIGHTS_SHARE * min(known)


def _gpus(plan: ExecutionPlan) -> int:
    return len(plan.gpus) or plan.config.section.gpus_needed()


def describe_ladder(asked: ExperimentConfig, failed: ExperimentResult, steps: Sequence[Step]) -> str:
    """Return the ladder in words."""
    why = (failed.error and (failed.error.cause or failed.error.kind)) or "failed"
    listed = "; ".join(f"{number}. {step.change}" for number, step in enumerate(steps, 1))
    return f"{asked.label}: {why}; " + (f"measured instead, until one works: {listed}" if steps else "no fallback")


def _changes(asked: ExperimentConfig, seen: FailureContext) -> Iterator[Mapping[str, Any]]:
    """Yield settings, dotted, of each step."""
    section, backend = asked.section, asked.backend
    for split in section.other_splits(seen.gpus):
        yield {f"{backend}.{name}": value for name, value in split.items()}
    replicas = section.as_replicas(seen.gpus)
    # A copy on each GPU takes more memory than a part.
    if replicas and seen.fits_one_gpu and seen.cause not in MEMORY_CAUSES:
        yield {f"{backend}.{name}": value for name, value in replicas.items()}
    if seen.cause in HELPED_BY_LESS:
        sizes = [asked.workload.batch_size // divisor for divisor in DIVISORS]
        yield from ({"workload.batch_size": size} for size in dict.fromkeys(sizes) if size)
    if seen.cause in MEMORY_CAUSES:
        dtype = seen.dtype or section.dtype
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
