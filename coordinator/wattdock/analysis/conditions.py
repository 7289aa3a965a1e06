"""Settings and conditions of results as flat names and texts, and how results differ in them. Pure."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from wattdock.text import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.records import EnvironmentSnapshot

UNKNOWN, ABSENT = "unknown", "–"
# What says no more than a name that is absent: a value that is unknown, None or empty.
EMPTY = {UNKNOWN, "None", "[]", "{}", ""}
ENGINE, PACKAGE, VARIABLE, FILE = "engine: ", "package: ", "variable: ", "model file: "
# Hex digits of a file's SHA-256 that earlier versions kept, for weights of their two ends: not of the whole file.
OLD_DIGITS = 16
# A model may have hundreds of these files; they are one condition.
WEIGHTS = (".safetensors", ".gguf")
# Settings of synthetic prompts, and of prompts of text or a file.
OF_SYNTHETIC = tuple(f"workload.prompts.{name}" for name in ("input_tokens", "turns", "shared_prefix_tokens"))
OF_TEXT = ("workload.prompts.chat",)
# What differs from run to run without being a condition, and what `_environment` yields in a form of its own.
EXCLUDED: Any = {
    **dict.fromkeys(("clock", "changes", "launcher_reason", "meter_reason", "leased"), True),
    **dict.fromkeys(("host_gpus", "gpu_uuids", "model", "topology", "container", "variables", "job", "nodes"), True),
    "runner": {
        **dict.fromkeys(("visible_gpu_uuids", "used_gpu_uuids", "parameter_count", "weight_bytes"), True),
        **dict.fromkeys(("package_versions", "engine_args"), True),
        # Which GPU holds how many layers differs from run to run; how they were split does not.
        "parallelism": {"devices"},
    },
    "packages": {"lock", "packages"},
}
# The same of another node: where it is, how well its clock is known, and what the head's runner says of the whole.
EXCLUDED_OF_NODE: Any = {
    **dict.fromkeys(("name", "boot_id", "gpu_uuids", "launcher_reason", "job"), True),
    **dict.fromkeys(("round_trip_s", "clock_uncertainty_s", "drift"), True),
    "runner": {*EXCLUDED["runner"], "parallelism"} - {"package_versions"},
}
# Different in each pass, or with the state of the memory at each start.
MAY_CHANGE = ("prompts", "host memory", f"{ENGINE}memory_by_gpu")
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
    "packages.lock_sha256": "lock of packages",
    "packages.interpreter": "Python's build",
    "dataset": "prompts",
    "dataset_sha256": "prompts' SHA-256",
    "runner.framework": "framework",
    "runner.framework_version": "framework version",
    "runner.warnings": "warnings of the runner",
}


def settings(config: ExperimentConfig) -> dict[str, str]:
    """Return every setting that is part of the experiment's identity and concerns its prompts, by its dotted name."""
    other = OF_TEXT if config.prompts.source == "synthetic" else OF_SYNTHETIC
    named = dotted(config.identity)
    return {name: str(value) for name, value in named if value is not None and not name.startswith(other)}


def everything(config: ExperimentConfig, environment: EnvironmentSnapshot | None) -> dict[str, str]:
    """Return all conditions and settings of a result, by name."""
    conditions = _conditions(environment) if environment else {}
    return conditions | {f"setting: {name}": text for name, text in settings(config).items()}


def required_conditions(environment: EnvironmentSnapshot) -> dict[str, str]:
    """Return the conditions that must be equal for all passes of one experiment."""
    return {name: text for name, text in _conditions(environment).items() if not name.startswith(MAY_CHANGE)}


def differing(mappings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose texts are not all equal, in their first order; nothing known is equal to absence."""
    names = dict.fromkeys(chain.from_iterable(mappings))
    texts = {name: {mapping.get(name) for mapping in mappings} for name in names}
    return [name for name, found in texts.items() if len(found) > 1 and not (None in found and found <= {None, *EMPTY})]


def shared(mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the names and texts that all mappings have in common."""
    first = mappings[0] if mappings else {}
    in_all = set(first.items()).intersection(*(mapping.items() for mapping in mappings))
    return {name: text for name, text in first.items() if (name, text) in in_all}


def _conditions(environment: EnvironmentSnapshot) -> dict[str, str]:
    return {name: UNKNOWN if value is None else str(value) for name, value in _environment(environment)}


def _environment(environment: EnvironmentSnapshot) -> Iterator[tuple[str, Any]]:
    yield "model", environment.model.name
    yield "model revision", environment.model.revision
    yield "prompts as rendered, SHA-256", environment.model.rendered_sha256
    yield "prompts' time, UTC", environment.model.template_time_utc
    yield "weights", environment.model.weights
    files = environment.model.files
    if weights := [digest for name, digest in files.items() if name.endswith(WEIGHTS)]:
        yield f"{FILE}weights", None if any(len(digest) == OLD_DIGITS for digest in weights) else _every(weights)
    yield from ((f"{FILE}{name}", digest[:OLD_DIGITS]) for name, digest in files.items() if not name.endswith(WEIGHTS))
    yield "parameters", environment.runner.parameter_count
    used = environment.used_gpus
    # Each board has sensors of its own.
    yield "GPU UUIDs", ", ".join(environment.gpu_uuids) or None
    yield "GPU power limit, W", _every(gpu.power_limit_w for gpu in used)
    yield "GPU ECC", _every(gpu.ecc for gpu in used)
    yield "GPU MIG", _every(gpu.mig for gpu in used)
    yield "GPU persistence", _every(gpu.persistence for gpu in used)
    yield "GPU vBIOS", _every(gpu.vbios_version for gpu in used)
    yield "power profiles requested", _every(_names(gpu.power_profiles_requested) for gpu in used)
    yield "power profiles", _every(_names(gpu.power_profiles) for gpu in used)
    yield "power smoothing", _every(gpu.power_smoothing for gpu in used)
    yield "power smoothing preset", _every(gpu.power_smoothing_profile for gpu in used)
    yield "GPUs of the host", len(environment.host_gpus)
    yield "GPU links", _every(link.label for link in environment.topology.links) if environment.topology else None
    if environment.job:
        yield "node", environment.job.node
        yield "node to itself", environment.job.exclusive
    if environment.container:
        yield "image id", environment.container.image_id
    for number, node in enumerate(environment.nodes, start=1):
        of_node = dotted(node.model_dump(mode="json", exclude=EXCLUDED_OF_NODE))
        yield from ((f"node {number}: {name}", str(value)) for name, value in of_node)
    if environment.variables is None:
        yield "variables", None
    yield from ((f"{VARIABLE}{name}", value) for name, value in (environment.variables or {}).items())
    for name, value in dotted(environment.model_dump(mode="json", exclude=EXCLUDED)):
        spelled = SPELLED.get(name, name.removeprefix("runner."))
        yield spelled, _every(value) if isinstance(value, list) else value
    # An argument that is None was read back as that.
    yield from ((f"{ENGINE}{name}", str(value)) for name, value in dotted(environment.runner.engine_args))
    yield from ((f"{PACKAGE}{name}", value) for name, value in sorted(environment.runner.package_versions.items()))


def _names(names: Sequence[str] | None) -> str | None:
    """Return names as one text, "none" for no name."""
    return names if names is None else " + ".join(names) or "none"


def _every(values: Iterable[Any]) -> str | None:
    """Return the common value of all, or else every value in turn; None without values."""
    texts = [UNKNOWN if value is None else str(value) for value in values]
    if not texts:
        return None
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
