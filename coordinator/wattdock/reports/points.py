"""Each result's figures as charts and tables show them. Pure; draws nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from wattdock.analysis import ENERGY, SPEED, labels, mean_interval, restart_values
from wattdock.reports.style import PHASES
from wattdock.reports.words import Figure
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.reports.style import Series
    from wattdock.store import StoredResult

# Measured passes whose prefill and decode cannot be told apart.
NOT_SPLIT = "passes, not split"
DECADE = 10


@dataclass(frozen=True)
class Point:
    """One result in a chart.

    Attributes:
        j_per_token: Joules per output token; None where it was not measured, `reason` says why.
        tokens_per_s: Output tokens per second.
        phases_j: Joules of the GPUs used by what they did, under the names in `style.PHASES`.
        phases_s: How long each took.
        per_gpu_j: Joules of the measured passes by GPU UUID.
        publishable: None where there was nothing to judge.
    """

    row: StoredResult
    label: str
    backend: str
    model: str
    gpu_count: int
    batch_size: int
    output_tokens: int
    j_per_token: Figure | None
    tokens_per_s: Figure | None
    phases_j: dict[str, float]
    phases_s: dict[str, float]
    per_gpu_j: dict[str, float]
    publishable: bool | None
    reason: str | None

    @property
    def result(self) -> ExperimentResult:
        """The stored result."""
        return self.row.result

    @property
    def series(self) -> Series:
        """What its dot shares colour and shape with."""
        return self.backend, self.gpu_count, self.model


def points(rows: Sequence[StoredResult]) -> list[Point]:
    """Return one point per row, by backend, model, GPUs and batch size."""
    named = labels([row.result for row in rows])
    made = [_point(row, label) for row, label in zip(rows, named, strict=True)]
    return sorted(made, key=lambda one: (one.backend, one.model, one.gpu_count, one.batch_size, one.result.started_utc))


def grouped(shown: Sequence[Point], of: Callable[[Point], str]) -> dict[str, list[Point]]:
    """Group by backend, model and `of`; the name leaves the model out where all have the same."""
    several = len({one.model for one in shown}) > 1
    groups: defaultdict[str, list[Point]] = defaultdict(list)
    for one in shown:
        groups[", ".join([one.backend, *([one.model] if several else []), of(one)])].append(one)
    return dict(groups)


def by_gpus(one: Point) -> str:
    """Return how many GPUs a result used, in words."""
    return pluralize(one.gpu_count, "GPU")


def by_batch(one: Point) -> str:
    """Return a result's batch size, in words."""
    return f"batch {one.batch_size}"


def pareto_front(measured: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in both tokens/s and joules per token, the slowest first."""
    known = [
        (one.tokens_per_s.value, one.j_per_token.value, one) for one in measured if one.tokens_per_s and one.j_per_token
    ]
    best: list[tuple[float, Point]] = []
    for _, cost, one in sorted(known, key=lambda found: (-found[0], found[1])):
        if not best or cost < best[-1][0]:
            best.append((cost, one))
    return [one for _, one in best[::-1]]


def phase_parts(shown: Sequence[Point]) -> dict[str, list[float | None]]:
    """Return the joules of every point by phase, in the phases' order, those that no style knows last."""
    found = {name for one in shown for name in one.phases_j}
    names = [*(name for name in PHASES if name in found), *sorted(found - PHASES.keys())]
    return {name: [one.phases_j.get(name) for one in shown] for name in names}


def gpu_shares(shown: Sequence[Point]) -> dict[str, list[float | None]]:
    """Return each GPU's part of every point's joules per output token, by "GPU <index on its host>"."""
    numbers = [_gpu_numbers(one) for one in shown]
    found = sorted({number for own in numbers for number in own.values()})
    return {
        f"GPU {number}": [
            next((one.per_gpu_j[uuid] / one.output_tokens for uuid, at in own.items() if at == number), None)
            for one, own in zip(shown, numbers, strict=True)
        ]
        for number in found
    }


def _gpu_numbers(one: Point) -> dict[str, int]:
    seen = one.result.environment
    return {gpu.uuid: gpu.index for gpu in seen.host_gpus if gpu.uuid in one.per_gpu_j} if seen else {}


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether values are too far apart for a linear axis, and a logarithmic one can show them."""
    return bool(values) and 0 < min(values) < max(values) / DECADE


def _point(row: StoredResult, label: str) -> Point:
    result = row.result
    seen, done, energy = result.environment, result.performance, result.energy
    model = result.config.get("model") or {}
    phases_j, phases_s = _phases(result)
    return Point(
        row=row,
        label=label,
        backend=str(result.config.get("backend")),
        model=seen.model.name if seen else str(model.get("id") or model.get("shape") or model.get("path")),
        gpu_count=seen.gpu_count if seen else 0,
        batch_size=int((result.config.get("workload") or {}).get("batch_size") or 0),
        output_tokens=done.output_tokens if done else 0,
        j_per_token=_joules(result),
        tokens_per_s=_tokens(result),
        phases_j=phases_j,
        phases_s=phases_s,
        per_gpu_j={uuid: joules for uuid, joules in energy.per_gpu_j.items() if joules is not None} if energy else {},
        publishable=result.audit.publishable if result.audit else None,
        reason=result.error.message if result.error else energy.reason if energy else None,
    )


def _joules(result: ExperimentResult) -> Figure | None:
    energy = result.energy
    if energy is None or energy.total_j is None or energy.energy_per_output_token_j is None:
        return None
    if over_restarts := _over_restarts(result, ENERGY):
        return over_restarts
    value = energy.energy_per_output_token_j
    timing_j = energy.uncertainty.timing95_j
    if timing_j is None or not energy.total_j:
        return Figure(value)
    half = timing_j / energy.total_j * value
    return Figure(value, max(value - half, 0.0), value + half, "timing")


def _tokens(result: ExperimentResult) -> Figure | None:
    if result.performance is None:
        return None
    return _over_restarts(result, SPEED) or Figure(result.performance.output_tokens_per_s)


def _over_restarts(result: ExperimentResult, quantity: str) -> Figure | None:
    """Return the mean of restarts with its interval, which is not that of all passes' sum; None of one restart."""
    values = restart_values(result).get(quantity, [])
    interval = mean_interval(values)
    return Figure(mean(values), *interval, "restarts") if interval else None


def _phases(result: ExperimentResult) -> tuple[dict[str, float], dict[str, float]]:
    """Return joules and seconds of everything that has a span; the passes are split where that was measured."""
    joules: defaultdict[str, float] = defaultdict(float)
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in result.spans:
        name = NOT_SPLIT if span.pass_index is not None else "idle" if span.name.startswith("idle") else span.name
        if span.energy_j is not None:
            joules[name] += span.energy_j
            seconds[name] += (span.end_ns - span.start_ns) / 1e9
    split = result.energy.phases if result.energy else None
    if split and split.prefill_j is not None and split.decode_j is not None and joules[NOT_SPLIT]:
        between_j = joules.pop(NOT_SPLIT) - split.prefill_j - split.decode_j
        between_s = seconds.pop(NOT_SPLIT) - (split.prefill_s or 0.0) - (split.decode_s or 0.0)
        joules.update({"prefill": split.prefill_j, "decode": split.decode_j, "between rounds": max(between_j, 0.0)})
        seconds.update(
            {"prefill": split.prefill_s or 0.0, "decode": split.decode_s or 0.0, "between rounds": between_s}
        )
    return dict(joules), dict(seconds)
