"""Every chart, defined once for the page, for papers and for pictures: a function from results to an Altair chart.

A new chart is one more function in `CHARTS`. Its data are rows whose names are the columns of the table below the chart
on the page; its description is the note above it. Sizes, fonts and colours of text belong to whoever renders it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import altair as alt

from wattdock.analysis import statistics
from wattdock.errors import Cause, ConfigError
from wattdock.reports.cells import MARK
from wattdock.reports.chart_data import (
    KINDS,
    PHASES,
    pareto_front,
    points_of,
    timelines,
    why_no_joules,
)
from wattdock.store import COLUMNS
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.reports.chart_data import Point, RestartTimeline, Trace
    from wattdock.store import StoredResult

__all__ = ["CHARTS", "Chart", "chart"]

Rows: TypeAlias = list[dict[str, Any]]
# Altair types too loosely what its methods return.
Chart: TypeAlias = Any
# Backend, and what else tells series apart.
Series: TypeAlias = tuple[str, str]

J_PER_TOKEN = f"{COLUMNS['energy_per_output_token_j'].heading} (GPU boards)"
TOKENS_PER_S = COLUMNS["output_tokens_per_s"].heading
# Told apart with every common colour-vision deficiency; without its black and its yellow, which vanish on a dark or a
# light page. Source: Okabe and Ito, Color Universal Design, 2008.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
DASHES = ([1, 0], [6, 3], [2, 2], [6, 2, 2, 2], [10, 3], [10, 3, 2, 3], [1, 4], [8, 2, 2, 2, 2, 2])
NOT_USED, HOST = "#888888", "#555555"
PHASE_COLOURS = dict(
    zip(PHASES, ("#777777", "#009E73", "#BBBBBB", "#E69F00", "#CC79A7", "#0072B2", "#999999", "#D55E00"), strict=True)
)
SPAN_COLOURS = dict(
    zip((*KINDS, "other"), ("#777777", "#56B4E9", "#BBBBBB", "#E69F00", "#009E73", "#CC79A7"), strict=True)
)
# Whether no other result of the same model is better in both speed and cost.
UNBEATEN = "unbeaten"
# More results than these are a wall of bars; the tables say the same.
MOST_ROWS = 120
ROW_HEIGHT = 26
# Names of results are wrapped at so many characters; a line of them takes so many pixels.
NAME_WIDTH, LINE_HEIGHT = 20, 14
NAME = r"split(trim(replace(datum.label, /(.{1,20})(\s+|$)|(.{1,20})/g, '$1$3\n')), '\n')"
DECADE = 10
# Shown before the warm-up and after the last pass.
LEAD_S = 2.0
# A span shorter than this share of the axis has no room for its name.
NAMED_SHARE = 0.04


def intervals(points: Sequence[Point]) -> Chart:
    """Return each result's figure with its interval: joules per token, or tokens/s where no result has joules."""
    unit, of = _main_quantity(points)
    drawn_points = _few_enough([point for point in points if of(point)], "no result has a figure")
    rows = [_identity(point) | _with_ends(unit, of(point)) for point in drawn_points]
    x = alt.X(unit, type="quantitative", scale=alt.Scale(zero=True))
    y, height = _names(drawn_points)
    base = _base(rows).encode(y=y)
    restarts = _base(_of_restarts(drawn_points, unit)).mark_tick(color=NOT_USED, thickness=1.2, size=ROW_HEIGHT / 2)
    marks = alt.layer(
        *([restarts.encode(x=x, y=y)] if restarts.data.values else []),
        *_errors(base, "x", unit),
        _dots(base, drawn_points).encode(x=x),
        *(sign.encode(x=x) for sign in _signs(base)),
        data=alt.InlineData(values=tuple(rows)),
    )
    return marks.properties(
        height=height,
        description="Strokes are restarts. Bars are 95 % intervals from how they differ; fewer than three are too few "
        "for one. Hollow: may not be published.",
    )


def _of_restarts(points: Sequence[Point], unit: str) -> Rows:
    """Return each restart's figure, where it is the one that is drawn and there are several."""
    quantity = {J_PER_TOKEN: statistics.ENERGY, TOKENS_PER_S: statistics.SPEED}[unit]
    return [
        {"experiment": point.label, "restart": number, unit: value}
        for point in points
        if (spread := point.result.statistics) and spread.quantity == quantity and len(spread.per_restart) > 1
        for number, value in enumerate(spread.per_restart, 1)
    ]


def pareto(points: Sequence[Point]) -> Chart:
    """Return joules per output token against tokens per second, with the front of each model."""
    drawn_points = [point for point in points if point.j_per_token and point.tokens_per_s]
    _require(drawn_points, f"no result has joules ({why_no_joules(points)})")

    unbeaten = {point.label for point in pareto_front(drawn_points)}
    rows = [
        _identity(point)
        | _with_ends(TOKENS_PER_S, point.tokens_per_s)
        | _with_ends(J_PER_TOKEN, point.j_per_token)
        | {UNBEATEN: "yes" if point.label in unbeaten else "no"}
        for point in drawn_points
    ]
    log = _spans_decades(rows, J_PER_TOKEN)
    x, y = _quantity(alt.X, TOKENS_PER_S, log=log), _quantity(alt.Y, J_PER_TOKEN, log=log)
    base = _base(rows).encode(x=x, y=y)
    dash = alt.StrokeDash("model", type="nominal", legend=None, scale=alt.Scale(range=[*DASHES[2:], *DASHES[:2]]))
    front = base.transform_filter(f"datum.{UNBEATEN} == 'yes'").mark_line(color=NOT_USED, strokeWidth=1.2)
    layers = [front.encode(strokeDash=dash), *_errors(base, "y", J_PER_TOKEN), *_errors(base, "x", TOKENS_PER_S)]
    layers += [_dots(base, drawn_points).properties(name="dots"), *_signs(base)]
    return alt.layer(*layers, data=alt.InlineData(values=tuple(rows)), params=[_zoom(["x", "y"], ["dots"])]).properties(
        description="Each figure is a sum over all passes ÷ a sum; lower right is better. A grey line joins what no "
        "other result of its model beats in both. Hollow: may not be published."
    )


def phases(points: Sequence[Point]) -> Chart:
    """Return where each result's joules went, from launch to its last pass."""
    drawn_points = _few_enough(
        [point for point in points if point.phases], f"no result has joules ({why_no_joules(points)})"
    )
    rows: Rows = [
        {"experiment": point.label, "phase": name, "J": joules, "s": seconds, "mean W": seconds and joules / seconds}
        for point in drawn_points
        for name, (joules, seconds) in point.phases.items()
    ]
    names = {row["phase"] for row in rows}
    phase_names = [*(name for name in PHASES if name in names), *sorted(names - set(PHASES))]
    y, height = _names(drawn_points)
    bars = _base([row | {"order": phase_names.index(row["phase"])} for row in rows]).mark_bar()
    return bars.encode(
        x=alt.X("J", type="quantitative", title="J (GPU boards)"),
        y=y,
        color=_scaled(alt.Color, "phase", {name: PHASE_COLOURS.get(name, HOST) for name in phase_names}),
        order=alt.Order("order", type="quantitative"),
        tooltip=_tooltip(rows),
    ).properties(
        height=height,
        description="Joules of the GPUs used, over all restarts. A figure per token holds the measured passes only: "
        "prefill and decode where requests ran in rounds, else one part. Waits between spans are left out. Results "
        "measured on one loaded model each show its load whole.",
    )


def scaling(points: Sequence[Point]) -> Chart:
    """Return how cost and speed change with the number of GPUs."""
    return _over(
        points, "GPUs used", lambda point: point.row.gpu_count or 0, lambda point: f"batch {point.row.batch_size}"
    )


def batch(points: Sequence[Point]) -> Chart:
    """Return how cost and speed change with the number of requests in flight."""
    return _over(points, "requests in flight", lambda point: point.row.batch_size, lambda point: point.gpus_text)


def timeline(points: Sequence[Point]) -> Chart:
    """Return power and tokens over time of the first restart of one result.

    Raises:
        ConfigError: These are several results, or no timeline is stored with this one.
        StoreError: The timeline cannot be read.
    """
    if len(points) != 1:
        folders = listed([point.stored.folder.name for point in points])
        raise ConfigError(f"a timeline shows one result, these are {len(points)}", f"name one of {folders}")
    restarts = timelines(points[0].stored, points=20_000)
    if not restarts or not restarts[0].has_lines:
        raise ConfigError("nothing to draw: no timeline is stored with this result")
    drawing = TimelineDrawing.of(restarts[0], points[0])
    return timeline_chart(drawing.look, drawing.ends).properties(datasets=drawing.datasets)


# What `plot` and notebooks draw and, except for the timeline, the page shows: title and function by kind.
CHARTS: Mapping[str, tuple[str, Callable[[Sequence[Point]], Chart]]] = {
    "intervals": ("Figures with intervals", intervals),
    "pareto": ("Energy against throughput", pareto),
    "phases": ("Energy by phase", phases),
    "scaling": ("Scaling over GPUs", scaling),
    "batch": ("Scaling over the batch size", batch),
    "timeline": ("Power and tokens over time", timeline),
}


def chart(kind: str, results: Sequence[StoredResult]) -> Chart:
    """Return one kind of chart of results.

    Raises:
        ConfigError: There is no such kind, or these results have nothing to draw of it.
    """
    if kind not in CHARTS:
        valid = ", ".join([*CHARTS, "table"])
        raise ConfigError(f"unknown kind {kind!r}", f"valid: {valid}", cause=Cause.UNKNOWN_SETTING)
    return CHARTS[kind][1](points_of(results))


@dataclass(frozen=True)
class TimelineLook:
    """How restarts are drawn over time; the same for restarts of the same kinds of spans on the same GPUs.

    Attributes:
        lines: Name, colour and dash of each line of power.
        kinds: Of the spans.
        has_readings: Whether a line of power is of readings.
    """

    lines: tuple[tuple[str, str, tuple[int, ...]], ...]
    kinds: tuple[str, ...]
    has_readings: bool
    has_tokens: bool


@dataclass(frozen=True)
class TimelineDrawing:
    """One restart as it is drawn over time.

    Attributes:
        ends: Of the axis of time, seconds.
        datasets: Rows of the spans and of the lines, under the names that the chart has for them.
    """

    look: TimelineLook
    ends: tuple[float, float]
    datasets: dict[str, Rows]

    @classmethod
    def of(cls, restart: RestartTimeline, point: Point) -> TimelineDrawing:
        """Return what is drawn of a restart of this result."""
        measured = [row for row in restart.spans if row["kind"] in ("pass", "warm-up")] or restart.spans
        ends = (measured[0]["begins, s"] - LEAD_S, measured[-1]["begins, s"] + measured[-1]["lasts, s"] + LEAD_S)
        shortest_s = NAMED_SHARE * (ends[1] - ends[0])
        spans = [
            row
            | {"end": row["begins, s"] + row["lasts, s"], "text": row["span"] if row["lasts, s"] > shortest_s else ""}
            for row in restart.spans
        ]
        styles = _power_styles(restart, point)
        tokens = [_line(restart.tokens_per_s, TOKENS_PER_S)] if restart.tokens_per_s else []
        look = TimelineLook(
            lines=tuple((name, shade, tuple(dash)) for name, (_, shade, dash) in styles.items()),
            kinds=tuple(kind for kind in SPAN_COLOURS if any(row["kind"] == kind for row in spans)),
            has_readings=any(trace.source == "reading" for trace, _, _ in styles.values()),
            has_tokens=bool(tokens),
        )
        power = [_line(trace, name) for name, (trace, _, _) in styles.items()]
        return cls(look, ends, {"spans": spans, "power": power, "tokens": tokens})


def timeline_chart(look: TimelineLook, ends: tuple[Any, Any]) -> Chart:
    """Return power per GPU and tokens/s of one restart over time, its spans shaded; without its `datasets`."""
    panels = []
    if look.lines:
        lines = _power_lines(look)
        panels.append(_panel_over_time(look, ends, lines, "power, W", last=not look.has_tokens))
    if look.has_tokens:
        tokens = _over_time("tokens").mark_line(interpolate="step-after", clip=True, strokeWidth=1, color=PALETTE[1])
        panels.append(_panel_over_time(look, ends, tokens, TOKENS_PER_S, last=True))
    return alt.vconcat(*panels, bounds="flush", params=[_zoom(["x"], ["power, W", TOKENS_PER_S])])


def _over(points: Sequence[Point], unit: str, x: Callable[[Point], int], shared: Callable[[Point], str]) -> Chart:
    """Return joules per token above tokens per second, or the latter alone, over one quantity."""
    drawn_points = sorted((point for point in points if point.tokens_per_s), key=x)
    if len({x(point) for point in drawn_points}) < 2:
        raise ConfigError(f"nothing to draw: all results have the same number of {unit}")
    models = len({point.row.model for point in drawn_points}) > 1
    series = [(p.row.backend, f"{p.row.model}, {shared(p)}" if models else shared(p)) for p in drawn_points]
    rows: Rows = [
        {"experiment": p.label, "series": _series_name(of_point), unit: x(p)}
        | _with_ends(J_PER_TOKEN, p.j_per_token)
        | _with_ends(TOKENS_PER_S, p.tokens_per_s)
        for p, of_point in zip(drawn_points, series, strict=True)
    ]
    look = _look(series)
    units = [J_PER_TOKEN, TOKENS_PER_S] if any(point.j_per_token for point in drawn_points) else [TOKENS_PER_S]
    panels = [_line_panel(rows, unit, quantity, look, last=quantity is units[-1]) for quantity in units]
    return alt.vconcat(*panels, data=alt.InlineData(values=tuple(rows)), bounds="flush").properties(
        description="Each figure is a sum over all passes ÷ a sum. Lines join results of one model and backend that "
        "differ in this quantity; other settings may differ too, which the summary tells."
    )


def _line_panel(rows: Rows, x: str, unit: str, look: Mapping[str, Any], *, last: bool) -> Chart:
    counts = sorted({row[x] for row in rows})
    axis = _shared_axis(x, last=last, values=counts, format="d", grid=False)
    base = _base([row for row in rows if row.get(unit) is not None]).encode(
        x=alt.X(x, type="quantitative", axis=axis, scale=alt.Scale(type="log", base=2, padding=12)),
        y=_quantity(alt.Y, unit, log=_spans_decades(rows, unit)),
        color=look["color"],
        tooltip=_tooltip(rows),
    )
    lines = base.mark_line(strokeWidth=1.3).encode(strokeDash=look["strokeDash"])
    return alt.layer(*_errors(base, "y", unit), lines, base.mark_point().encode(shape=look["shape"]), *_signs(base))


def _panel_over_time(look: TimelineLook, ends: tuple[Any, Any], lines: Chart, unit: str, *, last: bool) -> Chart:
    x = alt.X(
        "begins, s",
        type="quantitative",
        axis=_shared_axis("seconds since the first span", last=last),
        scale=alt.Scale(domain=ends),
    )
    base = alt.Chart(alt.NamedData("spans")).encode(x=x)
    fill = _scaled(alt.Fill, "kind", {kind: SPAN_COLOURS[kind] for kind in look.kinds})
    areas = base.mark_rect(opacity=0.22, clip=True).encode(x2="end", fill=fill, tooltip=_tooltip_of(SPAN_COLUMNS))
    texts = base.mark_text(align="left", baseline="top", dx=3, dy=3, clip=True).encode(text="text:N", y=alt.value(0))
    # A line that never changes would else lie on the frame.
    y = alt.Y("value", type="quantitative", title=unit, scale=alt.Scale(zero=True, padding=8))
    over_time = lines.properties(name=unit).encode(x=alt.X("s", type="quantitative"), y=y)
    # Names of spans stand in the first panel only.
    return alt.layer(areas, over_time, *([] if last and look.lines else [texts]))


SPAN_COLUMNS = {"span": "", "begins, s": ".2f", "lasts, s": ".2f", "J (GPUs used)": ",.1f", "mean W": ",.1f"}


def _power_lines(look: TimelineLook) -> Chart:
    interpolate: Any = "linear" if look.has_readings else "step-after"
    lines = _over_time("power").mark_line(interpolate=interpolate, clip=True, strokeWidth=1)
    return lines.encode(
        color=_scaled(alt.Color, "series", {name: colour for name, colour, _ in look.lines}),
        strokeDash=_scaled(alt.StrokeDash, "series", {name: list(dash) for name, _, dash in look.lines}),
    )


def _power_styles(restart: RestartTimeline, point: Point) -> dict[str, tuple[Trace, str, list[int]]]:
    """Return every line of power with its colour and dash: palette for GPUs used, greys for the rest."""
    environment = point.result.environment
    used = environment.gpu_uuids if environment else ()
    groups = (
        ([trace for trace in restart.power_w if trace.name in used], "", PALETTE, 0),
        ([trace for trace in restart.power_w if trace.name not in used], ", not used", (NOT_USED,), 1),
        (restart.host_w, " (host, RAPL)", (HOST,), 1),
    )
    return {
        point.gpu_names.get(trace.name, trace.name) + suffix: (
            trace,
            colours[at % len(colours)],
            list(DASHES[(at // len(colours) + first) % len(DASHES)]),
        )
        for traces, suffix, colours, first in groups
        for at, trace in enumerate(traces)
    }


def _line(trace: Trace, name: str) -> dict[str, Any]:
    """Return a line over time as a row of two lists, a third as long as a row per point.

    A thousandth of a second and a tenth of a watt are more than a screen shows.
    """
    return {
        "series": name,
        "s": [round(at_s, 3) for at_s in trace.at_s.tolist()],
        "value": [None if isnan(value) else round(value, 1) for value in trace.value.tolist()],
    }


def _over_time(dataset: str) -> Chart:
    return alt.Chart(alt.NamedData(dataset)).transform_flatten(["s", "value"])


def _base(rows: Rows) -> Chart:
    # Altair copies lists at each step, but not what stands in a tuple.
    return alt.Chart(alt.InlineData(values=tuple(rows)))


def _dots(base: Chart, points: Sequence[Point]) -> Chart:
    """Return a marker per result: colour by backend, shape by GPUs and model; hollow may not be published."""
    look = _look([_series(point) for point in points])
    fill = alt.condition("datum.publishable == 'yes'", look["fill"], alt.value("transparent"))
    tooltip = _tooltip(base.data.values)
    return base.mark_point().encode(color=look["color"], shape=look["shape"], fill=fill, tooltip=tooltip)


def _signs(base: Chart) -> list[Chart]:
    """Return the sign beside each marker of a result that others disturbed."""
    if not any(row.get("experiment", "").endswith(MARK) for row in base.data.values):
        return []
    return [base.transform_filter(f"test(/{MARK}$/, datum.experiment)").mark_text(text=MARK, dx=7, dy=-6)]


def _look(series: Sequence[Series]) -> dict[str, Any]:
    """Return colour, fill, shape and dash channels that tell these series apart, up to 36 of them.

    Several backends have a colour each, and everything else a shape; where shapes repeat, the colour moves on.
    """
    backends, others = (list(dict.fromkeys(part)) for part in zip(*series, strict=True))
    colours, shapes, dashes = {}, {}, {}
    for backend, other in series:
        name, at = _series_name((backend, other)), others.index(other)
        turn = backends.index(backend) + at // len(SHAPES) * len(backends)
        mark = at + (at // len(SHAPES) if len(backends) == 1 else 0)
        colours[name] = PALETTE[(at if len(backends) == 1 else turn) % len(PALETTE)]
        shapes[name], dashes[name] = SHAPES[mark % len(SHAPES)], DASHES[mark % len(DASHES)]
    return {
        "color": _scaled(alt.Color, "series", colours),
        "fill": _scaled(alt.Fill, "series", colours),
        "shape": _scaled(alt.Shape, "series", shapes),
        "strokeDash": _scaled(alt.StrokeDash, "series", dashes),
    }


def _scaled(channel: Callable[..., Any], name: str, marks: Mapping[str, Any]) -> Any:
    """Return a channel of names, each with its colour, shape or dash, in the order of a legend without a title."""
    scale = alt.Scale(domain=list(marks), range=list(marks.values()))
    return channel(name, type="nominal", sort=None, title=None, scale=scale)


def _with_ends(unit: str, figure: statistics.Figure | None) -> dict[str, float | None]:
    """Return a figure and the ends of its interval, to six digits, under the names that a chart's rows have."""
    ends = (None if value is None else float(f"{value:.6g}") for value in statistics.value_and_ends(figure))
    return dict(zip((unit, f"{unit} low", f"{unit} high"), ends, strict=True))


def _identity(point: Point) -> dict[str, Any]:
    verdict = "not judged" if point.row.publishable is None else "yes" if point.row.publishable else "no"
    series = _series_name(_series(point))
    return {"experiment": point.label, "series": series, "model": point.row.model, "publishable": verdict}


def _series(point: Point) -> Series:
    return point.row.backend, f"{point.row.model}, {point.gpus_text}"


def _series_name(series: Series) -> str:
    return ", ".join(filter(None, series))


def _errors(base: Chart, axis: Literal["x", "y"], unit: str) -> list[Chart]:
    """Return the bars of intervals; none where no figure has one."""
    if all(row.get(f"{unit} low") is None for row in base.data.values):
        return []
    low = {"x": alt.X, "y": alt.Y}[axis](f"{unit} low", type="quantitative", title=unit)
    rules = base.transform_filter(f"isValid(datum['{unit} low'])").mark_rule(strokeWidth=1.2, color=NOT_USED)
    return [rules.encode(**{axis: low, f"{axis}2": f"{unit} high"})]


def _shared_axis(title: str, *, last: bool, **options: Any) -> alt.Axis:
    """Return the horizontal axis of one of several panels above each other; the last panel names it."""
    return alt.Axis(title=title if last else None, labels=last, ticks=last, **options)


def _names(points: Sequence[Point]) -> tuple[alt.Y, alt.Step]:
    """Return the axis of results' names and rows high enough for the longest of them, which takes several lines."""
    lines = max(len(wrap(point.label, NAME_WIDTH)) for point in points)
    # A label's first line stands in the middle of its row, the others below.
    axis = alt.Axis(labelExpr=NAME, labelLimit=0, labelOffset=-(lines - 1) * LINE_HEIGHT / 2)
    # Else the first layer's data set the order, and may lack results.
    order = alt.Scale(domain=[point.label for point in points])
    y = alt.Y("experiment", type="nominal", scale=order, title=None, axis=axis)
    return y, alt.Step(max(ROW_HEIGHT, (lines + 1) * LINE_HEIGHT))


def _quantity(channel: type[alt.X | alt.Y], unit: str, *, log: bool) -> Any:
    scale = alt.Scale(type="log", nice=True) if log else alt.Scale(zero=True)
    return channel(unit, type="quantitative", scale=scale)


def _tooltip(rows: Rows) -> list[alt.Tooltip]:
    """Return the columns that a tooltip shows; intervals are drawn already."""
    names = [name for name in rows[0] if name not in ("series", "order") and not name.endswith((" low", " high"))]
    numbers = {name for name in names if any(isinstance(row[name], float) for row in rows)}
    return _tooltip_of({name: ",.4g" if name in numbers else "" for name in names})


def _tooltip_of(forms: Mapping[str, str]) -> list[alt.Tooltip]:
    """Return a tooltip of these columns: numbers in their formats, texts without one."""
    return [
        alt.Tooltip(name, type="quantitative", format=form) if form else alt.Tooltip(name, type="nominal")
        for name, form in forms.items()
    ]


def _zoom(encodings: list[Literal["x", "y"]], views: list[str]) -> alt.TopLevelSelectionParameter:
    """Drag to move, Ctrl and wheel to zoom, double click to go back: a plain wheel scrolls the page."""
    select = alt.IntervalSelectionConfig(type="interval", encodings=encodings, zoom="wheel![event.ctrlKey]")
    return alt.TopLevelSelectionParameter(name="zoom", select=select, bind="scales", views=views)


def _main_quantity(points: Sequence[Point]) -> tuple[str, Callable[[Point], statistics.Figure | None]]:
    if any(point.j_per_token for point in points):
        return J_PER_TOKEN, lambda point: point.j_per_token
    return TOKENS_PER_S, lambda point: point.tokens_per_s


def _spans_decades(rows: Rows, unit: str) -> bool:
    """Return whether values are too far apart for a linear axis, and a logarithmic one can show them."""
    values = [row[unit] for row in rows if row[unit] is not None]
    # The interval of few restarts may reach down to 0, which no logarithmic axis has.
    lows = [row[low] for row in rows if row.get(low := f"{unit} low") is not None]
    return bool(values) and min(values + lows) > 0 and min(values) < max(values) / DECADE


def _few_enough(points: list[Point], otherwise: str) -> list[Point]:
    _require(points, otherwise)
    if len(points) > MOST_ROWS:
        what = f"nothing to draw: {len(points)} results are too many for one chart, {MOST_ROWS} the most"
        raise ConfigError(what, cause=Cause.TOO_LARGE)
    return points


def _require(points: Sequence[Point], otherwise: str) -> None:
    if not points:
        raise ConfigError(f"nothing to draw: {otherwise}", cause=Cause.EMPTY)
