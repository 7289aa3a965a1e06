"""Dots, lines and fronts of a page, as plotly.js takes them, each with the same figures as a table. Pure.

Colours of text, grid and ground belong to the page's theme and are set by its script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.report.html.bars import by_gpu, phases
from wattdock.report.html.chart import (
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
    spans_decades,
)
from wattdock.report.points import pareto_front
from wattdock.report.style import colours, gpus_in_words, looks
from wattdock.report.words import figure_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattdock.report.points import Figure, Point


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
    data = []
    for name, own, style in _groups(shown):
        figures = [(one.j_per_token if with_energy else one.tokens_per_s) for one in own]
        data.append(
            {
                **_dots(name, own, style),
                "x": [short(one.value) for one in figures if one],
                "y": [place[id(one)] for one in own],
                "error_x": _bars(figures),
                "text": [_hover(one) for one in own],
            }
        )
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
    data = []
    for name, own, style in _groups(shown):
        costs, speeds = [one.j_per_token for one in own], [one.tokens_per_s for one in own]
        data.append(
            {
                **_dots(name, own, style),
                "x": [short(one.value) for one in speeds if one],
                "y": [short(one.value) for one in costs if one],
                "error_x": _bars(speeds),
                "error_y": _bars(costs),
                "text": [_hover(one) for one in own],
            }
        )
    fronts = list(_fronts(shown))
    layout = {
        "xaxis": {"title": {"text": TOKENS_PER_S}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": J_PER_TOKEN}, "rangemode": "tozero"},
        "height": 480,
    }
    note = (
        "Lower right is better. Colour tells backends apart, the marker's shape the number of GPUs. Hollow: may not be "
        f"published. {_front_note(shown)}"
    )
    rows = tuple(
        (
            one.label,
            one.backend,
            str(one.gpu_count),
            figure_text(one.tokens_per_s, ",.1f"),
            figure_text(one.j_per_token),
        )
        for one in shown
    )
    columns = ("experiment", "backend", "GPUs", TOKENS_PER_S, J_PER_TOKEN)
    spec: Spec = {"data": fronts + data, "layout": layout}
    wide = spans_decades([one.j_per_token.value for one in shown if one.j_per_token])
    return Chart("pareto", "Energy against throughput", note, spec, columns, rows, logarithmic=wide)


def scaling(points: Sequence[Point]) -> Iterator[Chart]:
    """Yield how cost and speed change with the number of GPUs and with the batch size, each where it was varied."""
    shown = [one for one in points if one.tokens_per_s]
    if len({one.gpu_count for one in shown}) > 1:
        yield _over(shown, "scaling", "Scaling over GPUs", "GPUs used", lambda one: one.gpu_count, _by_batch)
    if len({one.batch_size for one in shown}) > 1:
        yield _over(shown, "batch", "Scaling over the batch size", "requests in flight", _batch, _by_gpus)


def _over(
    shown: Sequence[Point],
    key: str,
    title: str,
    unit: str,
    x_of: Callable[[Point], int],
    group_of: Callable[[Point], str],
) -> Chart:
    """Return two panels over one quantity: joules per token above, tokens per second below."""
    with_energy = any(one.j_per_token for one in shown)
    panels: list[tuple[str, str, Callable[[Point], Figure | None]]] = [
        ("y", TOKENS_PER_S, lambda one: one.tokens_per_s)
    ]
    if with_energy:
        panels.append(("y2", J_PER_TOKEN, lambda one: one.j_per_token))
    groups = list(dict.fromkeys(group_of(one) for one in shown))
    shade, shape = colours(groups), looks(range(len(groups)))
    data = []
    for at, name in enumerate(groups):
        own = sorted((one for one in shown if group_of(one) == name), key=x_of)
        for axis, _, of in panels:
            known = [one for one in own if of(one)]
            line = {
                **_dots(name, known, (shade[name], shape[at].marker)),
                "mode": "lines+markers",
                "line": {"dash": shape[at].dash, "color": shade[name], "width": 1.5},
                "x": [x_of(one) for one in known],
                "y": [short(found.value) for one in known if (found := of(one))],
                "error_y": _bars([of(one) for one in known]),
                "text": [_hover(one) for one in known],
                "yaxis": axis,
                "legendgroup": name,
                "showlegend": axis == "y",
            }
            data.append(line)
    ticks = sorted({x_of(one) for one in shown})
    layout: Spec = {
        "xaxis": {"title": {"text": unit}, "type": "log", "tickvals": ticks, "ticktext": [str(one) for one in ticks]},
        "yaxis": {
            "title": {"text": TOKENS_PER_S},
            "domain": [0, 0.46] if with_energy else [0, 1],
            "rangemode": "tozero",
        },
        "height": 620 if with_energy else 400,
    }
    if with_energy:
        layout["yaxis2"] = {"title": {"text": J_PER_TOKEN}, "domain": [0.54, 1], "rangemode": "tozero", "anchor": "x"}
    rows = tuple(
        (group_of(one), str(x_of(one)), figure_text(one.tokens_per_s, ",.1f"), figure_text(one.j_per_token))
        for one in shown
    )
    note = (
        "Lines join results of one model and backend that differ in this; other settings may differ too, which the "
        "summary tells."
    )
    columns = ("line", unit, TOKENS_PER_S, J_PER_TOKEN)
    wide = spans_decades([found.value for one in shown if (found := panels[-1][2](one))])
    return Chart(key, title, note, {"data": data, "layout": layout}, columns, rows, logarithmic=wide)


def _groups(shown: Sequence[Point]) -> Iterator[tuple[str, list[Point], tuple[str, str]]]:
    """Yield the results of each backend, number of GPUs and model, with their colour and marker."""
    shade, shape = colours(one.backend for one in shown), looks(one.gpu_count for one in shown)
    models = {one.model for one in shown}
    for backend, count, model in dict.fromkeys((one.backend, one.gpu_count, one.model) for one in shown):
        own = [one for one in shown if (one.backend, one.gpu_count, one.model) == (backend, count, model)]
        name = ", ".join([backend, gpus_in_words(count), *([model] if len(models) > 1 else [])])
        yield name, own, (shade[backend], shape[count].marker)


def _fronts(shown: Sequence[Point]) -> Iterator[Spec]:
    models = sorted({one.model for one in shown})
    for model in models:
        front = pareto_front([one for one in shown if one.model == model])
        if len(front) > 1:
            yield {
                "type": "scatter",
                "mode": "lines",
                "name": "Pareto front" if len(models) == 1 else plain(f"Pareto front, {model}"),
                "x": [short(one.tokens_per_s.value) for one in front if one.tokens_per_s],
                "y": [short(one.j_per_token.value) for one in front if one.j_per_token],
                "line": {"dash": "dot", "width": 1.5, "color": "#888888"},
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
        said.insert(0, "The dotted line joins what nothing else of its model beats in both.")
    return " ".join(said)


def _dots(name: str, own: Sequence[Point], style: tuple[str, str]) -> Spec:
    colour, marker = style
    symbols = [marker if one.publishable else f"{marker}-open" for one in own]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "marker": {"color": colour, "symbol": symbols, "size": 9, "line": {"width": 1.5, "color": colour}},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bars(figures: Sequence[Figure | None]) -> Spec:
    """Return error bars; a figure without an interval has none."""
    known = [one for one in figures if one]
    return {
        "type": "data",
        "symmetric": False,
        "array": [short((one.high if one.high is not None else one.value) - one.value) for one in known],
        "arrayminus": [short(one.value - (one.low if one.low is not None else one.value)) for one in known],
        "thickness": 1.2,
        "width": 3,
    }


def _hover(one: Point) -> str:
    verdict = "may be published" if one.publishable else "may not be published"
    cost = f"{figure_text(one.j_per_token)} J per output token" if one.j_per_token else "joules not measured"
    return "<br>".join([plain(one.label), cost, f"{figure_text(one.tokens_per_s, ',.1f')} output tokens/s", verdict])


def _batch(one: Point) -> int:
    return one.batch_size


def _by_batch(one: Point) -> str:
    return f"{one.backend}, {one.model}, batch {one.batch_size}"


def _by_gpus(one: Point) -> str:
    return f"{one.backend}, {one.model}, {gpus_in_words(one.gpu_count)}"
