"""Stacked bars of a page: where joules went, by phase and by GPU. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.report.html.chart import FRAME_PX, J_PER_TOKEN, MOST_ROWS, ROW_PX, Chart, names, plain, short
from wattdock.report.points import gpu_shares
from wattdock.report.style import PHASES, colours
from wattdock.report.words import NOTHING, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.report.points import Point

PATTERNS = ("", "/", "x", "-", ".", "+", "\\", "|")


def phases(points: Sequence[Point]) -> Chart | None:
    """Return where each run's joules went, from launch to its last pass."""
    shown = [one for one in points if any(one.phases_j.values())]
    found = [name for name in PHASES if any(name in one.phases_j for one in shown)]
    found += sorted({name for one in shown for name in one.phases_j} - set(PHASES))
    note = (
        "Joules of the GPUs used, over all restarts. A figure per token holds the measured passes only: prefill and "
        "decode where requests ran in rounds, else one part. Waits between spans are not in it."
    )
    cells = tuple((one.label, *(_phase(one, name) for name in found)) for one in shown)
    columns = ("experiment", *(f"{name}, J (mean W)" for name in found))
    return _stacked(
        "phases",
        "Energy by phase",
        note,
        shown,
        {name: [one.phases_j.get(name) for one in shown] for name in found},
        "J (GPU boards)",
        (columns, cells),
    )


def by_gpu(points: Sequence[Point]) -> Chart | None:
    """Return how the measured passes' energy per output token was shared out among GPUs."""
    shown = [one for one in points if one.per_gpu_j and one.output_tokens]
    if max((len(one.per_gpu_j) for one in shown), default=0) < 2:
        return None
    series = gpu_shares(shown)
    cells = tuple(
        (one.label, *(number(values[at]) for values in series.values()), _imbalance(one))
        for at, one in enumerate(shown)
    )
    columns = ("experiment", *(f"{name}, J per output token" for name in series), "largest ÷ mean")
    note = "GPUs by their index on the host; their parts add up to the result's figure."
    return _stacked("gpus", "Energy by GPU", note, shown, series, J_PER_TOKEN, (columns, cells))


def _stacked(
    key: str,
    title: str,
    note: str,
    shown: Sequence[Point],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    table: tuple[tuple[str, ...], tuple[tuple[str, ...], ...]],
) -> Chart | None:
    """Return horizontal bars, one per result, each part with a colour and a pattern of its own."""
    if not shown:
        return None
    columns, rows = table
    if len(shown) > MOST_ROWS:
        return Chart(key, title, f"{note} {len(shown)} results are too many to draw.", None, columns, rows)
    shade = colours(series) | PHASES
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [None if value is None else short(value) for value in values],
            "y": list(range(len(shown))),
            "marker": {
                "color": shade[name],
                "pattern": {"shape": PATTERNS[at % len(PATTERNS)], "fillmode": "overlay", "solidity": 0.25},
            },
            "customdata": [plain(one.label) for one in shown],
            "hovertemplate": f"%{{customdata}}<br>{name}: %{{x:.4g}} {unit}<extra></extra>",
        }
        for at, (name, values) in enumerate(series.items())
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": unit}},
        "yaxis": names([one.label for one in shown]),
        "height": FRAME_PX + ROW_PX * len(shown),
    }
    return Chart(key, title, note, {"data": data, "layout": layout}, columns, rows)


def _phase(one: Point, name: str) -> str:
    if name not in one.phases_j:
        return NOTHING
    seconds = one.phases_s.get(name, 0.0)
    power = f" ({one.phases_j[name] / seconds:,.0f})" if seconds else ""
    return f"{one.phases_j[name]:,.1f}{power}"


def _imbalance(one: Point) -> str:
    return number(one.result.multi_gpu.load_imbalance if one.result.multi_gpu else None, ".3f")
