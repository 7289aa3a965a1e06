"""How cost and speed change with one quantity: lines over the number of GPUs, and over the batch size. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.reports.html.chart import J_PER_TOKEN, TOKENS_PER_S, Chart, Spec
from wattdock.reports.html.marks import dots, on_axis
from wattdock.reports.points import by_batch, by_gpus, grouped, spans_decades
from wattdock.reports.style import line_styles
from wattdock.reports.words import figure_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattdock.reports.points import Point
    from wattdock.reports.words import Figure


def scaling(points: Sequence[Point]) -> Iterator[Chart]:
    """Yield how cost and speed change with the number of GPUs and with the batch size, each where it was varied."""
    shown = [one for one in points if one.tokens_per_s]
    if len({one.gpu_count for one in shown}) > 1:
        over = _Quantity("GPUs used", lambda one: one.gpu_count, by_batch)
        yield _over(shown, "scaling", "Scaling over GPUs", over)
    if len({one.batch_size for one in shown}) > 1:
        over = _Quantity("requests in flight", lambda one: one.batch_size, by_gpus)
        yield _over(shown, "batch", "Scaling over the batch size", over)


@dataclass(frozen=True)
class _Quantity:
    """What is on the horizontal axis: its unit, a result's value, and what its line's results share."""

    unit: str
    of: Callable[[Point], int]
    shared: Callable[[Point], str]


def _over(shown: Sequence[Point], key: str, title: str, over: _Quantity) -> Chart:
    """Return two panels over one quantity: joules per token above, tokens per second below."""
    groups = grouped(shown, over.shared)
    styles = line_styles(groups)
    with_energy = any(one.j_per_token for one in shown)
    data = []
    panels: list[tuple[str, Callable[[Point], Figure | None]]] = [("y", lambda one: one.tokens_per_s)]
    if with_energy:
        panels.append(("y2", lambda one: one.j_per_token))
    for name, own in groups.items():
        colour, look = styles[name]
        line = {"dash": look.dash, "color": colour, "width": 1.5}
        for axis, of in panels:
            known = [(one, found) for one in sorted(own, key=over.of) if (found := of(one))]
            data.append(
                {
                    **dots(name, [one for one, _ in known], styles[name]),
                    "mode": "lines+markers",
                    "line": line,
                    "x": [over.of(one) for one, _ in known],
                    **on_axis("y", [found for _, found in known]),
                    "yaxis": axis,
                    "legendgroup": name,
                    "showlegend": axis == "y",
                }
            )
    rows = tuple(
        (name, str(over.of(one)), figure_text(one.tokens_per_s, ",.1f"), figure_text(one.j_per_token))
        for name, own in groups.items()
        for one in own
    )
    note = (
        "Lines join results of one model and backend that differ in this; other settings may differ too, which the "
        "summary tells."
    )
    columns = ("line", over.unit, TOKENS_PER_S, J_PER_TOKEN)
    wide = spans_decades([found.value for one in shown if (found := panels[-1][1](one))])
    spec = {"data": data, "layout": _panels(shown, over, with_energy=with_energy)}
    return Chart(key, title, note, spec, columns, rows, logarithmic=wide)


def _panels(shown: Sequence[Point], over: _Quantity, *, with_energy: bool) -> Spec:
    ticks = sorted({over.of(one) for one in shown})
    names = [str(one) for one in ticks]
    layout: Spec = {
        "xaxis": {"title": {"text": over.unit}, "type": "log", "tickvals": ticks, "ticktext": names},
        "yaxis": {"title": {"text": TOKENS_PER_S}, "rangemode": "tozero"},
        "height": 620 if with_energy else 400,
    }
    if with_energy:
        layout["yaxis"]["domain"] = [0, 0.46]
        layout["yaxis2"] = {"title": {"text": J_PER_TOKEN}, "domain": [0.54, 1], "rangemode": "tozero", "anchor": "x"}
    return layout
