"""The JSON Schema of study files, for editors: `python -m wattdock.config.schema` prints it."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

from pydantic import TypeAdapter

from wattdock.config import sections
from wattdock.config.experiment import ExperimentConfig, ModelSpec
from wattdock.config.study import STUDY_MARKS, LinearRange, LogRange, PowerRange, StudyFile
from wattdock.config.workload import PromptSpec
from wattdock.text import json_text

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Written as a plain string, each stands for a mapping.
SHORT_FORMS = (ModelSpec, PromptSpec)


def study_schema() -> Schema:
    """Return the schema of a file that holds one experiment or a study."""
    definitions: Schema = {}
    experiment = _definition("Experiment", ExperimentConfig, definitions)
    for name in _section_names():
        module = importlib.import_module(f"{sections.__name__}.{name}")
        experiment["properties"][name] = _definition(f"{name} section", module.Section, definitions)
    for kind in SHORT_FORMS:
        definitions[kind.__name__] = {"anyOf": [{"type": "string"}, definitions[kind.__name__]]}
    # Backends may have sections that nothing here knows; a study may leave everything to its defaults.
    experiment["additionalProperties"] = {"type": "object"}
    study = _definition("Study", StudyFile, definitions)
    values = {"anyOf": [{"type": "array", "minItems": 1}, *(_ref(kind, definitions) for kind in _RANGES)]}
    together = {"type": "object", "additionalProperties": values}
    part = {"$ref": "#/$defs/Experiment"}
    study["properties"] |= {
        "defaults": part,
        "experiments": {"type": "array", "items": part},
        "sweep": {
            "type": "object",
            "properties": {"zip": {"anyOf": [together, {"type": "array", "items": together}]}},
            "additionalProperties": values,
        },
    }
    definitions |= {"Experiment": experiment, "Study": study}
    marks = [{"required": [mark]} for mark in sorted(STUDY_MARKS)]
    return {
        "$schema": DIALECT,
        "title": "wattdock study",
        "if": {"anyOf": marks},
        "then": {"$ref": "#/$defs/Study"},
        "else": part,
        "$defs": definitions,
    }


_RANGES = (LinearRange, PowerRange, LogRange)


def _definition(title: str, kind: Any, definitions: Schema) -> Schema:
    """Return the schema of a model, what it refers to moved to `definitions`."""
    schema = TypeAdapter(kind).json_schema(by_alias=True, ref_template="#/$defs/{model}")
    definitions.update(schema.pop("$defs", {}))
    return schema | {"title": title}


def _ref(kind: Any, definitions: Schema) -> Schema:
    definitions[kind.__name__] = _definition(kind.__name__, kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _section_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(sections.__path__))


if __name__ == "__main__":
    sys.stdout.write(json_text(study_schema(), indent=2) + "\n")
