"""One restart over time: power per GPU and tokens per second, its spans shaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import altair as alt

from wattdock.reports.chart_data import KINDS
from wattdock.reports.encodings import (
    DASHES,
    HOST,
    NOT_USED,
    PALETTE,
    TOKENS_PER_S,
    scaled,
    shared_axis,
    tooltip_of,
    zoom,
)

if TYPE_CHECKING:
    from wattdock.reports.chart_data import Point, RestartTimeline, Trace
    from wattdock.reports.encodings import Chart, Rows

SPAN_COLOURS = dict(
    zip((*KINDS, "other"), ("#777777", "#56B4E9", "#BBBBBB", "#E69F00", "#009E73", "#005F45", "#CC79A7"), strict=True)
)
SPAN_COLUMNS = {"span": "", "begins, s": ".2f", "lasts, s": ".2f", "J (GPUs used)": ",.1f", "mean W": ",.1f"}
POWER = "power, W"
# Seconds that are shown before the warm-up and after the last pass.
LEAD_S = 2.0
# A span shorter than this share of the axis has no room for its name.
NAMED_SHARE = 0.04


@dataclass(frozen=True)
class TimelineLook:
    """How restarts are drawn over time; the same for restarts of the same kinds of spans on the same GPUs.

    Attributes:
        lines: Name, colour and dash of each line of power.
        kinds: Kinds of the spans.
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
        ends: Ends of the axis of time, seconds.
        datasets: Rows of the spans and of the lines, under the names that the chart has for them.
    """

    look: TimelineLook
    ends: tuple[float, float]
    datasets: dict[str, Rows]

    @classmethod
    def of(cls, restart: RestartTimeline, point: Point) -> TimelineDrawing:
        """Return what is drawn of a restart of this result: GPUs used in the palette's colours, the rest in greys."""
        measured = [row for row in restart.spans if row["kind"] in ("pass", "warm-up")] or restart.spans
        ends = (measured[0]["begins, s"] - LEAD_S, measured[-1]["begins, s"] + measured[-1]["lasts, s"] + LEAD_S)
        shortest_s = NAMED_SHARE * (ends[1] - ends[0])
        spans = [
            row
            | {"end": row["begins, s"] + row["lasts, s"], "text": row["span"] if row["lasts, s"] > shortest_s else ""}
            for row in restart.spans
        ]
        used = point.result.environment.gpu_uuids if point.result.environment else ()
        groups = (
            ([trace for trace in restart.power_w if trace.name in used], "", PALETTE, 0),
            ([trace for trace in restart.power_w if trace.name not in used], ", not used", (NOT_USED,), 1),
            (restart.host_w, " (host, RAPL)", (HOST,), 1),
        )
        lines, power = [], []
        for traces, suffix, colours, first in groups:
            for at, trace in enumerate(traces):
                name = point.gpu_names.get(trace.name, trace.name) + suffix
                dash = DASHES[(at // len(colours) + first) % len(DASHES)]
                lines.append((name, colours[at % len(colours)], tuple(dash)))
                power.append(_line(trace, name))
        tokens = [_line(restart.tokens_per_s, TOKENS_PER_S)] if restart.tokens_per_s else []
        look = TimelineLook(
            lines=tuple(lines),
            kinds=tuple(kind for kind in SPAN_COLOURS if any(row["kind"] == kind for row in spans)),
            has_readings=any(trace.source == "reading" for traces, *_ in groups for trace in traces),
            has_tokens=bool(tokens),
        )
        return cls(look, ends, {"spans": spans, "power": power, "tokens": tokens})


def _line(trace: Trace, name: str) -> dict[str, Any]:
    """Return a line over time as a row of two lists, a third as long as a row per point.

    A thousandth of a second and a tenth of a watt are more than a screen shows.
    """
    return {
        "series": name,
        "s": [round(at_s, 3) for at_s in trace.at_s.tolist()],
        "value": [None if isnan(value) else round(value, 1) for value in trace.value.tolist()],
    }


def timeline_chart(look: TimelineLook, ends: tuple[Any, Any]) -> Chart:
    """Return power per GPU and tokens/s of one restart over time, its spans shaded; without its `datasets`."""
    power, tokens = (
        alt.Chart(alt.NamedData(dataset)).transform_flatten(["s", "value"]) for dataset in ("power", "tokens")
    )
    shape: Any = "linear" if look.has_readings else "step-after"
    lines = power.mark_line(interpolate=shape, clip=True, strokeWidth=1).encode(
        color=scaled(alt.Color, "series", {name: colour for name, colour, _ in look.lines}),
        strokeDash=scaled(alt.StrokeDash, "series", {name: list(dash) for name, _, dash in look.lines}),
    )
    rates = tokens.mark_line(interpolate="step-after", clip=True, strokeWidth=1, color=PALETTE[1])
    drawn = [(POWER, lines)] if look.lines else []
    drawn += [(TOKENS_PER_S, rates)] if look.has_tokens else []
    fill = scaled(alt.Fill, "kind", {kind: SPAN_COLOURS[kind] for kind in look.kinds})
    # A line that never changes would else lie on the frame.
    scale = alt.Scale(zero=True, padding=8)
    panels = []
    for at, (unit, marks) in enumerate(drawn, 1):
        axis = shared_axis("seconds since the first span", last=at == len(drawn))
        x = alt.X("begins, s", type="quantitative", axis=axis, scale=alt.Scale(domain=ends))
        base = alt.Chart(alt.NamedData("spans")).encode(x=x)
        areas = base.mark_rect(opacity=0.22, clip=True).encode(x2="end", fill=fill, tooltip=tooltip_of(SPAN_COLUMNS))
        y = alt.Y("value", type="quantitative", title=unit, scale=scale)
        layers = [areas, marks.properties(name=unit).encode(x=alt.X("s", type="quantitative"), y=y)]
        # Names of spans stand in the first panel only.
        if at == 1:
            texts = base.mark_text(align="left", baseline="top", dx=3, dy=3, clip=True)
            layers.append(texts.encode(text="text:N", y=alt.value(0)))
        panels.append(alt.layer(*layers))
    return alt.vconcat(*panels, bounds="flush", params=[zoom(["x"], [POWER, TOKENS_PER_S])])
