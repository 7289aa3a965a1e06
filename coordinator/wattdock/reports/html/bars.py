"""Stacked bars of a page: where joules went, by phase and by GPU. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock.reports.html.chart import FRAME_PX, J_PER_TOKEN, MOST_ROWS, ROW_PX, Chart, names, plain, short
from wattdock.reports.points import gpu_shares, phase_parts
from wattdock.reports.style import PHASES, colours
from wattdock.reports.words import NOTHING, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.reports.points import Point

PATTERNS = ("", "/", "x", "-", ".", "+", "\\", "|")


def phases(points: Sequence[Point]) -> Chart | None:
    """Return where each run's joules went, from launch to its last pass."""
    shown = [one for one in points if any(one.phases_j.values())]
    series = phase_parts(shown)
    note = (
        "Joules of the GPUs used, over all restarts. A figure per token holds the measured passes only: prefill and "
        "decode where requests ran in rounds, else one part. Waits between spans are not in it. Results that were "
        "measured on one loaded model each show its load whole."
    )
    rows = tuple((one.label, *(_phase(one, name) for name in series)) for one in shown)
    columns = ("experiment", *(f"{name}, J (mean W)" for name in series))
    table = Chart("phases", "Energy by phase", note, None, columns, rows)
    return _stacked(table, shown, series, "J (GPU boards)")


def by_gpu(points: Sequence[Point]) -> Chart | None:
    """Return how the measured passes' energy per output token was shared out among GPUs."""
    shown = [one for one in points if one.per_gpu_j and one.output_tokens]
    if max((len(one.per_gpu_j) for one in shown), default=0) < 2:
        return None
    series = gpu_shares(shown)
    rows = tuple(
        (one.label, *(number(values[at]) for values in series.values()), _imbalance(one))
        for at, one in enumerate(shown)
    )
    columns = ("experiment", *(f"{name}, J per output token" for name in series), "largest ÷ mean")
    note = "GPUs by their index on the host; their parts add up to the result's figure."
    return _stacked(Chart("gpus", "Energy by GPU", note, None, columns, rows), shown, series, J_PER_TOKEN)


def _stacked(
    table: Chart, shown: Sequence[Point], series: Mapping[str, Sequence[float | None]], unit: str
) -> Chart | None:
    """Return a table with its bars, one per result, each part with a colour and a pattern of its own."""
    if not shown:
        return None
    if len(shown) > MOST_ROWS:
        return replace(table, note=f"{table.note} {len(shown)} results are too many to draw.")
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
    return replace(table, spec={"data": data, "layout": layout})


def _phase(one: Point, name: str) -> str:
    if name not in one.phases_j:
        return NOTHING
    seconds = one.phases_s.get(name, 0.0)
    power = f" ({one.phases_j[name] / seconds:,.0f})" if seconds else ""
    return f"{one.phases_j[name]:,.1f}{power}"


def _imbalance(one: Point) -> str:
    return number(one.result.multi_gpu.load_imbalance if one.result.multi_gpu else None, ".3f")
