"""Check engine arguments against the names and types that a backend declares; pure."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# As many names as a line of a terminal or two can take.
FEW = 30


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
    return sorted(name for name, one in known.items() if not one.refused)


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
