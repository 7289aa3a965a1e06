"""What charts, tables and the page show of each result: one `Point` with its intervals, and its restarts over time.

Power and tokens over time come from the restarts' records, thinned to what can be drawn; extremes are kept. Draws
nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis import conditions, statistics
from wattdock.clock import NS_PER_S
from wattdock.reports.terminal import Figure
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis import ExperimentResult, StoredSpan
    from wattdock.metering import GpuTimeline
    from wattdock.records import PassRecord, RestartRecord
    from wattdock.store import StoredResult

    Array = NDArray[np.float64]

# Energy of measured passes whose prefill and decode cannot be told apart.
NOT_SPLIT = "passes, not split"
# The phases of a restart in their order.
PHASES = ("launch", "load", "idle", "warm-up", "prefill", "decode", "between rounds", NOT_SPLIT)
SUM = "sum over the GPUs used"
# Where a GPU has no energy counter, or it was not read.
POWER_READINGS = ("power_w", "power_average_w")
# A longer gap between two changes of a counter lies between stored spans, where only the mean power is known.
GAP_S, GAP_PERIODS = 1.0, 10
# With fewer tokens in a bin its rate is noise of whole numbers.
RATE_BINS, TOKENS_PER_BIN, SHORTEST_BIN_S = 400, 20, 0.05


@dataclass(frozen=True)
class Point:
    """One result in charts and tables.

    Attributes:
        label: A name that no other result of the same report has.
        j_per_token: Joules per output token; None where energy was not measured, and `reason` says why.
        tokens_per_s: Output tokens per second.
        phases: Joules of the GPUs used and seconds, by phase (`PHASES`).
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
        tokens_per_s=_speed(result),
        phases=_phases(result),
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


def _speed(result: ExperimentResult) -> Figure | None:
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
            seconds[name] += (span.end_ns - span.start_ns) / NS_PER_S
    split = result.energy.phases if result.energy else None
    if split and split.prefill_j is not None and split.decode_j is not None and joules[NOT_SPLIT]:
        prefill_s, decode_s = split.prefill_s or 0.0, split.decode_s or 0.0
        between_j = max(joules.pop(NOT_SPLIT) - split.prefill_j - split.decode_j, 0.0)
        joules.update({"prefill": split.prefill_j, "decode": split.decode_j, "between rounds": between_j})
        between_s = seconds.pop(NOT_SPLIT) - prefill_s - decode_s
        seconds.update({"prefill": prefill_s, "decode": decode_s, "between rounds": between_s})
    known = [*(name for name in PHASES if name in joules), *sorted(joules.keys() - set(PHASES))]
    return {name: (joules[name], seconds[name]) for name in known if joules[name]}


@dataclass(frozen=True)
class Trace:
    """One line: values at seconds since the restart's first span began; `value[i]` holds from `at_s[i]` on.

    Attributes:
        name: A GPU's UUID, `SUM`, a RAPL domain, or "tokens".
        source: "counter" for energy between two changes of the counter ÷ the time between them, "reading" for power
            as the driver reports it.
    """

    name: str
    source: str
    at_s: Array
    value: Array


@dataclass(frozen=True)
class RestartTimeline:
    """What one restart looked like over time.

    Attributes:
        label: Number of the restart, from 1.
        spans: A row per span: name, kind, begin and duration in seconds, joules, mean watts.
        power_w: Of each GPU of the host, and of those used together where they are several.
        host_w: CPU packages and memory, where RAPL was read.
        tokens_per_s: Output tokens per second, in bins.
    """

    label: str
    spans: list[dict[str, Any]]
    power_w: tuple[Trace, ...]
    host_w: tuple[Trace, ...]
    tokens_per_s: Trace | None

    @property
    def has_lines(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.power_w or self.host_w or self.tokens_per_s)


def timelines(stored: StoredResult, *, points: int) -> list[RestartTimeline]:
    """Return the restarts of a result, thinned so that all lines together have about `points` points.

    A restart that was interrupted and resumed has a timeline for each part.

    Raises:
        StoreError: A restart's record cannot be read.
    """
    if not stored.result.spans or not stored.has_records:
        return []
    found: list[RestartTimeline] = []
    for record in stored.restarts():
        label = str(record.restart + 1)
        label += ", resumed" if any(part.label == label for part in found) else ""
        inside = {(span.start_ns, span.end_ns) for span in (*record.spans, *(part.span for part in record.passes))}
        own = [span for span in stored.result.spans if (span.start_ns, span.end_ns) in inside]
        if own:
            found.append(_restart(label, record, sorted(own, key=lambda span: span.start_ns)))
    lines = sum(len(part.power_w) + len(part.host_w) + (part.tokens_per_s is not None) for part in found)
    most = max(points // max(lines, 1), 20)
    return [_thinned(part, most) for part in found]


def thin(trace: Trace, most: int) -> Trace:
    """Return about `most` points of a line, the smallest and the largest of each stretch of it among them."""
    count = len(trace.at_s)
    if count <= most:
        return trace
    width = -(-count // max(most // 2, 1))
    stretches = np.full((-(-count // width), width), np.nan)
    stretches.flat[:count] = trace.value
    # The first gap of a stretch stays one.
    gaps = np.isnan(stretches)
    lowest, highest = (np.where(gaps, fill, stretches) for fill in (np.inf, -np.inf))
    starts = np.arange(len(stretches)) * width
    # Where the line ends says until when its last value holds.
    places = [
        *(starts + lowest.argmin(axis=1), starts + highest.argmax(axis=1)),
        *((starts + gaps.argmax(axis=1))[gaps.any(axis=1)], [count - 1]),
    ]
    kept = np.unique(np.concatenate(places))
    kept = kept[kept < count]
    return Trace(trace.name, trace.source, trace.at_s[kept], trace.value[kept])


def to_its_end(trace: Trace) -> Trace:
    """Repeat the last value before each gap at the gap's start, or the drawn step ends one point early."""
    if trace.source == "reading":
        return trace
    unknown = np.isnan(trace.value)
    ends = np.flatnonzero(unknown[1:] & ~unknown[:-1]) + 1
    at_s, value = np.insert(trace.at_s, ends, trace.at_s[ends]), np.insert(trace.value, ends, trace.value[ends - 1])
    return Trace(trace.name, trace.source, at_s, value)


def _thinned(part: RestartTimeline, most: int) -> RestartTimeline:
    power, host = (tuple(to_its_end(thin(trace, most)) for trace in traces) for traces in (part.power_w, part.host_w))
    tokens = to_its_end(thin(part.tokens_per_s, most)) if part.tokens_per_s else None
    return RestartTimeline(part.label, part.spans, power, host, tokens)


def _restart(label: str, record: RestartRecord, spans: Sequence[StoredSpan]) -> RestartTimeline:
    origin_ns = spans[0].start_ns
    counted = {uuid: _counter(gpu, origin_ns) for uuid, gpu in record.gpus.items() if len(gpu.ticks.energy_mj) > 1}
    power = [
        _of_energy(uuid, *counted[uuid]) if uuid in counted else _reading(gpu, origin_ns)
        for uuid, gpu in record.gpus.items()
    ]
    used = record.environment.gpu_uuids if record.environment else []
    if len(used) > 1 and set(used) <= counted.keys():
        power.append(_sum([counted[uuid] for uuid in used]))
    host = record.timeline.host.energy_j if record.timeline and record.timeline.host else {}
    return RestartTimeline(
        label=label,
        spans=[_span(span, origin_ns) for span in spans],
        power_w=tuple(trace for trace in power if trace is not None),
        host_w=tuple(
            _of_energy(name, _seconds(series.at_ns, origin_ns), series.value)
            for name, series in sorted(host.items())
            if len(series.at_ns) > 1
        ),
        tokens_per_s=_tokens(record.passes, origin_ns),
    )


def _seconds(at_ns: NDArray[Any], origin_ns: int) -> Array:
    return (at_ns - origin_ns) / NS_PER_S


def _counter(gpu: GpuTimeline, origin_ns: int) -> tuple[Array, Array]:
    """Return when the energy counter changed, which lies between the two calls around each change, and joules."""
    middle_ns = (gpu.ticks.before_start_ns + gpu.ticks.after_end_ns) / 2
    return _seconds(middle_ns, origin_ns), gpu.ticks.energy_mj / 1e3


def _span(span: StoredSpan, origin_ns: int) -> dict[str, Any]:
    lasts_s = (span.end_ns - span.start_ns) / NS_PER_S
    name = "idle" if span.name.startswith("idle") else span.name
    return {
        "span": name if span.pass_index is None else f"pass {span.pass_index + 1}",
        "kind": "pass"
        if span.pass_index is not None
        else name
        if name in ("launch", "load", "idle", "warm-up")
        else "other",
        "begins, s": round((span.start_ns - origin_ns) / NS_PER_S, 3),
        "lasts, s": round(lasts_s, 3),
        "J (GPUs used)": span.energy_j,
        "mean W": span.energy_j / lasts_s if span.energy_j is not None and lasts_s else None,
    }


def _of_energy(name: str, at_s: Array, energy_j: Array) -> Trace:
    """Return the mean power between readings of an energy; none where a counter was reset, nor across a gap."""
    elapsed = np.maximum(np.diff(at_s), 1e-6)
    power = np.diff(energy_j) / elapsed
    power[(power < 0) | (elapsed > max(GAP_S, GAP_PERIODS * float(np.median(elapsed))))] = np.nan
    return Trace(name, "counter", at_s, np.append(power, power[-1:]))


def _sum(counted: Sequence[tuple[Array, Array]]) -> Trace:
    """Return the GPUs' power together, on the instants of the first: no joule is lost between their ticks."""
    at_s = counted[0][0]
    return _of_energy(SUM, at_s, np.sum([np.interp(at_s, *counter) for counter in counted], axis=0))


def _reading(gpu: GpuTimeline, origin_ns: int) -> Trace | None:
    for name in POWER_READINGS:
        if (series := gpu.series.get(name)) and len(series.at_ns):
            return Trace(gpu.uuid, "reading", _seconds(series.at_ns, origin_ns), series.value)
    return None


def _tokens(passes: Sequence[PassRecord], origin_ns: int) -> Trace | None:
    """Return output tokens per second in equal bins of each pass."""
    counts = [measured.tokens.output_tokens for measured in passes]
    if not any(len(count) for count in counts):
        return None
    measured_s = sum(measured.span.duration_s for measured in passes)
    tokens = sum(float(count.max(initial=0)) for count in counts)
    bin_s = max(measured_s / RATE_BINS, TOKENS_PER_BIN * measured_s / max(tokens, 1.0), SHORTEST_BIN_S)
    starts, rates = [], []
    for measured, count in zip(passes, counts, strict=True):
        span = measured.span
        start_s, end_s = ((at_ns - origin_ns) / NS_PER_S for at_ns in (span.start_ns, span.end_ns))
        edges = np.linspace(start_s, end_s, max(int(span.duration_s / bin_s), 1) + 1)
        at_s = _seconds(measured.tokens.at_ns, origin_ns)
        emitted, _ = np.histogram(at_s, edges, weights=np.diff(count, prepend=0))
        starts.append(edges)
        rates.append(np.append(emitted / np.diff(edges), np.nan))
    return Trace("tokens", "tokens", np.concatenate(starts), np.concatenate(rates))
