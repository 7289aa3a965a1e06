"""One run's power and tokens over time, for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError
from wattdock.reports.style import PALETTE, line_styles
from wattdock.reports.timelines import SUM, timelines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from wattdock.reports.points import Point
    from wattdock.reports.timelines import RestartTimeline, Trace

POINTS = 20_000
SHADES = {"pass": "0.86", "warm-up": "0.93"}
# What is stored before and after each span.
LEAD_S = 2.0


def draw_timeline(drawing: Drawing, points: Sequence[Point]) -> None:
    """Draw the first restart of one result, from its warm-up on.

    Raises:
        ConfigError: These are several results, or no timeline lies beside this one.
        StoreError: The timeline cannot be read.
    """
    if len(points) != 1:
        raise ConfigError(f"a timeline is of one result, these are {len(points)}; name one result folder")
    found = timelines(points[0].row, points=POINTS)
    if not found or not (found[0].power_w or found[0].host_w or found[0].tokens_per_s):
        raise ConfigError("nothing to draw: no timeline is stored with this result")
    first = found[0]
    power = [one for one in (*first.power_w, *first.host_w) if one.name != SUM]
    panels = bool(power) + (first.tokens_per_s is not None)
    every = list(drawing.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])
    if power:
        _power(every[0], power, points[0])
    if first.tokens_per_s:
        every[-1].step(first.tokens_per_s.at_s, first.tokens_per_s.value, where="post", color=PALETTE[1], linewidth=0.6)
        every[-1].set_ylabel("output tokens/s")
    for axes in every:
        _shade(axes, first, named=axes is every[0])
        axes.set_ylim(bottom=0)
    drawing.legend(ncols=4, loc="outside upper left")
    every[-1].set_xlabel("s since the first span")
    # A restart may serve other experiments between its load and its passes.
    measured = [span for span in first.spans if span.pass_index is not None or span.name == "warm-up"]
    if measured:
        every[-1].set_xlim(measured[0].start_s - LEAD_S, measured[-1].end_s + LEAD_S)


def _power(axes: Axes, power: Sequence[Trace], point: Point) -> None:
    seen = point.result.environment
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in seen.host_gpus} if seen else {}
    styles = line_styles(trace.name for trace in power)
    for trace in power:
        colour, look = styles[trace.name]
        where: dict[str, Any] = {"color": colour, "linestyle": look.paper_dash}
        name = names.get(trace.name, trace.name)
        if trace.source == "counter":
            axes.step(trace.at_s, trace.value, where="post", linewidth=0.6, label=name, **where)
        else:
            axes.plot(trace.at_s, trace.value, linewidth=0.6, label=name, **where)
    axes.set_ylabel("power, W")


def _shade(axes: Axes, timeline: RestartTimeline, *, named: bool) -> None:
    seen: set[str] = set()
    for span in timeline.spans:
        kind = "pass" if span.pass_index is not None else span.name
        if kind in SHADES:
            label = kind if named and kind not in seen else None
            axes.axvspan(span.start_s, span.end_s, color=SHADES[kind], linewidth=0, zorder=0, label=label)
            seen.add(kind)
