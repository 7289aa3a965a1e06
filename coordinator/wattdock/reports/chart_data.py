"""What charts, tables and the page show of each result: one `Point` per result, with its intervals. Draws nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from wattdock.analysis import conditions, statistics
from wattdock.reports.terminal import Figure
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.store import StoredResult

# Energy of measured passes whose prefill and decode cannot be told apart.
NOT_SPLIT = "passes, not split"
# The phases of a restart in their order.
PHASES = ("launch", "load", "idle", "warm-up", "prefill", "decode", "between rounds", NOT_SPLIT)


@dataclass(frozen=True)
class Point:
    """One result in charts and tables.

    Attributes:
        label: A name that no other result of the same report has.
        j_per_token: Joules per output token; None where energy was not measured, and `reason` says why.
        tokens_per_s: Output tokens per second.
        phases: Joules of the GPUs used and seconds, by phase (`PHASES`).
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
    phases: dict[str, tuple[float, float]]
    per_gpu_j: dict[str, float]
    publishable: bool | None
    reason: str | None

    @property
    def result(self) -> ExperimentResult:
        """The stored result."""
        return self.row.result

    @property
    def gpus_text(self) -> str:
        """How many GPUs were used, in words."""
        return pluralize(self.gpu_count, "GPU")

    @property
    def gpu_names(self) -> dict[str, str]:
        """ "GPU <index>" by UUID, for every GPU of the host."""
        environment = self.result.environment
        return {gpu.uuid: f"GPU {gpu.index}" for gpu in environment.host_gpus} if environment else {}


def points(rows: Sequence[StoredResult]) -> list[Point]:
    """Return one point per result, by backend, model, GPUs and batch size."""
    names = conditions.labels([row.result for row in rows])
    made = [_point(row, label) for row, label in zip(rows, names, strict=True)]
    return sorted(made, key=lambda p: (p.backend, p.model, p.gpu_count, p.batch_size, p.result.started_utc))


def pareto_front(measured: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both tokens/s and joules per token, the slowest first."""
    known = [(p.tokens_per_s.value, p.j_per_token.value, p) for p in measured if p.tokens_per_s and p.j_per_token]
    best: list[tuple[float, Point]] = []
    for _, cost, point in sorted(known, key=lambda found: (-found[0], found[1])):
        if not best or cost < best[-1][0]:
            best.append((cost, point))
    return [point for _, point in best[::-1]]


def why_no_joules(shown: Sequence[Point]) -> str:
    """Return the commonest reason why results have no joules."""
    reasons = Counter(point.reason for point in shown if point.reason).most_common(1)
    return reasons[0][0] if reasons else "nothing was measured"


def _point(row: StoredResult, label: str) -> Point:
    result = row.result
    environment, performance, energy = result.environment, result.performance, result.energy
    model = result.config.get("model") or {}
    asked_for = str(model.get("id") or model.get("shape") or model.get("path"))
    return Point(
        row=row,
        label=label,
        backend=str(result.config.get("backend")),
        model=environment.model.name if environment else asked_for,
        gpu_count=environment.gpu_count if environment else 0,
        batch_size=int((result.config.get("workload") or {}).get("batch_size") or 0),
        output_tokens=performance.output_tokens if performance else 0,
        j_per_token=_joules(result),
        tokens_per_s=_tokens(result),
        phases=_phases(result),
        per_gpu_j={uuid: joules for uuid, joules in energy.per_gpu_j.items() if joules is not None} if energy else {},
        publishable=result.audit.publishable if result.audit else None,
        reason=result.error.message if result.error else energy.reason if energy else None,
    )


def _joules(result: ExperimentResult) -> Figure | None:
    energy = result.energy
    if energy is None or energy.total_j is None or energy.energy_per_output_token_j is None:
        return None
    if over_restarts := _over_restarts(result, statistics.ENERGY):
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
    return _over_restarts(result, statistics.SPEED) or Figure(result.performance.output_tokens_per_s)


def _over_restarts(result: ExperimentResult, quantity: str) -> Figure | None:
    """Return the mean over restarts with its interval; None for a single restart."""
    values = statistics.restart_values(result).get(quantity, [])
    interval = statistics.mean_interval(values)
    return Figure(mean(values), *interval, "restarts") if interval else None


def _phases(result: ExperimentResult) -> dict[str, tuple[float, float]]:
    """Return joules and seconds of every phase; passes are split into prefill and decode where that was measured."""
    joules: defaultdict[str, float] = defaultdict(float)
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in result.spans:
        name = NOT_SPLIT if span.pass_index is not None else "idle" if span.name.startswith("idle") else span.name
        if span.energy_j is not None:
            joules[name] += span.energy_j
            seconds[name] += (span.end_ns - span.start_ns) / 1e9
    split = result.energy.phases if result.energy else None
    if split and split.prefill_j is not None and split.decode_j is not None and joules[NOT_SPLIT]:
        prefill_s, decode_s = split.prefill_s or 0.0, split.decode_s or 0.0
        between_j = max(joules.pop(NOT_SPLIT) - split.prefill_j - split.decode_j, 0.0)
        joules.update({"prefill": split.prefill_j, "decode": split.decode_j, "between rounds": between_j})
        between_s = seconds.pop(NOT_SPLIT) - prefill_s - decode_s
        seconds.update({"prefill": prefill_s, "decode": decode_s, "between rounds": between_s})
    known = [*(name for name in PHASES if name in joules), *sorted(joules.keys() - set(PHASES))]
    return {name: (joules[name], seconds[name]) for name in known if joules[name]}
