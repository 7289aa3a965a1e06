"""Figures for papers: one file per kind of chart, with a publisher's defaults."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError
from wattdock.reports.paper import bars, curve, drawn_into, over_counts
from wattdock.reports.points import by_batch, by_gpus, gpu_shares, grouped, pareto_front, phase_parts, spans_decades
from wattdock.reports.style import (
    ASPECT,
    COLUMN_IN,
    PHASES,
    TWO_COLUMNS_IN,
    colours,
    dot_styles,
    front_looks,
    line_styles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from wattdock.reports.points import Point
    from wattdock.reports.style import Style
    from wattdock.reports.words import Figure

WIDTHS = {"column": COLUMN_IN, "page": TWO_COLUMNS_IN}
J_PER_TOKEN, TOKENS_PER_S = "J/output token (GPU boards)", "output tokens/s"
ROW_IN, FRAME_IN, NAME_CHARACTERS = 0.2, 0.8, 26
HATCHES = ("", "////", "xxxx", "----", "....", "++++", "\\\\\\\\", "||||")


def draw(kind: str, points: Sequence[Point], file: Path, *, width: str) -> None:
    """Draw one kind of chart into a file; replaces what is there.

    Args:
        kind: One of `KINDS`.
        width: One of `WIDTHS`, columns of a page.

    Raises:
        ConfigError: The format is unknown, or these results have nothing to draw of this kind.
        StoreError: The file cannot be written.
    """
    with drawn_into(file, WIDTHS[width], WIDTHS[width] * ASPECT, flag="-o") as drawing:
        KINDS[kind](drawing, points)


def _intervals(drawing: Drawing, points: Sequence[Point]) -> None:
    with_energy = any(one.j_per_token for one in points)
    shown = [(one, found) for one in points if (found := one.j_per_token if with_energy else one.tokens_per_s)]
    _require(shown, "no result has a figure")
    axes = _rows(drawing, [one.label for one, _ in shown])
    styles = dot_styles(one.series for one, _ in shown)
    for at, (one, found) in enumerate(shown):
        axes.errorbar(found.value, at, xerr=bars([found]), **_style(one, styles[one.series]))
    axes.set_xlabel(J_PER_TOKEN if with_energy else TOKENS_PER_S)
    axes.set_xlim(left=0)


def _pareto(drawing: Drawing, points: Sequence[Point]) -> None:
    shown = [one for one in points if one.j_per_token and one.tokens_per_s]
    _require(shown, f"no result has joules ({_why(points)})")
    axes = drawing.subplots()
    styles = dot_styles(one.series for one in shown)
    for model, look in front_looks(one.model for one in shown).items():
        front = pareto_front([one for one in shown if one.model == model])
        xs, ys = _values(front, lambda one: one.tokens_per_s), _values(front, lambda one: one.j_per_token)
        axes.plot(xs, ys, color="0.5", linestyle=look.paper_dash, linewidth=0.8, zorder=1)
    for name, own in grouped(shown, by_gpus).items():
        for at, one in enumerate(own):
            if one.tokens_per_s and one.j_per_token:
                style = _style(one, styles[one.series]) | {"label": None if at else name}
                ends: dict[str, Any] = {"xerr": bars([one.tokens_per_s]), "yerr": bars([one.j_per_token])}
                axes.errorbar(one.tokens_per_s.value, one.j_per_token.value, **ends, **style)
    axes.set(xlabel=TOKENS_PER_S, ylabel=J_PER_TOKEN)
    if spans_decades(_values(shown, lambda one: one.j_per_token)):
        axes.loglog()
    else:
        axes.set(xlim=(0, None), ylim=(0, None))
    axes.legend()


def _phases(drawing: Drawing, points: Sequence[Point]) -> None:
    shown = [one for one in points if any(one.phases_j.values())]
    _require(shown, f"no result has joules ({_why(points)})")
    _stacked(drawing, shown, phase_parts(shown), "J (GPU boards)")


def _gpus(drawing: Drawing, points: Sequence[Point]) -> None:
    shown = [one for one in points if len(one.per_gpu_j) > 1 and one.output_tokens]
    _require(shown, "no result used more than one GPU")
    _stacked(drawing, shown, gpu_shares(shown), J_PER_TOKEN)


def _scaling(drawing: Drawing, points: Sequence[Point]) -> None:
    shown = [one for one in points if one.tokens_per_s]
    _require({one.gpu_count for one in shown}, "all results used the same number of GPUs", at_least=2)
    _over(drawing, shown, "GPUs used", lambda one: one.gpu_count, by_batch)


def _batch(drawing: Drawing, points: Sequence[Point]) -> None:
    shown = [one for one in points if one.tokens_per_s]
    _require({one.batch_size for one in shown}, "all results have the same batch size", at_least=2)
    _over(drawing, shown, "requests in flight", lambda one: one.batch_size, by_gpus)


def _timeline(drawing: Drawing, points: Sequence[Point]) -> None:
    from wattdock.reports.paper_timeline import draw_timeline

    draw_timeline(drawing, points)


KINDS: Mapping[str, Callable[[Drawing, Sequence[Point]], None]] = {
    "intervals": _intervals,
    "pareto": _pareto,
    "phases": _phases,
    "gpus": _gpus,
    "scaling": _scaling,
    "batch": _batch,
    "timeline": _timeline,
}


def _over(
    drawing: Drawing,
    shown: Sequence[Point],
    unit: str,
    x_of: Callable[[Point], int],
    group_of: Callable[[Point], str],
) -> None:
    """Draw joules per token above tokens per second, or the latter alone, over one quantity."""
    with_energy = any(one.j_per_token for one in shown)
    panels: list[tuple[str, Callable[[Point], Figure | None]]] = [(TOKENS_PER_S, lambda one: one.tokens_per_s)]
    if with_energy:
        panels.insert(0, (J_PER_TOKEN, lambda one: one.j_per_token))
        drawing.set_figheight(drawing.get_figheight() * 1.8)
    every = drawing.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    groups = grouped(shown, group_of)
    styles = line_styles(groups)
    for axes, (title, of) in zip(every, panels, strict=True):
        for name, own in groups.items():
            if known := [(x_of(one), found) for one in sorted(own, key=x_of) if (found := of(one))]:
                hollow = {x_of(one) for one in own if not one.publishable}
                curve(axes, known, name, styles[name], hollow=hollow)
        axes.set_ylabel(title)
        if spans_decades(_values(shown, panels[0][1])):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
    over_counts(every[-1], unit, {x_of(one) for one in shown})
    every[0].legend()


def _stacked(drawing: Drawing, shown: Sequence[Point], series: Mapping[str, Sequence[float | None]], unit: str) -> None:
    axes = _rows(drawing, [one.label for one in shown])
    left = [0.0] * len(shown)
    shade = colours(series) | PHASES
    for at, (name, parts) in enumerate(series.items()):
        values = [value or 0.0 for value in parts]
        style: dict[str, Any] = {"color": shade[name], "hatch": HATCHES[at % len(HATCHES)]}
        axes.barh(range(len(shown)), values, left=left, label=name, edgecolor="white", linewidth=0.3, **style)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel(unit)
    drawing.legend(ncols=4 if drawing.get_figwidth() > COLUMN_IN else 3, loc="outside upper left")
    drawing.set_figheight(drawing.get_figheight() + ROW_IN)


def _rows(drawing: Drawing, names: Sequence[str]) -> Axes:
    """Return axes with a row per name, the first on top, as high as that takes."""
    lines = sum(1 + len(name) // NAME_CHARACTERS for name in names)
    drawing.set_figheight(FRAME_IN + ROW_IN * lines)
    axes: Axes = drawing.subplots()
    # matplotlib would take a dollar sign for mathematics.
    wrapped = [textwrap.fill(name, NAME_CHARACTERS).replace("$", r"\$") for name in names]
    axes.set_yticks(range(len(names)), wrapped, fontsize="small")
    axes.invert_yaxis()
    return axes


def _style(one: Point, drawn_in: Style) -> dict[str, Any]:
    colour, look = drawn_in
    marker = {"marker": look.paper_marker, "markerfacecolor": colour if one.publishable else "none"}
    return {**marker, "color": colour, "linestyle": "none", "elinewidth": 0.8}


def _values(shown: Sequence[Point], of: Callable[[Point], Figure | None]) -> list[float]:
    return [found.value for one in shown if (found := of(one))]


def _why(points: Sequence[Point]) -> str:
    """The commonest reason why they have no joules."""
    reasons = Counter(one.reason for one in points if one.reason).most_common(1)
    return reasons[0][0] if reasons else "nothing was measured"


def _require(found: Any, otherwise: str, *, at_least: int = 1) -> None:
    if len(found) < at_least:
        raise ConfigError(f"nothing to draw: {otherwise}")
