"""Scaling over GPU counts as a figure: one row per setting, one curve per kind of split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.analysis import geometric_interval, geometric_mean
from wattdock.errors import ConfigError
from wattdock.reports.paper import curve, drawn_into, over_counts
from wattdock.reports.scaling_curves import curves
from wattdock.reports.style import TWO_COLUMNS_IN, line_styles
from wattdock.reports.words import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from wattdock.reports.scaling_curves import Curve, Scaled
    from wattdock.reports.scaling_points import Setting
    from wattdock.reports.style import Style

    Value = Callable[[Scaled], Figure | None]

ROW_IN, LEGEND_IN = 1.9, 0.3


def draw_scaling(found: Sequence[Setting], file: Path) -> None:
    """Draw throughput, efficiency, TPOT, power and joules per token over GPU counts; replaces what is there.

    Raises:
        ConfigError: The format is unknown, or no setting was measured at two splits.
        StoreError: The file cannot be written.
    """
    shown = [(setting, drawn) for setting in found if (drawn := curves(setting))]
    if not shown:
        raise ConfigError("no setting was measured on more than one GPU; there is no curve to draw")
    with drawn_into(file, TWO_COLUMNS_IN, ROW_IN * len(shown) + LEGEND_IN, flag="--plot") as figure:
        styles = line_styles(sorted({one.kind for _, drawn in shown for one in drawn}))
        parts = figure.subfigures(len(shown), squeeze=False)
        for (part,), (setting, drawn) in zip(parts, shown, strict=True):
            part.suptitle(setting.name, fontsize="small")
            for axes, (label, value) in zip(part.subplots(1, len(PANELS)), PANELS, strict=True):
                _panel(axes, label, drawn, value, styles)
        handles = {name: handle for part in parts.flat for name, handle in _legend(part.axes[0])}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))


def _panel(axes: Axes, label: str, drawn: Sequence[Curve], value: Value, styles: dict[str, Style]) -> None:
    counts: set[int] = set()
    for one in drawn:
        known = [(scaled.point.gpus, found) for scaled in one.points if (found := value(scaled))]
        counts |= {gpus for gpus, _ in known}
        curve(axes, known, one.kind, styles[one.kind])
    over_counts(axes, "GPUs", counts)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def _legend(axes: Axes) -> list[tuple[str, Any]]:
    handles, names = axes.get_legend_handles_labels()
    return list(zip(names, handles, strict=True))


def _of_restarts(values: Sequence[float]) -> Figure | None:
    return Figure(geometric_mean(values), *(geometric_interval(values) or ())) if values else None


PANELS: tuple[tuple[str, Value], ...] = (
    ("output tokens/s", lambda one: _of_restarts(one.point.tokens_per_s)),
    ("efficiency", lambda one: Figure(one.efficiency.value, one.efficiency.low, one.efficiency.high)),
    ("TPOT p50 (ms)", lambda one: None if one.point.tpot_p50_s is None else Figure(one.point.tpot_p50_s * 1e3)),
    ("mean W", lambda one: _of_restarts(one.point.power_w)),
    ("J/token (GPU boards)", lambda one: _of_restarts(one.point.j_per_token)),
)
