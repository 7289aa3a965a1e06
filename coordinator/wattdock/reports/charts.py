"""Every chart, defined once for the page, for papers and for pictures: a function from results to an Altair chart.

A new chart is one more function in `CHARTS`. Its description is the note above it on the page.
Sizes, fonts and colours of text belong to whoever renders it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import altair as alt

from wattdock.analysis import statistics
from wattdock.errors import Cause, ConfigError
from wattdock.reports.cells import marked
from wattdock.reports.chart_data import efficient, pareto_front, points_of, timelines, why_no_joules
from wattdock.reports.encodings import (
    DASHES,
    NOT_USED,
    Chart,
    chart_of,
    disturbed_signs,
    interval_bars,
    line_pattern,
    quantity,
    series_channels,
    series_name,
    shared_axis,
    spans_decades,
    tooltip,
    with_ends,
    wrapped,
    zoom,
)
from wattdock.reports.scaling import SINGLE_GPU, scale
from wattdock.reports.timeline_chart import TimelineDrawing, timeline_chart
from wattdock.reports.wording import boundaries, quantity_text
from wattdock.store import COLUMNS
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from wattdock.imported import Imported
    from wattdock.reports.chart_data import Point
    from wattdock.reports.encodings import Rows
    from wattdock.store import StoredResult

__all__ = ["CHARTS", "Chart", "chart"]

SCORE = COLUMNS["score"].heading
# Column that says whether no other result of the same work is better in both speed and cost.
UNBEATEN = "unbeaten"
# More results than these are a wall of bars; the tables say the same.
MOST_ROWS = 120
# Series of rows that others published, the most that a legend names.
MOST_SERIES = 6
ROW_HEIGHT = 26
# Names of results are wrapped at so many characters; a line of them takes so many pixels.
NAME_WIDTH, LINE_HEIGHT = 26, 12


# A figure over a quantity: its label, its series, the quantity, joules per unit of work and units per second.
Mark: TypeAlias = tuple[str, tuple[str, str], int, statistics.Figure | None, statistics.Figure | None]


def intervals(points: Sequence[Point]) -> Chart:
    """Return each result's figure with its interval: joules per token, or tokens/s where no result has joules."""
    joules, unit = _axes(points)
    name, drawn_quantity = "tokens_per_s", statistics.SPEED
    if any(point.j_per_token for point in points):
        unit, name, drawn_quantity = joules, "j_per_token", statistics.ENERGY
    drawn_points = [point for point in points if getattr(point, name)]
    _require(drawn_points, "no result has a figure")
    if (count := len(drawn_points)) > MOST_ROWS:
        what = f"nothing to draw: {count} results are too many for one chart, {MOST_ROWS} the most"
        raise ConfigError(what, cause=Cause.TOO_LARGE)
    rows = [_identity(point) | with_ends(unit, getattr(point, name)) for point in drawn_points]
    restarts: Rows = [
        {"experiment": point.label, "restart": number, unit: value}
        for point in drawn_points
        if len(values := point.result.restarts(drawn_quantity).values) > 1
        for number, value in enumerate(values, 1)
    ]
    # From 0 on, intervals of half a percent and differences between boards are invisible.
    ends = {value for row in (*rows, *restarts) for name, value in row.items() if name.startswith(unit)} - {None}
    title = unit if (is_from_0 := len(ends) == 1) else f"{unit}, not from 0"
    scale = alt.Scale(zero=is_from_0, padding=6)
    x = alt.X(unit, type="quantitative", title=title, scale=scale, axis=alt.Axis(titleAnchor="end"))
    y, height = _names(drawn_points)
    base = chart_of(rows).encode(y=y)
    strokes = chart_of(restarts).mark_tick(color=NOT_USED, thickness=1.2, size=ROW_HEIGHT / 2)
    marks = alt.layer(
        *([strokes.encode(x=x, y=y)] if restarts else []),
        *interval_bars(base, "x", unit, title),
        _dots(base, [_series(point) for point in drawn_points]).encode(x=x),
        data=alt.InlineData(values=tuple(rows)),
    )
    return marks.properties(
        height=height,
        description="Strokes are restarts. Bars are 95 % intervals, of joules from the uncertainty budget, of speeds "
        "from how restarts differ; fewer than three are too few for one. Hollow: may not be published.",
    )


def pareto(points: Sequence[Point], beside: Sequence[Imported] = ()) -> Chart:
    """Return joules per output token against tokens per second, with the front of each work.

    Args:
        beside: Rows that others published, drawn without intervals and on no front.

    Raises:
        ConfigError: No result has joules, or rows of others stand beside a command's.
    """
    drawn_points = [point for point in points if point.j_per_token and point.tokens_per_s]
    _require(drawn_points, f"no result has joules ({why_no_joules(points)})")

    unit, speed = _axes(points)
    unbeaten = pareto_front(drawn_points)
    rows = [
        _identity(point)
        | with_ends(speed, point.tokens_per_s)
        | with_ends(unit, point.j_per_token)
        | {UNBEATEN: "yes" if point.label in unbeaten else "no"}
        for point in drawn_points
    ]
    imported = [row for row in beside if row.output_tokens_per_s and row.joules_per_token]
    _require(imported or not beside, "no row of others tells both joules and speed")
    works = {point.work for point in drawn_points}
    # Figures of different work are not to be taken for one series'.
    of_work = 1 < len(works) <= MOST_SERIES
    own = [
        (backend, f"{other}, {point.lengths}" if of_work else other)
        for point in drawn_points
        for backend, other in [_series(point)]
    ]
    for drawn, of_point in zip(rows, own, strict=True):
        drawn["series"] = series_name(*of_point)
    series = [*own, *_origins(imported)]
    # Own results are drawn above them.
    rows[:0] = [
        {"experiment": row.link, "series": series_name(*of_row), "work": row.model, "publishable": "no"}
        | with_ends(speed, statistics.Figure(row.output_tokens_per_s or 0.0))
        | with_ends(unit, statistics.Figure(row.joules_per_token or 0.0))
        | {UNBEATEN: "no"}
        for row, of_row in zip(imported, series[len(drawn_points) :], strict=True)
    ]
    dash = alt.StrokeDash("work", type="nominal", legend=None, scale=alt.Scale(range=[*DASHES[2:], *DASHES[:2]]))
    drawn = _against(speed, unit, rows, series, dash=dash)
    return drawn.properties(
        params=[zoom(["x", "y"], ["dots"])],
        description="Bars are 95 % intervals; lower right is better. A grey line joins what no "
        "other finished result of its work (model, prompts, lengths) beats in both. Hollow: may not be published."
        + f" Results are of {len(works)} different works, whose figures are no better or worse than each other's."
        * (len(works) > 1),
    )


def frontier(points: Sequence[Point]) -> Chart:
    """Return joules per correct answer and per output token against the score, with what nothing is shown to beat."""
    drawn_points = [point for point in points if point.score and point.j_per_correct and point.j_per_token]
    _require(drawn_points, f"no result has both scores (quality:) and joules ({why_no_joules(points)})")
    (unit, _), panels = _axes(points), list[Chart]()
    costs: dict[str, Callable[[Point], statistics.Figure | None]] = {
        COLUMNS["energy_per_correct_j"].heading: lambda point: point.j_per_correct,
        unit: lambda point: point.j_per_token,
    }
    few = len(drawn_points) <= MOST_SERIES
    # A decision needs the names of what stands on the line.
    series = [(point.row.backend, point.label) if few else _series(point) for point in drawn_points]
    for name, cost in costs.items():
        unbeaten = efficient(drawn_points, cost)
        rows = [
            _identity(point)
            | {"series": series_name(*of_point)}
            | with_ends(SCORE, point.score)
            | with_ends(name, cost(point))
            | {UNBEATEN: "yes" if point.label in unbeaten else "no"}
            for point, of_point in zip(drawn_points, series, strict=True)
        ]
        panels.append(_against(SCORE, name, rows, series, dash=alt.value([1, 0]), name=f"dots{len(panels)}"))
    return alt.vconcat(*panels).properties(
        description="Lower right is better. A line joins the results that no other is shown to beat: one that is as "
        "good in both, and whose interval parts from theirs in one. Hollow: may not be published."
    )


def _against(
    x_name: str, y_name: str, rows: Rows, series: Sequence[tuple[str, str]], *, dash: Any, name: str = "dots"
) -> Chart:
    """Return one figure against another, each with its interval, and a line through what is unbeaten."""
    # A score is a share of 1.
    x = quantity(alt.X, x_name, rows, log=x_name != SCORE and spans_decades(rows, x_name))
    base = chart_of(rows).encode(x=x, y=quantity(alt.Y, y_name, rows, log=spans_decades(rows, y_name)))
    front = base.transform_filter(f"datum.{UNBEATEN} == 'yes'").mark_line(color=NOT_USED, strokeWidth=1.2)
    bars = [*interval_bars(base, "y", y_name), *interval_bars(base, "x", x_name)]
    dots = _dots(base, series).properties(name=name)
    layers = [front.encode(strokeDash=dash), *bars, dots, *disturbed_signs(base)]
    return alt.layer(*layers, data=alt.InlineData(values=tuple(rows)))


def scaling(points: Sequence[Point]) -> Chart:
    """Return how cost and speed change with the number of GPUs: the curves of `wattdock scaling`, and no other."""
    found = scale([point.stored for point in points])
    drawn = []
    # A legend has room for the parts of settings' names that differ.
    parts = [setting.name.split(", ") for setting in found.settings]
    names = [", ".join(part for part in own if any(part not in other for other in parts)) for own in parts]
    for at, setting in enumerate(found.settings):
        name = f"{names[at]} setting {at + 1}".strip() if names.count(names[at]) > 1 else names[at]
        backend = setting.points[0].stored[0].result.config.backend
        for kind, curve in (setting.curves or {SINGLE_GPU: [*setting.points]}).items():
            series = backend, f"{name}, {kind}".removeprefix(f"{backend} ").removeprefix(", ")
            for split in curve:
                label = marked(f"{name}, {split.split}".removeprefix(", "), split.disturbed)
                drawn.append((label, series, split.gpus, split.j_per_token, split.tokens_per_s))
    alone = all(len(setting.points) == 1 for setting in found.settings)
    used = [point for point in points if point.stored.folder.name not in found.left_out]
    left_out = listed([f"{name} ({reason})" for name, reason in found.left_out.items()])
    note = f"Lines join splits of one kind, as `wattdock scaling` does{f'; left out: {left_out}' * bool(left_out)}."
    return _over(drawn, used, "GPUs used", fewest=2 if alone else 1).properties(description=note)


def batch(points: Sequence[Point]) -> Chart:
    """Return how cost and speed change with the number of requests in flight."""
    measured = [point for point in points if point.tokens_per_s]
    models = len({point.row.model for point in measured}) > 1
    drawn = [
        (point.label, (point.row.backend, other), point.row.batch_size or 0, point.j_per_token, point.tokens_per_s)
        for point in measured
        for other in [f"{point.row.model}, {point.gpus_text}" if models else point.gpus_text]
    ]
    return _over(drawn, measured, "requests in flight").properties(
        description="Lines join results of one model and backend that differ in this quantity; other settings may "
        "differ too, which the summary tells."
    )


def timeline(points: Sequence[Point]) -> Chart:
    """Return power and tokens over time of the first restart of one result.

    Raises:
        ConfigError: These are several results, or no timeline is stored with this one.
        StoreError: The timeline cannot be read.
    """
    if len(points) != 1:
        places = listed([point.stored.place for point in points])
        raise ConfigError(f"a timeline shows one result, these are {len(points)}", f"name one of {places}")
    restarts = timelines(points[0].stored, points=20_000)
    if not restarts or not any(restarts[0].lines.values()):
        raise ConfigError("nothing to draw: no timeline is stored with this result")
    drawing = TimelineDrawing.of(restarts[0], points[0])
    return timeline_chart(drawing.look, drawing.ends).properties(datasets=drawing.datasets)


class Kind(NamedTuple):
    """A kind of chart.

    Attributes:
        draw: Raises ConfigError where the results have nothing to draw.
        on_page: Whether a report shows it, of all its results.
    """

    title: str
    draw: Callable[[Sequence[Point]], Chart]
    on_page: bool = True


# Every kind of chart that `plot`, notebooks and reports draw.
CHARTS: Mapping[str, Kind] = {
    "intervals": Kind("Figures with intervals", intervals),
    "pareto": Kind("Energy against throughput", pareto),
    "frontier": Kind("Energy against quality", frontier),
    "scaling": Kind("Scaling over GPUs", scaling),
    "batch": Kind("Scaling over the batch size", batch),
    "timeline": Kind("Power and tokens over time", timeline, on_page=False),
}


def chart(kind: str, results: Sequence[StoredResult], beside: Sequence[Imported] = ()) -> Chart:
    """Return one kind of chart of results, and of rows that others published beside them.

    Raises:
        ConfigError: There is no such kind, these results have nothing to draw of it, or it shows no rows of others.
    """
    if beside and (kind != "pareto" or any(stored.row.unit for stored in results)):
        raise ConfigError(f"{kind}: others' rows tell joules and speed of output tokens only", "plot pareto of engines")
    if kind not in CHARTS:
        raise ConfigError(f"unknown kind {kind!r}", f"valid: {', '.join(CHARTS)}", cause=Cause.UNKNOWN_SETTING)
    return pareto(points_of(results), beside) if beside else CHARTS[kind].draw(points_of(results))


def _over(marks: Sequence[Mark], points: Sequence[Point], unit: str, *, fewest: int = 2) -> Chart:
    """Return joules per token above tokens per second, or the latter alone, over one quantity.

    Args:
        points: The results behind the marks.
        fewest: Values of the quantity below which there is nothing to draw.
    """
    marks = sorted(marks, key=lambda mark: mark[2])
    counts = sorted({at for _, _, at, *_ in marks})
    if len(counts) < fewest:
        raise ConfigError(f"nothing to draw: all results have the same number of {unit}", cause=Cause.EMPTY)
    joules, speed = _axes(points)
    rows: Rows = [
        {"experiment": label, "series": series_name(*series), unit: at}
        | with_ends(joules, joules_at)
        | with_ends(speed, speed_at)
        for label, series, at, joules_at, speed_at in marks
    ]
    channels = series_channels([series for _, series, *_ in marks])
    has_joules = any(joules_at for *_, joules_at, _ in marks)
    panels = []
    for figure in [joules, speed] if has_joules else [speed]:
        axis = shared_axis(unit, last=figure is speed, values=counts, format="d", grid=False)
        base = chart_of([row for row in rows if row.get(figure) is not None]).encode(
            x=alt.X(unit, type="quantitative", axis=axis, scale=alt.Scale(type="log", base=2, padding=12)),
            y=quantity(alt.Y, figure, rows, log=spans_decades(rows, figure)),
            color=channels["color"],
            tooltip=tooltip(rows),
        )
        lines = base.mark_line(strokeWidth=1.3).encode(strokeDash=channels["strokeDash"])
        dots = base.mark_point().encode(shape=channels["shape"])
        panels.append(alt.layer(*interval_bars(base, "y", figure), lines, dots, *disturbed_signs(base)))
    return alt.vconcat(*panels, data=alt.InlineData(values=tuple(rows)), bounds="flush")


def _axes(points: Sequence[Point]) -> tuple[str, str]:
    """Return the axes' names of joules per unit of work and of units per second; refuse several units on one axis."""
    if len(units := dict.fromkeys(point.result.config.unit for point in points)) > 1:
        raise ConfigError(f"nothing to draw on one axis: work in {' and in '.join(units)}", "name results of one unit")
    unit, covered = "".join(units), " and ".join(boundaries(point.result for point in points))
    return f"{quantity_text(statistics.ENERGY, unit)} ({covered})", quantity_text(statistics.SPEED, unit)


def _dots(base: Chart, series: Sequence[tuple[str, str]]) -> Chart:
    """Return a marker per result: colour by backend, shape by GPUs and model; hollow may not be published."""
    channels = series_channels(series)
    fill = alt.condition("datum.publishable == 'yes'", channels["fill"], alt.value("transparent"))
    marks = {"color": channels["color"], "shape": channels["shape"], "tooltip": tooltip(base.data.values)}
    return base.mark_point().encode(**marks, fill=fill)


def _identity(point: Point) -> dict[str, Any]:
    verdict = "not judged" if point.row.publishable is None else "yes" if point.row.publishable else "no"
    series = series_name(*_series(point))
    return {"experiment": point.label, "series": series, "work": point.work, "publishable": verdict}


def _series(point: Point) -> tuple[str, str]:
    return point.row.backend, f"{point.row.model}, {point.gpus_text}"


def _origins(rows: Sequence[Imported]) -> list[tuple[str, str]]:
    """Return the series of each row that others published; of their models and GPUs only where a legend holds them."""
    named = [", ".join(filter(None, (row.model or row.workload, row.gpus))) for row in rows]
    few = len(set(named)) <= MOST_SERIES
    return [(f"imported: {row.origin}", name if few else "") for row, name in zip(rows, named, strict=True)]


def _names(points: Sequence[Point]) -> tuple[alt.Y, alt.Step]:
    """Return the axis of results' names and rows high enough for the longest of them, which takes several lines."""
    lines = max(len(re.findall(line_pattern(NAME_WIDTH), point.label)) for point in points)
    # A label's first line stands in the middle of its row, the others below.
    offset = -(lines - 1) * LINE_HEIGHT / 2
    axis = alt.Axis(labelExpr=wrapped(NAME_WIDTH), labelLimit=0, labelLineHeight=LINE_HEIGHT, labelOffset=offset)
    # Without a domain, the first layer's data would set the order, and these may lack results.
    order = alt.Scale(domain=[point.label for point in points])
    y = alt.Y("experiment", type="nominal", scale=order, title=None, axis=axis)
    return y, alt.Step(max(ROW_HEIGHT, lines * LINE_HEIGHT + 8))


def _require(points: object, otherwise: str) -> None:
    if not points:
        raise ConfigError(f"nothing to draw: {otherwise}", cause=Cause.EMPTY)
