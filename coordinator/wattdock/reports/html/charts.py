"""All charts of a page but its timelines, as plotly.js takes them; here those of dots and fronts. Pure.

Colours of text, grid and ground belong to the page's theme and are set by its script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.reports.html.bars import by_gpu, phases
from wattdock.reports.html.chart import (
    FRAME_PX,
    J_PER_TOKEN,
    MOST_ROWS,
    ROW_PX,
    TOKENS_PER_S,
    Chart,
    Spec,
    names,
    plain,
    short,
)
from wattdock.reports.html.lines import scaling
from wattdock.reports.html.marks import dots, on_axis
from wattdock.reports.points import by_gpus, grouped, pareto_front, spans_decades
from wattdock.reports.style import dot_styles, front_looks
from wattdock.reports.words import figure_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wattdock.reports.points import Point
    from wattdock.reports.style import Look


def charts(points: Sequence[Point]) -> list[Chart]:
    """Return every chart of a page but the timelines, those with nothing to draw left out."""
    every = (intervals(points), pareto(points), phases(points), by_gpu(points))
    return [*(one for one in every if one), *scaling(points)]


def intervals(points: Sequence[Point]) -> Chart | None:
    """Return each result's figure with its interval; tokens per second where no result has joules."""
    with_energy = any(one.j_per_token for one in points)
    shown = [one for one in points if (one.j_per_token if with_energy else one.tokens_per_s)]
    unit = J_PER_TOKEN if with_energy else TOKENS_PER_S
    title = "Energy per output token" if with_energy else "Throughput"
    if len(shown) < 2:
        return None
    if len(shown) > MOST_ROWS:
        return Chart(
            "intervals", title, f"{len(shown)} results are too many for one chart; the summary has them.", None
        )
    place = {id(one): at for at, one in enumerate(shown)}
    data, styles = [], dot_styles(one.series for one in shown)
    for name, own in grouped(shown, by_gpus).items():
        figures = [(one.j_per_token if with_energy else one.tokens_per_s) for one in own]
        places = [place[id(one)] for one in own]
        data.append({**dots(name, own, styles[own[0].series]), **on_axis("x", figures), "y": places})
    layout = {
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": names([one.label for one in shown]),
        "height": FRAME_PX + ROW_PX * len(shown),
    }
    note = (
        "Bars are 95 % intervals: over restarts, or of timing alone where there was one restart. "
        "Hollow: may not be published."
    )
    return Chart("intervals", title, note, {"data": data, "layout": layout})


def pareto(points: Sequence[Point]) -> Chart | None:
    """Return joules per output token against tokens per second, with the front of each model."""
    shown = [one for one in points if one.j_per_token and one.tokens_per_s]
    if not shown:
        return None
    fronts = front_looks(one.model for one in shown)
    data, styles = list(_fronts(shown, fronts)), dot_styles(one.series for one in shown)
    for name, own in grouped(shown, by_gpus).items():
        speeds, costs = [one.tokens_per_s for one in own], [one.j_per_token for one in own]
        data.append({**dots(name, own, styles[own[0].series]), **on_axis("x", speeds), **on_axis("y", costs)})
    layout = {
        "xaxis": {"title": {"text": TOKENS_PER_S}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": J_PER_TOKEN}, "rangemode": "tozero"},
        "height": 480,
    }
    note = (
        "Lower right is better. Colour tells backends apart, the marker's shape the number of GPUs"
        f"{' and the model' if len(fronts) > 1 else ''}. Hollow: may not be published. {_front_note(shown)}"
    )
    rows = tuple(
        (
            one.label,
            one.backend,
            one.model,
            str(one.gpu_count),
            figure_text(one.tokens_per_s, ",.1f"),
            figure_text(one.j_per_token),
        )
        for one in shown
    )
    columns = ("experiment", "backend", "model", "GPUs", TOKENS_PER_S, J_PER_TOKEN)
    spec: Spec = {"data": data, "layout": layout}
    wide = spans_decades([one.j_per_token.value for one in shown if one.j_per_token])
    return Chart("pareto", "Energy against throughput", note, spec, columns, rows, logarithmic=wide)


def _fronts(shown: Sequence[Point], fronts: Mapping[str, Look]) -> Iterator[Spec]:
    for model, look in fronts.items():
        front = pareto_front([one for one in shown if one.model == model])
        if len(front) > 1:
            yield {
                "type": "scatter",
                "mode": "lines",
                "name": "Pareto front" if len(fronts) == 1 else plain(f"Pareto front, {model}"),
                "x": [short(one.tokens_per_s.value) for one in front if one.tokens_per_s],
                "y": [short(one.j_per_token.value) for one in front if one.j_per_token],
                "line": {"dash": look.dash, "width": 1.5, "color": "#888888"},
                "hoverinfo": "skip",
            }


def _front_note(shown: Sequence[Point]) -> str:
    """Say what the front is: a line, or the one result of a model that beats all its others."""
    said = []
    for model in sorted({one.model for one in shown}):
        own = [one for one in shown if one.model == model]
        front = pareto_front(own)
        if len(front) == 1 and len(own) > 1:
            said.append(f"Of {model}, {front[0].label} beats every other in both.")
    if len(said) < len({one.model for one in shown}) and len(shown) > 1:
        said.insert(0, "A grey line joins what nothing else of its model beats in both.")
    return " ".join(said)
