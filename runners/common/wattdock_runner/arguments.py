"""Check engine arguments against the names and types that a backend declares, or that the engine's source declares.

The source is parsed, never imported: importing an engine takes seconds and loads torch, and a runner must answer at
once.
"""

from __future__ import annotations

import ast
import difflib
import json
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How many valid names an error lists where none is like the name that is wrong.
MOST_NAMES_LISTED = 30
# JSON types by the names that annotations have; values of any other type only the engine can judge.
JSON_TYPES: dict[str, tuple[type, ...]] = {
    **{kind.__name__: (kind,) for kind in (bool, dict, float, int, list, str)},
    **dict.fromkeys(("List", "set", "tuple"), (list,)),
    **dict.fromkeys(("NonNegativeInt", "PositiveInt"), (int,)),
    "Dict": (dict,),
    "None": (type(None),),
    "NonNegativeFloat": (float,),
}
# Annotations whose first argument is the type, the others metadata; SGLang calls its own `A`.
METADATA = ("Annotated", "A")
ANY_JSON: tuple[type, ...] = (bool, dict, float, int, list, str, type(None))


@dataclass(frozen=True)
class Argument:
    """An engine argument: its JSON types, and its allowed values (empty: any).

    Attributes:
        refused: Why wattdock takes no value though the engine has the argument, and what to do instead; else empty.
    """

    types: tuple[type, ...]
    choices: tuple[object, ...] = ()
    refused: str = ""


def _unknown_argument(name: str, valid: Sequence[str], engine: str) -> InvalidRequest:
    """Return the error for a name that does not exist, with the nearest valid name."""
    near = difflib.get_close_matches(name, valid, n=1)
    if near:
        hint = f"nearest: {near[0]!r}"
    elif len(valid) > MOST_NAMES_LISTED:
        hint = f"none of the {len(valid)} valid ones is like it"
    else:
        hint = f"valid: {', '.join(valid) or 'none'}"
    return InvalidRequest(f"{engine} has no argument {name!r}; {hint}")


def parse_engine_args(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`; an empty text holds no arguments.

    Raises:
        InvalidRequest: The text is no JSON object.
    """
    try:
        parsed = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"engine arguments are not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"engine arguments must be a JSON object, not {type(parsed).__name__}")
    return parsed


def check_engine_args(engine_args: Mapping[str, object], declared: Mapping[str, Argument], engine: str) -> None:
    """Accept engine arguments only if every name is declared and every value has its declared type.

    Args:
        engine: Name and version of what declares them: an argument may be another version's.

    Raises:
        InvalidRequest: Holds the argument, its value and what is valid.
    """
    for name, value in engine_args.items():
        if name not in declared:
            raise _unknown_argument(name, takeable(declared), engine)
        argument = declared[name]
        if argument.refused:
            raise InvalidRequest(f"engine argument {name!r} is not taken: {argument.refused}")
        types = (*argument.types, int) if float in argument.types else argument.types
        # bool is an int in Python, but `true` is no number to whoever wrote it.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join(sorted({_json_name(kind) for kind in argument.types}))
            given = _json_name(type(value))
            raise InvalidRequest(f"engine argument {name!r} must be {wanted}, not {given} ({value!r})")
        # Engines lower or raise some texts before they compare.
        if argument.choices and str(value).lower() not in [str(choice).lower() for choice in argument.choices]:
            choices = ", ".join(json.dumps(choice) for choice in argument.choices)
            raise InvalidRequest(f"{engine}: engine argument {name!r} must be one of {choices}, not {value!r}")


def takeable(declared: Mapping[str, Argument]) -> list[str]:
    """Return the names that a caller may set, in order."""
    return sorted(name for name, argument in declared.items() if not argument.refused)


def _json_name(kind: type) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
    return names.get(kind, kind.__name__)


def source_arguments(
    package: str,
    files: str,
    *classes: str,
    left_out: Sequence[str],
    refused: Mapping[str, str],
    added: Mapping[str, Argument] = MappingProxyType({}),
) -> dict[str, Argument] | None:
    """Return the public annotated fields of classes in files of an installed package; None without such a file.

    Args:
        files: A path, or a pattern of paths.
        classes: Whose fields, and whose bases' fields in the same file; none is all classes.
        left_out: Patterns of names that do not exist for a caller.
        refused: By name, why a caller may not set it.
        added: Arguments beside the fields.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    arguments: dict[str, Argument] = {}
    for source in sorted(Path(spec.submodule_search_locations[0]).glob(files)):
        arguments |= _fields_in(source, *classes)
    taken = {
        name: replace(argument, refused=refused.get(name, ""))
        for name, argument in arguments.items()
        if not any(fnmatchcase(name, pattern) for pattern in left_out)
    }
    return {**taken, **added} if arguments else None


def _fields_in(source: Path, *classes: str) -> dict[str, Argument]:
    """Return the public annotated fields of classes in a file, inherited fields included; of all without names.

    A class or a base that the file does not define has no fields.
    """
    defined = {node.name: node for node in _parsed(source).body if isinstance(node, ast.ClassDef)}
    arguments: dict[str, Argument] = {}
    for node in (defined[name] for name in classes or defined if name in defined):
        if bases := [base.id for base in node.bases if isinstance(base, ast.Name)]:
            arguments |= _fields_in(source, *bases)
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        kinds = {field.target.id: field.annotation for field in fields if isinstance(field.target, ast.Name)}
        public = {name: kind for name, kind in kinds.items() if not name.startswith("_")}
        arguments |= {name: Argument(_types(kind), _choices(kind, source) or ()) for name, kind in public.items()}
    return arguments


@cache
def _parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


def _choices(annotation: ast.expr, source: Path) -> tuple[object, ...] | None:
    """Return the values of an annotation in a file that allows a closed set; None where others are valid, too."""
    if isinstance(annotation, ast.Name):
        return _aliased(annotation.id, source)
    if isinstance(annotation, ast.BinOp):
        parts = [annotation.left, annotation.right]
    elif isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Literal":
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    else:
        return None
    values: list[object] = []
    for part in parts:
        # A Literal holds values and other types of values; a union holds types and None.
        found = (part.value,) if isinstance(part, ast.Constant) else _choices(part, source)
        if found is None:
            return None
        values += found
    return tuple(values)


def _aliased(name: str, source: Path) -> tuple[object, ...] | None:
    """Return the values of a type that a file defines, or imports from a file beside its package."""
    for node in _parsed(source).body:
        if isinstance(node, ast.Assign) and name in [getattr(target, "id", "") for target in node.targets]:
            return _choices(node.value, source)
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            place = Path(*str(node.module).split(".")).with_suffix(".py")
            files = [folder / place for folder in source.parents if (folder / place).is_file()]
            return _aliased(name, files[0]) if files else None
    return None


def _types(annotation: ast.expr) -> tuple[type, ...]:
    """Return the JSON types of an annotation; any type where only the engine can judge."""
    if isinstance(annotation, ast.BinOp):
        return _types(annotation.left) + _types(annotation.right)
    if isinstance(annotation, ast.Subscript):
        name = getattr(annotation.value, "id", "")
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name == "Literal":
            return tuple(type(item.value) for item in inner if isinstance(item, ast.Constant))
        if name in METADATA:
            return _types(inner[0])
        if name in ("Union", "Optional"):
            types = tuple(kind for part in inner for kind in _types(part))
            return (*types, type(None)) if name == "Optional" else types
        return JSON_TYPES.get(name, ANY_JSON)
    name = str(annotation.value) if isinstance(annotation, ast.Constant) else getattr(annotation, "id", "")
    return JSON_TYPES.get(name, ANY_JSON)


def json_ready(value: Any) -> Any:
    """Return an engine's setting in JSON's types: a pydantic model as an object, what JSON lacks as text."""
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
