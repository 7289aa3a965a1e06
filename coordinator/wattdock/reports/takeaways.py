"""What a chart of several results says, in a sentence that stands above it: of the rows that it draws. Pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wattdock.reports.charts import J_PER_TOKEN, TOKENS_PER_S, UNBEATEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.reports.chart_data import Point
    from wattdock.reports.charts import Rows


def _best(rows: Rows, _: Sequence[Point]) -> str:
    is_cost = J_PER_TOKEN in rows[0]
    unit, form, what = (J_PER_TOKEN, ".4g", "costs least") if is_cost else (TOKENS_PER_S, ",.1f", "is fastest")
    best, *others = sorted(rows, key=lambda row: row[unit], reverse=not is_cost)
    if not others or not best[unit]:
        return ""
    name, figure = best["experiment"], f"{best[unit]:{form}} {unit.removesuffix(' (GPU boards)')}"
    if close := [row["experiment"] for row in others if not _are_apart([best, row], unit)]:
        return f"Which {what} is open: no interval parts {name} ({figure}) from {_few(close)}."
    return f"{name} {what}, {figure}; {others[-1]['experiment']} has {others[-1][unit] / best[unit]:.3g} times that."


def _are_apart(pair: Rows, unit: str) -> bool:
    """Return whether both rows have intervals, and these do not meet."""
    lows, highs = ([row[f"{unit} {end}"] for row in pair] for end in ("low", "high"))
    return None not in lows and max(lows) > min(highs)


def _front(rows: Rows, _: Sequence[Point]) -> str:
    unbeaten = [row["experiment"] for row in rows if row[UNBEATEN] == "yes"]
    of_model = " of its model" if len({row["model"] for row in rows}) > 1 else ""
    count = f"{len(unbeaten)} of {len(rows)} ({_few(unbeaten)})"
    return f"Beaten in both speed and cost by no other result{of_model}: {count}." if len(rows) > 1 else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _loading(_: Rows, points: Sequence[Point]) -> str:
    # Results measured on one loaded model each have the spans of its start.
    joules = {
        (point.row.study_id, span.start_ns, span.name): span.energy_j
        for point in points
        for span in point.result.spans
        if span.energy_j
    }
    load_j = sum(span_j for (*_, name), span_j in joules.items() if name == "load")
    return f"Loading took {load_j / sum(joules.values()):.0%} of all joules drawn here, each span counted once."


def _along(x: str, rows: Rows, _points: Sequence[Point]) -> str:
    """Say how joules change over a column, on the chart's longest line; the first of those that are equally long."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row[J_PER_TOKEN]:
            lines.setdefault(row["series"], []).append((row[x], row[J_PER_TOKEN]))
    # Where one x has several results, these differ in something else too.
    comparable = [name for name, line in lines.items() if 1 < len(line) == len(dict(line))]
    if not comparable:
        return ""
    longest = max(comparable, key=lambda name: len(lines[name]))
    (first, before), *_, (last, after) = lines[longest]
    of = f" ({longest})" if len(lines) > 1 else ""
    return f"From {first:,} to {last:,} {x}, joules per output token change by {after / before - 1:+.0%}{of}."


# By the chart's key in `CHARTS`; each takes its rows and the page's points, and returns nothing where there is nothing
# to say.
TAKEAWAYS: Mapping[str, Callable[[Rows, Sequence[Point]], str]] = {
    "intervals": _best,
    "pareto": _front,
    "phases": _loading,
    "scaling": partial(_along, "GPUs used"),
    "batch": partial(_along, "requests in flight"),
}
