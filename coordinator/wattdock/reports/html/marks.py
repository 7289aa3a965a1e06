"""What a result looks like in a chart: its marker, its interval, and what it says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.reports.html.chart import Spec, plain, short
from wattdock.reports.words import figure_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.reports.points import Point
    from wattdock.reports.style import Style
    from wattdock.reports.words import Figure


def dots(name: str, own: Sequence[Point], style: Style) -> Spec:
    """Return a series of markers; hollow is what may not be published."""
    colour, look = style
    symbols = [look.marker if one.publishable else f"{look.marker}-open" for one in own]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "marker": {"color": colour, "symbol": symbols, "size": 9, "line": {"width": 1.5, "color": colour}},
        "text": [_hover(one) for one in own],
        "hovertemplate": "%{text}<extra></extra>",
    }


def on_axis(axis: str, figures: Sequence[Figure | None]) -> Spec:
    """Return figures on the axis "x" or "y" with their error bars; a figure without an interval has none."""
    known = [one for one in figures if one]
    ends = {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if one.high is None else short(max(one.high - one.value, 0.0)) for one in known],
        "arrayminus": [0.0 if one.low is None else short(max(one.value - one.low, 0.0)) for one in known],
        "thickness": 1.2,
        "width": 3,
    }
    return {axis: [short(one.value) for one in known], f"error_{axis}": ends}


def _hover(one: Point) -> str:
    """Return what a result's marker says when pointed at."""
    verdict = "may be published" if one.publishable else "may not be published"
    cost = f"{figure_text(one.j_per_token)} J per output token" if one.j_per_token else "joules not measured"
    return "<br>".join([plain(one.label), cost, f"{figure_text(one.tokens_per_s, ',.1f')} output tokens/s", verdict])
