"""Figures of which one may be unknown: what is made of them is then unknown too, and never a part of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
Number = TypeVar("Number", int, float)


def all_known(values: Iterable[T | None]) -> list[T] | None:
    """Return the values; None where one of them is."""
    given = list(values)
    known = [value for value in given if value is not None]
    return known if len(known) == len(given) else None


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """Return the sum, 0 of nothing; None where one of the values is."""
    known = all_known(values)
    return None if known is None else sum(known)
