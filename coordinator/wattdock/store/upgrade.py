"""Bring a stored result of an older schema version to this one's form. Pure.

One function per version; each knows its own step only. The files stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]


def _from_1(document: Document) -> Document:
    """Version 2 says which study a result belongs to."""
    return document | {"study": None}


def _from_2(document: Document) -> Document:
    """Version 3 says how its figures were come by, and what the GPUs went through; nobody recorded that before."""
    return document | {"procedure": None}


# Version → what makes the next one of it.
UPGRADES: dict[int, Callable[[Document], Document]] = {1: _from_1, 2: _from_2}


def upgraded(document: Document) -> Document:
    """Return `document` in the newest form that can be reached from its version."""
    while step := UPGRADES.get(document.get("schema_version", 0)):
        document = step(document) | {"schema_version": document["schema_version"] + 1}
    return document
