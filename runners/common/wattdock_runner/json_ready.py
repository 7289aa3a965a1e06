"""What an engine says of its arguments, in the forms that JSON has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def json_ready(value: Any, simpler: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return `value` as JSON has it; what JSON has no form for as it prints itself.

    Args:
        simpler: Makes a simpler value of an engine's own kinds, and leaves others as they are.
    """
    value = simpler(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): json_ready(item, simpler) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        # Their order is another one in each process.
        return sorted((json_ready(item, simpler) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [json_ready(item, simpler) for item in value]
    return str(value).removeprefix("torch.")
