"""What a chart of several results says, in a sentence that stands above it. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wattdock.reports.chart_data import pareto_front

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.reports.chart_data import Point


def _cheapest(points: Sequence[Point]) -> str:
    costs = sorted((point.j_per_token.value, point.label) for point in points if point.j_per_token)
    speeds = sorted((point.tokens_per_s.value, point.label) for point in points if point.tokens_per_s)
    if len(costs) > 1 and costs[0][0] > 0:
        (least, cheap), (most, dear) = costs[0], costs[-1]
        return f"{cheap} costs least, {least:.4g} J/output token; {dear} costs {most / least:.3g} times as much."
    if len(speeds) > 1 and speeds[0][0] > 0 and not costs:
        (least, slow), (most, fast) = speeds[0], speeds[-1]
        return f"{fast} is fastest, {most:,.1f} output tokens/s, {most / least:.3g} times as fast as {slow}."
    return ""


def _front(points: Sequence[Point]) -> str:
    drawn = [point for point in points if point.j_per_token and point.tokens_per_s]
    models = dict.fromkeys(point.row.model for point in drawn)
    best = [point for model in models for point in pareto_front([one for one in drawn if one.row.model == model])]
    names = ", ".join(point.label for point in best[:3]) + (", …" if len(best) > 3 else "")
    return f"{len(best)} of {len(drawn)} are beaten in speed and cost by no other: {names}." if len(drawn) > 1 else ""


def _nearest(points: Sequence[Point]) -> str:
    known = Counter(point.row.nearest_limit for point in points if point.row.nearest_limit)
    names = ", ".join(f"{limit} ({count})" for limit, count in known.most_common())
    return f"Nearest limit, of so many results: {names}." if known else ""


def _loading(points: Sequence[Point]) -> str:
    parts = [(name, part_j) for point in points for name, (part_j, _) in point.phases.items()]
    total_j, load_j = sum(part_j for _, part_j in parts), sum(part_j for name, part_j in parts if name == "load")
    return f"Loading took {load_j / total_j:.0%} of all joules drawn here." if total_j else ""


def _over(
    x: Callable[[Point], int], alike: Callable[[Point], int | None], unit: str
) -> Callable[[Sequence[Point]], str]:
    """Return what says how joules change over a quantity, along the longest series of what is alike in another."""

    def sentence(points: Sequence[Point]) -> str:
        series: dict[tuple[object, ...], list[tuple[int, float]]] = {}
        for point in points:
            if point.j_per_token:
                key = (point.row.backend, point.row.model, alike(point))
                series.setdefault(key, []).append((x(point), point.j_per_token.value))
        if not series:
            return ""
        # The first of those that are equally long.
        longest = max(series.values(), key=len)
        line = sorted(longest)
        (first, before), (last, after) = line[0], line[-1]
        if first == last or before <= 0:
            return ""
        return f"From {first:,} to {last:,} {unit}, joules per output token change by {after / before - 1:+.0%}."

    return sentence


# By the chart's key in `CHARTS`; each takes all points of a page and returns nothing where there is nothing to say.
TAKEAWAYS: Mapping[str, Callable[[Sequence[Point]], str]] = {
    "intervals": _cheapest,
    "pareto": _front,
    "limits": _nearest,
    "phases": _loading,
    "scaling": _over(lambda point: point.row.gpu_count or 0, lambda point: point.row.batch_size, "GPUs"),
    "batch": _over(lambda point: point.row.batch_size, lambda point: point.row.gpu_count, "requests in flight"),
}
