"""What charts have in common: colours, shapes and dashes of series, axes, bars of intervals, tooltips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import altair as alt

from wattdock.analysis import statistics
from wattdock.reports.cells import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Rows: TypeAlias = list[dict[str, Any]]
# Altair types too loosely what its methods return.
Chart: TypeAlias = Any

# Told apart with every common colour-vision deficiency; without its black and its yellow, which vanish on a dark or a
# light page. Source: Okabe and Ito, Color Universal Design, 2008.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
DASHES = ([1, 0], [6, 3], [2, 2], [6, 2, 2, 2], [10, 3], [10, 3, 2, 3], [1, 4], [8, 2, 2, 2, 2, 2])
# GPUs that were not used and strokes beside figures; the host.
NOT_USED, HOST = "#888888", "#555555"
# How much longer than its largest value an axis is.
MARGIN = 1.04
# Values further apart than this factor are shown on a logarithmic axis.
DECADE = 10
# Names in legends are wrapped at so many characters; in places of so few pixels, which names of results share, earlier.
LEGEND_WIDTH, NARROW_PX, NARROW_WIDTH = 36, 480, 24


def chart_of(rows: Rows) -> Chart:
    """Return a chart of rows without any mark."""
    # Altair copies lists at each step, but not what stands in a tuple.
    return alt.Chart(alt.InlineData(values=tuple(rows)))


def series_name(backend: str, other: str) -> str:
    """Return the name of a series: its backend, and what else tells it from others."""
    return ", ".join(filter(None, (backend, other)))


def series_channels(series: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return colour, fill, shape and dash channels that tell these series apart, up to 36 of them.

    Several backends have a colour each, and everything else a shape; where shapes repeat, the colour moves on.

    Args:
        series: Each as `series_name` takes it.
    """
    backends, others = (list(dict.fromkeys(part)) for part in zip(*series, strict=True))
    colours, shapes, dashes = {}, {}, {}
    for backend, other in series:
        name, at = series_name(backend, other), others.index(other)
        turn = backends.index(backend) + at // len(SHAPES) * len(backends)
        mark = at + (at // len(SHAPES) if len(backends) == 1 else 0)
        colours[name] = PALETTE[(at if len(backends) == 1 else turn) % len(PALETTE)]
        shapes[name], dashes[name] = SHAPES[mark % len(SHAPES)], DASHES[mark % len(DASHES)]
    return {
        "color": scaled(alt.Color, "series", colours),
        "fill": scaled(alt.Fill, "series", colours),
        "shape": scaled(alt.Shape, "series", shapes),
        "strokeDash": scaled(alt.StrokeDash, "series", dashes),
    }


def scaled(channel: Callable[..., Any], name: str, marks: Mapping[str, Any]) -> Any:
    """Return a channel of names, each with its colour, shape or dash, in the order of a legend without a title."""
    scale = alt.Scale(domain=list(marks), range=list(marks.values()))
    lines = f"containerSize()[0] < {NARROW_PX} ? {wrapped(NARROW_WIDTH)} : {wrapped(LEGEND_WIDTH)}"
    return channel(name, type="nominal", sort=None, title=None, scale=scale, legend=alt.Legend(labelExpr=lines))


def line_pattern(width: int) -> str:
    """Return the regular expression of a line of so many characters at most: to a space, a sign, or cut."""
    return rf".{{1,{width}}}(?:\s+|$)|.{{1,{width - 1}}}[-/_.=,]|.{{1,{width}}}"


def wrapped(width: int) -> str:
    """Return the Vega expression of a label in lines of at most `width` characters."""
    pattern = line_pattern(width).replace("/", r"\/")
    return rf"split(trim(replace(datum.label, /({pattern})/g, '$1\n')), /\s*\n/)"


def with_ends(unit: str, figure: statistics.Figure | None) -> dict[str, float | None]:
    """Return a figure and the ends of its interval, to six digits, under the names that a chart's rows have."""
    ends = (None if value is None else float(f"{value:.6g}") for value in statistics.value_and_ends(figure))
    return dict(zip((unit, f"{unit} low", f"{unit} high"), ends, strict=True))


def interval_bars(base: Chart, axis: Literal["x", "y"], unit: str, title: str = "") -> list[Chart]:
    """Return the bars of intervals; none where no figure has one; layers' axes need one title."""
    if all(row.get(f"{unit} low") is None for row in base.data.values):
        return []
    low = {"x": alt.X, "y": alt.Y}[axis](f"{unit} low", type="quantitative", title=title or unit)
    rules = base.transform_filter(f"isValid(datum['{unit} low'])").mark_rule(strokeWidth=1.2, color=NOT_USED)
    return [rules.encode(**{axis: low, f"{axis}2": f"{unit} high"})]


def disturbed_signs(base: Chart) -> list[Chart]:
    """Return the sign beside each marker of a result that others disturbed."""
    if not any(row.get("experiment", "").endswith(MARK) for row in base.data.values):
        return []
    return [base.transform_filter(f"test(/{MARK}$/, datum.experiment)").mark_text(text=MARK, dx=7, dy=-6)]


def quantity(channel: type[alt.X | alt.Y], unit: str, rows: Rows, *, log: bool) -> Any:
    """Return the axis of a quantity: logarithmic, or from 0 to behind all marks, which its end would cut."""
    most = max((row.get(f"{unit} high") or row[unit] or 0 for row in rows), default=0) * MARGIN
    scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=True, domainMax=most or alt.Undefined)
    # The last label moves inwards, towards the one before it.
    return channel(unit, type="quantitative", scale=scale, axis=alt.Axis(labelSeparation=6))


def spans_decades(rows: Rows, unit: str) -> bool:
    """Return whether values are too far apart for a linear axis, and a logarithmic one can show them."""
    values = [row[unit] for row in rows if row[unit] is not None]
    return bool(values) and 0 < min(values) < max(values) / DECADE


def shared_axis(title: str, *, last: bool, **options: Any) -> alt.Axis:
    """Return the horizontal axis of one of several panels above each other; the last panel names it."""
    return alt.Axis(title=title if last else None, labels=last, ticks=last, **options)


def tooltip(rows: Rows) -> list[alt.Tooltip]:
    """Return the columns that a tooltip shows; intervals are drawn already."""
    names = [name for name in rows[0] if name != "series" and not name.endswith((" low", " high"))]
    numbers = {name for name in names if any(isinstance(row[name], float) for row in rows)}
    return tooltip_of({name: ",.4g" if name in numbers else "" for name in names})


def tooltip_of(forms: Mapping[str, str]) -> list[alt.Tooltip]:
    """Return a tooltip of these columns: numbers in their formats, texts without one."""
    return [
        alt.Tooltip(name, type="quantitative", format=form) if form else alt.Tooltip(name, type="nominal")
        for name, form in forms.items()
    ]


def zoom(encodings: list[Literal["x", "y"]], views: list[str]) -> alt.TopLevelSelectionParameter:
    """Return: drag to move, Ctrl and wheel to zoom, double click to go back; a plain wheel scrolls the page."""
    select = alt.IntervalSelectionConfig(type="interval", encodings=encodings, zoom="wheel![event.ctrlKey]")
    return alt.TopLevelSelectionParameter(name="zoom", select=select, bind="scales", views=views)
