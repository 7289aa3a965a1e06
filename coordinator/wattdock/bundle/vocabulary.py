"""Words that a result cannot do without, even where somebody or some machine has one of them for a name. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from wattdock.config.schema import study_schema
from wattdock.results.result import ExperimentResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@cache
def schema_keys() -> frozenset[str]:
    """Return the names of all settings and of all fields of a result."""
    return frozenset(name for schema in _schemas() for name in _properties(schema))


@cache
def schema_values() -> frozenset[str]:
    """Return the texts that some setting or field must be one of."""
    return frozenset(value for schema in _schemas() for value in _choices(schema))


def needed_values(result: ExperimentResult) -> set[str]:
    """Return what names the model, image, GPUs and packages of a result: without it nothing could be run again."""
    config, seen = result.config, result.environment
    values: list[str | None] = [config["backend"], config["model"].get("id"), config["model"].get("shape")]
    values += [config["model"].get("revision"), (config.get("container") or {}).get("image")]
    if seen:
        values += [seen.framework, seen.framework_version, seen.model.revision, seen.image_digest, seen.dataset_sha256]
        values += [*seen.gpu_names, *seen.gpu_uuids, *(gpu.uuid for gpu in seen.host_gpus)]
        values += [*seen.package_versions, *seen.package_versions.values(), seen.cpu_model, seen.kernel]
        if seen.model.kind != "path":
            values.append(seen.model.name)
        if seen.container:
            values += [seen.container.image, seen.container.image_id]
    return {value for value in values if value}


def _schemas() -> list[dict[str, Any]]:
    return [ExperimentResult.model_json_schema(by_alias=True), study_schema()]


def _properties(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        yield from part.get("properties", {}) if isinstance(part.get("properties"), dict) else ()


def _choices(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        choices = part["enum"] if isinstance(part.get("enum"), list) else [part.get("const"), part.get("default")]
        yield from (one for one in choices if isinstance(one, str))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a schema."""
    if isinstance(schema, dict):
        yield schema
    below: Iterable[Any] = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for one in below:
        yield from _parts(one)
