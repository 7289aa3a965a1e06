"""Scaling over GPU counts as a figure: one row per setting, one curve per kind of split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from wattdock.comparison import geometric_interval, geometric_mean
from wattdock.errors import ConfigError, StoreError
from wattdock.report.style import LOOKS, PAPER, TWO_COLUMNS_IN, colours
from wattdock.scaling.curves import curves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from wattdock.scaling.curves import Curve, Ratio, Scaled
    from wattdock.scaling.points import Setting

FORMATS = (".pdf", ".svg", ".png")
ROW_IN, LEGEND_IN = 1.9, 0.3
# Without an instant of writing, equal figures are equal files.
NO_DATE: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}


def draw_scaling(found: Sequence[Setting], file: Path) -> None:
    """Draw throughput, efficiency, TPOT, power and joules per token over GPU counts; replaces what is there.

    Raises:
        ConfigError: The format is unknown, or no setting was measured at two splits.
        StoreError: The file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if file.suffix not in FORMATS:
        raise ConfigError(f"--plot {file}: figures are written as {', '.join(FORMATS)}")
    shown = [(setting, drawn) for setting in found if (drawn := curves(setting))]
    if not shown:
        raise ConfigError("no setting was measured on more than one GPU; there is no curve to draw")
    with mpl.rc_context(cast("Any", PAPER)):
        figure = Figure(figsize=(TWO_COLUMNS_IN, ROW_IN * len(shown) + LEGEND_IN))
        shades = colours(curve.kind for _, drawn in shown for curve in drawn)
        parts = figure.subfigures(len(shown), squeeze=False)
        for (part,), (setting, drawn) in zip(parts, shown, strict=True):
            part.suptitle(setting.name, fontsize="small")
            for axes, (label, value) in zip(part.subplots(1, len(PANELS)), PANELS, strict=True):
                _panel(axes, label, drawn, value, shades)
        handles = {name: handle for part in parts.flat for name, handle in _legend(part.axes[0])}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
        try:
            figure.savefig(file, metadata=NO_DATE[file.suffix])
        except OSError as error:
            raise StoreError(f"cannot write {file}: {error.strerror or error}; choose another file") from error


def _panel(
    axes: Axes,
    label: str,
    drawn: Sequence[Curve],
    value: Callable[[Scaled], tuple[float, float, float] | None],
    shades: dict[str, str],
) -> None:
    counts: set[int] = set()
    for at, curve in enumerate(drawn):
        known = [(one.point.gpus, found) for one in curve.points if (found := value(one))]
        counts |= {gpus for gpus, _ in known}
        means = [mean for _, (mean, _, _) in known]
        bars = [[mean - low for _, (mean, low, _) in known], [high - mean for _, (mean, _, high) in known]]
        look = LOOKS[at % len(LOOKS)]
        style: dict[str, Any] = {"color": shades[curve.kind], "marker": look.paper_marker, "linestyle": look.paper_dash}
        axes.errorbar([gpus for gpus, _ in known], means, yerr=bars, label=curve.kind, **style)
    axes.set_xlabel("GPUs")
    axes.set_ylabel(label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(counts), [str(count) for count in sorted(counts)])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)


def _legend(axes: Axes) -> list[tuple[str, Any]]:
    handles, names = axes.get_legend_handles_labels()
    return list(zip(names, handles, strict=True))


def _of_restarts(values: Sequence[float]) -> tuple[float, float, float] | None:
    if not values:
        return None
    mean = geometric_mean(values)
    low, high = geometric_interval(values) or (mean, mean)
    return mean, low, high


def _of_ratio(one: Ratio) -> tuple[float, float, float]:
    return one.value, one.value if one.low is None else one.low, one.value if one.high is None else one.high


def _plain(value: float | None) -> tuple[float, float, float] | None:
    return None if value is None else (value * 1e3, value * 1e3, value * 1e3)


PANELS: tuple[tuple[str, Callable[[Scaled], tuple[float, float, float] | None]], ...] = (
    ("output tokens/s", lambda one: _of_restarts(one.point.tokens_per_s)),
    ("efficiency", lambda one: _of_ratio(one.efficiency)),
    ("TPOT p50 (ms)", lambda one: _plain(one.point.tpot_p50_s)),
    ("mean W", lambda one: _of_restarts(one.point.power_w)),
    ("J/token (GPU boards)", lambda one: _of_restarts(one.point.j_per_token)),
)
