"""Nested settings under dotted names. Pure; knows no setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def dotted(nested: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf under its name, "workload.batch_size"; an empty mapping is a leaf, too.

    Args:
        within: What the names begin with, its dot included.
    """
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
