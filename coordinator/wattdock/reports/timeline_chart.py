"""One restart over time: power per GPU and tokens per second, its spans shaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import altair as alt

from wattdock.analysis import statistics
from wattdock.reports.chart_data import KINDS
from wattdock.reports.encodings import DASHES, HOST, NOT_USED, PALETTE, scaled, shared_axis, tooltip_of, zoom
from wattdock.reports.wording import quantity_text

if TYPE_CHECKING:
    from wattdock.reports.chart_data import Point, RestartTimeline, Trace
    from wattdock.reports.encodings import Chart, Rows

SPAN_COLOURS = dict(
    zip((*KINDS, "other"), ("#777777", "#56B4E9", "#BBBBBB", "#E69F00", "#009E73", "#005F45", "#CC79A7"), strict=True)
)
SPAN_COLUMNS = {"span": "", "begins, s": ".2f", "lasts, s": ".2f", "J (GPUs used)": ",.1f", "mean W": ",.1f"}
POWER = "power, W"
# Share of the shown time that is left free behind the last pass.
ROOM = 0.02
# Colour of tokens, which no GPU has; height of the strip of spans, pixels.
TOKENS, STRIP_PX = "#882255", 16
# Below this share of the axis a span has no room for its name; nor has it on a page with fewer pixels for a letter.
NAMED_SHARE, LETTER_PX = 0.04, 8
ROOMY = f"!(datum.share * containerSize()[0] < {LETTER_PX} * length(datum.text))"


@dataclass(frozen=True)
class TimelineLook:
    """How restarts are drawn over time; the same for restarts of the same kinds of spans on the same GPUs.

    Attributes:
        lines: Name, colour and dash of each line of power.
        kinds: Kinds of the spans.
        has_readings: Whether a line of power is of readings.
        rate: Name of the line of the work's rate, "output tokens/s"; empty without one.
    """

    lines: tuple[tuple[str, str, tuple[int, ...]], ...]
    kinds: tuple[str, ...]
    has_readings: bool
    rate: str


@dataclass(frozen=True)
class TimelineDrawing:
    """One restart as it is drawn over time: the ends of the axis, s, and the rows of spans and lines by name."""

    look: TimelineLook
    ends: tuple[float, float]
    datasets: dict[str, Rows]

    @classmethod
    def of(cls, restart: RestartTimeline, point: Point) -> TimelineDrawing:
        """Return what is drawn of a restart of this result: GPUs used in the palette's colours, the rest in greys.

        Time counts from the first warm-up or pass; launch and load lie before 0.
        """
        measured = [row for row in restart.spans if row["kind"] in ("pass", "warm-up")] or restart.spans
        origin_s = measured[0]["begins, s"]
        end_s = measured[-1]["begins, s"] + measured[-1]["lasts, s"] - origin_s
        spans = []
        for row in restart.spans:
            begin_s = round(row["begins, s"] - origin_s, 3)
            # A pass's window lies in it, and its name on the pass's.
            share = round(row["lasts, s"] / (end_s or 1.0), 3)
            is_named = share > NAMED_SHARE and row["kind"] != "window"
            times = {"begins, s": begin_s, "end": begin_s + row["lasts, s"], "text": row["span"] if is_named else ""}
            spans.append(row | times | {"share": share})
        used = point.result.environment.gpu_uuids if point.result.environment else ()
        groups = (
            ([trace for trace in restart.lines["gpu"] if trace.name in used], "", PALETTE, 0),
            ([trace for trace in restart.lines["gpu"] if trace.name not in used], ", not used", (NOT_USED,), 1),
            (restart.lines["host"], " (host, RAPL)", (HOST,), 1),
        )
        lines, power = [], []
        for traces, suffix, colours, first in groups:
            for at, trace in enumerate(traces):
                name = point.gpu_names.get(trace.name, trace.name) + suffix
                dash = DASHES[(at // len(colours) + first) % len(DASHES)]
                lines.append((name, colours[at % len(colours)], tuple(dash)))
                power.append(_line(trace, name, origin_s))
        rate = quantity_text(statistics.SPEED, point.result.config.unit) if restart.lines["tokens"] else ""
        tokens = [_line(trace, rate, origin_s) for trace in restart.lines["tokens"]]
        look = TimelineLook(
            lines=tuple(lines),
            kinds=tuple(kind for kind in SPAN_COLOURS if any(row["kind"] == kind for row in spans)),
            has_readings=any(trace.source == "reading" for traces, *_ in groups for trace in traces),
            rate=rate,
        )
        return cls(look, (0.0, round(end_s * (1 + ROOM), 3)), {"spans": spans, "power": power, "tokens": tokens})


def _line(trace: Trace, name: str, origin_s: float) -> dict[str, Any]:
    """Return a line over time as a row of two lists, a third as long as a row per point.

    A thousandth of a second and a tenth of a watt are more than a screen shows.
    """
    return {
        "series": name,
        "s": [round(at_s - origin_s, 3) for at_s in trace.at_s.tolist()],
        "value": [None if isnan(value) else round(value, 1) for value in trace.value.tolist()],
    }


def timeline_chart(look: TimelineLook, ends: tuple[Any, Any]) -> Chart:
    """Return power per GPU and tokens/s of one restart over time, its spans shaded; without its `datasets`."""
    power, tokens = (
        alt.Chart(alt.NamedData(dataset)).transform_flatten(["s", "value"]) for dataset in ("power", "tokens")
    )
    shape: Any = "linear" if look.has_readings else "step-after"
    every = [*look.lines, *([(look.rate, TOKENS, (1, 0))] if look.rate else [])]
    color = scaled(alt.Color, "series", {name: colour for name, colour, _ in every})
    dash = scaled(alt.StrokeDash, "series", {name: list(dash) for name, _, dash in every})
    watts = power.mark_line(interpolate=shape, clip=True, strokeWidth=1.5).encode(color=color, strokeDash=dash)
    rates = tokens.mark_line(interpolate="step-after", clip=True, strokeWidth=1.5).encode(color=color, strokeDash=dash)
    drawn = [(POWER, watts)] if look.lines else []
    drawn += [(look.rate, rates)] if look.rate else []
    fill = scaled(alt.Fill, "kind", {kind: SPAN_COLOURS[kind] for kind in look.kinds}).legend(symbolOpacity=0.6)
    scale = alt.Scale(zero=True)
    begin = next((kind for kind in ("warm-up", "pass") if kind in look.kinds), "first span")
    panels = []
    for at, (unit, marks) in enumerate(drawn, 1):
        axis = shared_axis(f"seconds since the {begin} began", last=at == len(drawn))
        x = alt.X("begins, s", type="quantitative", axis=axis, scale=alt.Scale(domain=ends))
        base = alt.Chart(alt.NamedData("spans")).encode(x=x)
        areas = base.mark_rect(opacity=0.09, clip=True).encode(x2="end", fill=fill, tooltip=tooltip_of(SPAN_COLUMNS))
        y = alt.Y("value", type="quantitative", title=unit, scale=scale)
        lines = marks.properties(name=unit).encode(x=alt.X("s", type="quantitative"), y=y)
        layers = [areas, lines]
        # A strip with the spans' colours and names stands in the first panel only; lines show on what is pale.
        if at == 1:
            strip = base.mark_rect(opacity=0.5, clip=True)
            texts = base.transform_filter(ROOMY).mark_text(align="left", baseline="top", dx=3, dy=3, clip=True)
            strip = strip.encode(x2="end", fill=fill, y=alt.value(0), y2=alt.value(STRIP_PX))
            layers = [areas, strip, lines, texts.encode(text="text:N", y=alt.value(0))]
        panels.append(alt.layer(*layers))
    return alt.vconcat(*panels, bounds="flush", params=[zoom(["x"], [POWER, *filter(None, [look.rate])])])
