"""Figures in words, the same on a page, on paper and in tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import Fallback

NOTHING = "–"
# An engine's settings can be thousands of characters that differ in a folder's name.
LONG, LEAD = 100, 30


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval.

    Attributes:
        low, high: None without an interval.
        covers: What the interval speaks for: "restarts", or "timing" where there was one restart only.
    """

    value: float
    low: float | None = None
    high: float | None = None
    covers: str | None = None


def number(value: float | None, form: str = ".4g") -> str:
    """Return a number in a format, or a dash for what was not measured."""
    return NOTHING if value is None else format(value, form)


def interval_text(value: float, interval: tuple[float, float] | None, form: str) -> str:
    """Return "0.13501 ± 0.00055", both to the half width's second digit; "0.05 [0, 0.14]" where it ends at 0.

    Args:
        form: Of the value where no half width says how far it is known.
    """
    if interval is None:
        return format(value, form)
    low, high = interval
    half = (high - low) / 2
    if low <= 0 or not half:
        return f"{value:{form}} [{low:{form}}, {high:{form}}]"
    places = max(0, 1 - floor(log10(half)))
    return f"{value:,.{places}f} ± {half:,.{places}f}"


def figure_text(figure: Figure | None, form: str = ".4g") -> str:
    """Return "0.0530 [0.0521, 0.0539]", marked where the interval is of timing alone."""
    if figure is None:
        return NOTHING
    if figure.low is None or figure.high is None:
        return format(figure.value, form)
    only = " timing only" if figure.covers == "timing" else ""
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]{only}"


def fallback_text(found: Fallback) -> str:
    """Return what a fallback changed, and that it answers no other question than its own."""
    return f"{found.change}; {found.fallback_of[:8]} was asked for and failed, this does not stand for it"


def seconds_text(value_s: float | None) -> str:
    """Return milliseconds below one second, else seconds."""
    if value_s is None:
        return NOTHING
    return f"{value_s * 1e3:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"


def where_apart(texts: Sequence[str]) -> list[str]:
    """Return texts whole, or where one is long, each cut to the first place where they are not all the same."""
    if max(map(len, texts), default=0) <= LONG:
        return list(texts)
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))
    start = max(0, alike - LEAD)
    cut = slice(start, start + LONG)
    return [("…" if start else "") + one[cut] + ("…" if len(one) > cut.stop else "") for one in texts]
