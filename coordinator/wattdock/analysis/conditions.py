"""What results were measured with, as flat names and texts, and in which of them results differ. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.config import ExperimentConfig
from wattdock.text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wattdock.analysis.result import ExperimentResult
    from wattdock.records import EnvironmentSnapshot

UNKNOWN, ABSENT = "unknown", "–"
ENGINE, PACKAGE, VARIABLE = "engine: ", "package: ", "variable: "
# What differs from run to run without being a condition, and what `_environment` yields in a form of its own.
EXCLUDED: Any = {
    **dict.fromkeys(("clock", "changes", "launcher_reason", "meter_reason", "leased"), True),
    **dict.fromkeys(("host_gpus", "gpu_uuids", "model", "topology", "container", "variables"), True),
    "runner": {
        **dict.fromkeys(("visible_gpu_uuids", "used_gpu_uuids", "parameter_count", "weight_bytes"), True),
        **dict.fromkeys(("package_versions", "engine_args"), True),
        # Which GPU holds how many layers differs from run to run; how they were split does not.
        "parallelism": {"devices"},
    },
}
# What each pass, or the state of the memory at each start, makes different.
NOT_HELD = ("prompts", "host memory", f"{ENGINE}memory_by_gpu")
SPELLED = {
    "gpu_count": "GPUs used",
    "gpu_names": "GPU",
    "gpu_vram_gb": "GPU memory, GB",
    "driver_version": "driver",
    "runner.cuda_version": "CUDA",
    "runner.nccl_version": "NCCL",
    "cpu_model": "CPU",
    "cpu_count": "CPU cores",
    "memory_total_bytes": "host memory, bytes",
    "coordinator_python": "Python of the coordinator",
    "runner.python_version": "Python of the runner",
    "wattdock_version": "wattdock",
    "image_digest": "image",
    "dataset": "prompts",
    "dataset_sha256": "prompts' SHA-256",
    "runner.framework": "framework",
    "runner.framework_version": "framework version",
    "runner.warnings": "warnings of the runner",
}


def settings(result: ExperimentResult) -> dict[str, str]:
    """Return every setting that makes the experiment what it is, by its dotted name."""
    written = {name: value for name, value in result.config.items() if name not in ExperimentConfig.NOT_IDENTITY}
    return {name: str(value) for name, value in dotted(written) if value is not None}


def conditions(result: ExperimentResult) -> dict[str, str]:
    """Return what it ran on and with: hardware, limits, versions, model, prompts, effective engine arguments."""
    return conditions_of(result.environment) if result.environment else {}


def everything(result: ExperimentResult) -> dict[str, str]:
    """Return conditions and settings."""
    return conditions(result) | {f"setting: {name}": text for name, text in settings(result).items()}


def conditions_of(seen: EnvironmentSnapshot) -> dict[str, str]:
    """Return a snapshot's conditions, as `conditions` does for a result."""
    return {name: UNKNOWN if value is None else str(value) for name, value in _environment(seen)}


def held_conditions(seen: EnvironmentSnapshot) -> dict[str, str]:
    """Return those that all passes of one experiment must have been measured under."""
    return {name: text for name, text in conditions_of(seen).items() if not name.startswith(NOT_HELD)}


def differing(every: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose texts are not all equal, in the order of their first appearance."""
    names = dict.fromkeys(name for mapping in every for name in mapping)
    return [name for name in names if len({mapping.get(name) for mapping in every}) > 1]


def shared(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what all of them agree in."""
    apart = set(differing(every))
    return {name: text for mapping in every[:1] for name, text in mapping.items() if name not in apart}


def labels(results: Sequence[ExperimentResult]) -> list[str]:
    """Return a short name for each result, all different: its own, where several have it with the settings that differ.

    Those that differ in no setting are told apart by when they began.
    """
    made = [str(result.config.get("name") or "") for result in results]
    for name, group in _alike(made).items():
        written = {at: settings(results[at]) for at in group}
        varying = differing(list(written.values()))
        for at, own in written.items():
            texts = [f"{key.rpartition('.')[2]}={own[key]}" for key in varying if key in own]
            made[at] = " ".join([*([name] if name else []), *texts]) or results[at].experiment_id[:8]
    for name, group in _alike(made, at_least=2).items():
        for number, at in enumerate(group, 1):
            made[at] = f"{name} ({results[at].started_utc[:19]}, {number})"
    return made


def _alike(texts: Sequence[str], *, at_least: int = 1) -> dict[str, list[int]]:
    """Return the places of equal texts that are too many, or that say nothing."""
    places: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        places.setdefault(text, []).append(at)
    return {text: group for text, group in places.items() if len(group) > 1 or (not text and at_least == 1)}


def _environment(seen: EnvironmentSnapshot) -> Iterator[tuple[str, Any]]:
    model = seen.model
    yield "model", model.name
    yield "model revision", model.revision
    yield "weights", model.weights
    yield "parameters", seen.runner.parameter_count
    used = seen.used_gpus
    # Two boards of one model have two sensors.
    yield "GPU boards", ", ".join(seen.gpu_uuids) or None
    yield "GPU power limit, W", _every(gpu.power_limit_w for gpu in used)
    yield "GPU ECC", _every(gpu.ecc for gpu in used)
    yield "GPU MIG", _every(gpu.mig for gpu in used)
    yield "GPUs of the host", len(seen.host_gpus)
    yield "GPU links", _every(link.label for link in seen.topology.links) if seen.topology else None
    if seen.container:
        yield "image id", seen.container.image_id
    if seen.variables is None:
        yield "variables", None
    yield from ((f"{VARIABLE}{name}", value) for name, value in (seen.variables or {}).items())
    for name, value in dotted(seen.model_dump(mode="json", exclude=EXCLUDED)):
        spelled = SPELLED.get(name, name.removeprefix("runner."))
        yield spelled, _every(value) if isinstance(value, list) else value
    # An argument that is None was read back as that.
    yield from ((f"{ENGINE}{name}", str(value)) for name, value in dotted(seen.runner.engine_args))
    yield from ((f"{PACKAGE}{name}", value) for name, value in sorted(seen.runner.package_versions.items()))


def _every(values: Iterable[Any]) -> str | None:
    """Return equal values once with their number, different ones in turn; None without any."""
    texts = [UNKNOWN if value is None else str(value) for value in values]
    if not texts:
        return None
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
