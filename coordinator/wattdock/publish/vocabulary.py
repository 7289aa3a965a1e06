"""Words that a result cannot do without, even where somebody or some machine has one of them for a name. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from wattdock.analysis import ExperimentResult
from wattdock.config import study_schema

if TYPE_CHECKING:
    from collections.abc import Iterator


@cache
def schema_keys() -> frozenset[str]:
    """Return the names of all settings and of all fields of a result."""
    named = [part["properties"] for part in _parts() if isinstance(part.get("properties"), dict)]
    return frozenset(name for one in named for name in one)


@cache
def schema_values() -> frozenset[str]:
    """Return the texts that some setting or field must be one of."""
    given = [(part.get("enum"), part.get("const"), part.get("default")) for part in _parts()]
    choices = [enum if isinstance(enum, list) else [const, default] for enum, const, default in given]
    return frozenset(one for some in choices for one in some if isinstance(one, str))


def needed_values(result: ExperimentResult) -> set[str]:
    """Return what names the model, image, GPUs and packages of a result: without it nothing could be run again.

    And the statement of the boundary, which an older wattdock worded otherwise.
    """
    config, seen = result.config, result.environment
    values: list[str | None] = [config["backend"], config["model"].get("id"), config["model"].get("shape")]
    values += [config["model"].get("revision"), (config.get("container") or {}).get("image")]
    values += [one.boundary_statement for one in (result.energy, result.multi_gpu) if one]
    if seen:
        values += [seen.framework, seen.framework_version, seen.model.revision, seen.image_digest, seen.dataset_sha256]
        values += [*seen.gpu_names, *seen.gpu_uuids, *(gpu.uuid for gpu in seen.host_gpus)]
        values += [*seen.package_versions, *seen.package_versions.values(), seen.cpu_model, seen.kernel]
        if seen.model.kind != "path":
            values.append(seen.model.name)
        if seen.container:
            values += [seen.container.image, seen.container.image_id]
    return {value for value in values if value}


def _parts() -> Iterator[dict[str, Any]]:
    """Yield every mapping in the schemas of a result and of a study."""
    left: list[Any] = [ExperimentResult.model_json_schema(by_alias=True), study_schema()]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part
