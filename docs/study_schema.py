"""The JSON Schema of study files, for editors."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from pydantic.json_schema import models_json_schema

from wattdock.config import sections
from wattdock.config.experiment import ExperimentConfig, ModelSpec
from wattdock.config.nodes import NodesSpec
from wattdock.config.study import STUDY_MARKS, StudyFile
from wattdock.config.workload import PromptSpec

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Written as a plain value of this type, each stands for a mapping.
SHORT_FORMS: dict[type, str] = {ModelSpec: "string", PromptSpec: "string", NodesSpec: "integer"}


def study_schema() -> Schema:
    """Return the schema of a file that holds one experiment or a study."""
    backends = sorted(module.name for module in pkgutil.iter_modules(sections.__path__))
    own = [importlib.import_module(f"{sections.__name__}.{name}").Section for name in backends]
    kinds: list[Any] = [ExperimentConfig, StudyFile, *own]
    found, schema = models_json_schema([(kind, "validation") for kind in kinds])
    refs: dict[Any, Schema] = {kind: ref for (kind, _), ref in found.items()}
    definitions: Schema = schema["$defs"]
    # Where agents are named, they are counted.
    del definitions[NodesSpec.__name__]["required"]
    for kind, short in SHORT_FORMS.items():
        definitions[kind.__name__] = {"anyOf": [{"type": short}, definitions[kind.__name__]]}
    experiment, study = definitions[ExperimentConfig.__name__], definitions[StudyFile.__name__]
    for name, section in zip(backends, own, strict=True):
        settings = definitions.pop(refs[section]["$ref"].rpartition("/")[2])
        experiment["properties"][name] = settings | {"title": f"{name} section"}
    # A plain address stands for it.
    experiment["properties"]["url"]["type"] = ["object", "string"]
    # Backends may have sections that nothing here knows; a study may leave everything to its defaults.
    experiment["additionalProperties"] = {"type": "object"}
    values = {"type": "array", "minItems": 1}
    together = {"type": "object", "additionalProperties": values}
    part = refs[ExperimentConfig]
    study["properties"] |= {
        "defaults": part,
        "experiments": {"type": "array", "items": part},
        "sweep": {
            "type": "object",
            "properties": {"zip": together},
            "additionalProperties": values,
        },
    }
    return {
        "$schema": DIALECT,
        "title": "wattdock study",
        "if": {"anyOf": [{"required": [mark]} for mark in sorted(STUDY_MARKS)]},
        "then": refs[StudyFile],
        "else": part,
        "$defs": definitions,
    }
