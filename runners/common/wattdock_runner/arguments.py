"""Check engine arguments: names and types that a backend declares, or names that the engine's source declares.

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
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How many valid names an error lists where none is like the name that is wrong.
MOST_NAMES_LISTED = 30


@dataclass(frozen=True)
class Argument:
    """An engine argument that wattdock passes on.

    Attributes:
        types: Its JSON types; empty leaves values to the engine's own checks.
        choices: Its allowed values; empty allows any.
        refused: Why wattdock takes no value though the engine has the argument, and what to do instead; else empty.
    """

    types: tuple[type, ...] = ()
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


def check_engine_args(engine_args: Mapping[str, object], declared: Mapping[str, Argument], engine: str) -> None:
    """Accept engine arguments only if every name is declared and every value has one of the declared types.

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
        is_typed = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        if types and not is_typed:
            wanted = " or ".join(sorted({_json_name(kind) for kind in argument.types}))
            given = _json_name(type(value))
            raise InvalidRequest(f"engine argument {name!r} must be {wanted}, not {given} ({value!r})")
        if argument.choices and value not in argument.choices:
            choices = ", ".join(json.dumps(choice) for choice in argument.choices)
            raise InvalidRequest(f"engine argument {name!r} must be one of {choices}, not {value!r}")


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
    body = ast.parse(source.read_text(encoding="utf-8")).body
    defined = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    arguments: dict[str, Argument] = {}
    for node in (defined[name] for name in classes or defined if name in defined):
        if bases := [base.id for base in node.bases if isinstance(base, ast.Name)]:
            arguments |= _fields_in(source, *bases)
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        names = [field.target.id for field in fields if isinstance(field.target, ast.Name)]
        arguments |= {name: Argument() for name in names if not name.startswith("_")}
    return arguments


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
