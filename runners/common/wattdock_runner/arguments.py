"""Check engine arguments against the names and types that a backend declares, or that its engine's source has.

An engine is read, never imported: importing one takes seconds and loads torch, and a runner must answer at once.
"""

from __future__ import annotations

import ast
import difflib
import json
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# As many names as a line of a terminal or two can take.
FEW = 30
# What JSON may bring for the names that annotations have; for any other name only the engine can judge.
JSON_TYPES: dict[str, tuple[type, ...]] = {
    **{kind.__name__: (kind,) for kind in (bool, dict, float, int, list, str)},
    **dict.fromkeys(("List", "set", "tuple"), (list,)),
    **dict.fromkeys(("NonNegativeInt", "PositiveInt"), (int,)),
    "Dict": (dict,),
    "None": (type(None),),
    "NonNegativeFloat": (float,),
}
ANY_JSON: tuple[type, ...] = (bool, dict, float, int, list, str, type(None))


@dataclass(frozen=True)
class Argument:
    """One engine argument: the types that JSON may bring, and the only values allowed (empty: any).

    Attributes:
        refused: Why no value is taken though the engine has the argument, and what to do instead; empty where it is.
    """

    types: tuple[type, ...]
    choices: tuple[object, ...] = ()
    refused: str = ""


def unknown_name(kind: str, given: str, valid: Iterable[str]) -> InvalidRequest:
    """Return the error for a name that does not exist, with the nearest one that does."""
    names = sorted(valid)
    near = difflib.get_close_matches(given, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif len(names) > FEW:
        hint = f"none of the {len(names)} valid ones is like it"
    else:
        hint = f"valid: {', '.join(names) or 'none'}"
    return InvalidRequest(f"unknown {kind} {given!r}; {hint}")


def parse_engine_args(text: str) -> dict[str, object]:
    """Return the JSON object in `text`; empty text is no arguments.

    Raises:
        InvalidRequest: It is no JSON, or no object.
    """
    try:
        parsed = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"engine arguments are not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"engine arguments must be a JSON object, not {type(parsed).__name__}")
    return parsed


def check_engine_args(given: Mapping[str, object], known: Mapping[str, Argument]) -> None:
    """Accept `given` only if every name is known and taken, and every value has a declared type and choice.

    Raises:
        InvalidRequest: Names the argument, the value seen and what is valid.
    """
    for name, value in given.items():
        if name not in known:
            raise unknown_name("engine argument", name, takeable(known))
        if why := known[name].refused:
            raise InvalidRequest(f"engine argument {name!r} is not taken: {why}")
        _check_value(name, value, known[name])


def takeable(known: Mapping[str, Argument]) -> list[str]:
    """Return the names that a caller may give, in order."""
    return sorted(name for name, argument in known.items() if not argument.refused)


def _check_value(name: str, value: object, argument: Argument) -> None:
    types = argument.types + ((int,) if float in argument.types else ())
    # bool is an int in Python, but `true` is no number to whoever wrote it.
    right_type = isinstance(value, types) and (not isinstance(value, bool) or bool in argument.types)
    if not right_type:
        wanted = " or ".join(sorted(_json_name(kind) for kind in argument.types))
        raise InvalidRequest(f"engine argument {name!r} must be {wanted}, not {_json_name(type(value))} ({value!r})")
    if argument.choices and value not in argument.choices:
        choices = ", ".join(json.dumps(choice) for choice in argument.choices)
        raise InvalidRequest(f"engine argument {name!r} must be one of {choices}, not {value!r}")


def _json_name(kind: type) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
    return names.get(kind, kind.__name__)


def source_fields(package: str, file: str, *classes: str) -> dict[str, Argument] | None:
    """Return the public annotated fields of classes in a file of an installed package; None where that is not there."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0]) / file
    return fields_in(source.read_text(encoding="utf-8"), *classes) if source.is_file() else None


def fields_in(source: str, *classes: str) -> dict[str, Argument]:
    """Return the public annotated fields of classes in `source`, with those of their bases there; pure.

    A class that is not there has none.
    """
    there = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found: dict[str, Argument] = {}
    for node in (there[name] for name in classes if name in there):
        found |= fields_in(source, *(base.id for base in node.bases if isinstance(base, ast.Name)))
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        names = {field.target.id: field.annotation for field in fields if isinstance(field.target, ast.Name)}
        found |= {name: argument_for(kind) for name, kind in names.items() if not name.startswith("_")}
    return found


def argument_for(annotation: ast.expr) -> Argument:
    """Return what JSON may bring for an annotation; anything, where only the engine can judge."""
    types, literals = _alternatives(annotation)
    choices = tuple(literals) if literals and set(types) <= {str, type(None)} else ()
    return Argument(types, (*choices, None) if choices and type(None) in types else choices)


def _alternatives(annotation: ast.expr) -> tuple[tuple[type, ...], list[object]]:
    """Return the types of an annotation, and its values where it is made of literals only."""
    if isinstance(annotation, ast.BinOp):
        return _united([annotation.left, annotation.right])
    if isinstance(annotation, ast.Subscript):
        name = getattr(annotation.value, "id", "")
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name == "Literal":
            values = [item.value for item in inner if isinstance(item, ast.Constant)]
            return tuple(dict.fromkeys(type(value) for value in values)), list(values)
        if name in ("Union", "Optional"):
            return _united([*inner, ast.Constant(None)] if name == "Optional" else inner)
        return JSON_TYPES.get(name, ANY_JSON), []
    name = str(annotation.value) if isinstance(annotation, ast.Constant) else getattr(annotation, "id", "")
    return JSON_TYPES.get(name, ANY_JSON), []


def _united(parts: list[ast.expr]) -> tuple[tuple[type, ...], list[object]]:
    found = [_alternatives(part) for part in parts]
    types = tuple(dict.fromkeys(kind for kinds, _ in found for kind in kinds))
    has_free_text = any(str in kinds and not values for kinds, values in found)
    return types, [] if has_free_text else [value for _, values in found for value in values]


def json_ready(value: Any) -> Any:
    """Return an engine's setting as JSON has it: pydantic models as objects, what JSON has no form for as text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        # The order of a set differs between processes.
        return sorted((json_ready(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    return str(value).removeprefix("torch.")
