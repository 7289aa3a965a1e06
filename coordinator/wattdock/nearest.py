"""The name that somebody meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# As difflib's ratio. Names of models and GPUs are long, and people shorten them.
ALIKE = 0.4


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the name most like `given`, in either case, or None where none is like it."""
    near = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=ALIKE)
    return near[0] if near else None
