"""Figures in words, the same on a page, on paper and in tables. Pure."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.report.points import Figure

NOTHING = "–"
# An engine's settings can be thousands of characters that differ in a folder's name.
LONG, LEAD = 100, 30


def number(value: float | None, form: str = ".4g") -> str:
    """Return a number in a format, or a dash for what was not measured."""
    return NOTHING if value is None else format(value, form)


def interval_text(mean: float, interval: tuple[float, float] | None, form: str, half_form: str) -> str:
    """Return "0.0530 ± 0.0009", or "0.05 [0, 0.14]" of an interval that ends at 0; the mean alone without one."""
    if interval is None:
        return format(mean, form)
    low, high = interval
    return f"{mean:{form}} ± {high - mean:{half_form}}" if low > 0 else f"{mean:{form}} [0, {high:{form}}]"


def figure_text(figure: Figure | None, form: str = ".4g") -> str:
    """Return "0.0530 [0.0521, 0.0539]", marked where the interval is of timing alone."""
    if figure is None:
        return NOTHING
    if figure.low is None or figure.high is None:
        return format(figure.value, form)
    only = " timing only" if figure.covers == "timing" else ""
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]{only}"


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
