"""Turns values into JSON text; the one place from which JSON leaves for a terminal, a file or a program.

JSON has no infinity and no not-a-number. They are written as the texts "Infinity", "-Infinity" and "NaN": a reader that
expects a number refuses them, where `null` would pass for "not measured" and a bare `NaN` for nothing that is JSON.

Source: RFC 8259, section 6; ProtoJSON writes them in the same way.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

COMPACT = (",", ":")


def json_text(
    value: Any,
    *,
    indent: int | None = None,
    ascii_only: bool = True,
    separators: tuple[str, str] | None = None,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return `value` as JSON that every reader of JSON takes.

    Args:
        value: What `json.dumps` takes, or a pydantic model, whose fields get the names that are stored.
        ascii_only: Write other characters as escapes.
        separators: Between items, and between a key and its value; `COMPACT` for the shortest.
        default: Makes something of what JSON has no form for.
    """
    # Asked for by name: pydantic takes a tenth of a second to import, and few who write JSON need it.
    plain = value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value
    how: Any = {"indent": indent, "ensure_ascii": ascii_only, "separators": separators, "default": default}
    try:
        return json.dumps(plain, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(plain), allow_nan=False, **how)


def print_json(value: Any, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """Print `value` as `json_text` writes it, and let a reader have it at once."""
    sys.stdout.write(json_text(value, indent=indent, default=default) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
