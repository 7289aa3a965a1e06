"""What charts, tables and the page show: a `Point` per result, and its restarts over time.

Power and tokens over time come from the restarts' records, thinned to what can be drawn; extremes are kept. Draws
nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis import statistics
from wattdock.clock import NS_PER_S
from wattdock.reports.cells import DISTURBED, figure_text, marked, row_cells
from wattdock.reports.labels import labels
from wattdock.reports.wording import declared_texts, lengths_text
from wattdock.store import Row
from wattdock.text import dotted, listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from wattdock.analysis import ExperimentResult
    from wattdock.metering import GpuTimeline
    from wattdock.records import PassRecord, RestartRecord
    from wattdock.store import StoredResult

    Array = NDArray[np.float64]

# Kinds of spans over time; all others are "other".
KINDS = ("launch", "load", "idle", "warm-up", "pass", "window")
# Series of a GPU's power, the best first; drawn where its energy counter is absent or was not read.
POWER_READINGS = ("power_sample_w", "power_w", "power_average_w")
# A longer gap between two changes of a counter lies between stored spans, where only the mean power is known.
GAP_S, GAP_PERIODS = 1.0, 10
# With fewer tokens in a bin its rate is noise of whole numbers.
RATE_BINS, TOKENS_PER_BIN, SHORTEST_BIN_S = 400, 20, 0.05
# Settings of the load, of how much is sent, and of what a point's work tells by itself, unless they are distributions.
NOT_WORK = {
    *("batch_size", "arrival", "rate_per_s", "burstiness", "trace_speed", "staggered_start"),
    *("min_duration_s", "min_requests", "seed", "max_output_tokens"),
    *("prompts.source", "prompts.count", "prompts.input_tokens", "prompts.chat_time_utc"),
}


@dataclass(frozen=True)
class Point:
    """One result in charts and tables.

    Attributes:
        row: Its row in the table of results.
        label: A name that no other result of the same report has, marked where others disturbed it.
        j_per_token: None where energy was not measured, and `row.reason` says why.
        tokens_per_s: Output tokens per second; None where nothing was measured.
    """

    stored: StoredResult
    row: Row
    label: str
    j_per_token: statistics.Figure | None
    tokens_per_s: statistics.Figure | None

    @property
    def result(self) -> ExperimentResult:
        """The stored result."""
        return self.stored.result

    @property
    def score(self) -> statistics.Figure | None:
        """Score of the answers to `quality:`, with its interval; None where nothing was asked."""
        if (score := self.row.score) is None:
            return None
        half = statistics.t_factor(inf) * (self.row.score_error or 0.0)
        return statistics.Figure(score, statistics.Interval(score - half, score + half) if half else None)

    @property
    def j_per_correct(self) -> statistics.Figure | None:
        """Joules per correct answer; None without joules, or without a right answer."""
        found = self.result.quality and self.result.quality.overall
        if not found or found.energy_per_correct_j is None:
            return None
        return statistics.Figure(found.energy_per_correct_j, found.interval)

    @property
    def gpus_text(self) -> str:
        """How many GPUs were used, in words."""
        return pluralize(self.row.gpu_count or 0, "GPU")

    @property
    def work(self) -> str:
        """Model, prompts and what was asked of them; figures of other work are no better and no worse."""
        return f"{self.row.model}, {self.row.prompts}, {self.lengths}"

    @property
    def lengths(self) -> str:
        """Declared lengths of requests, and other settings of the work; a command's unit."""
        config, environment = self.result.config, self.result.environment
        if config.command:
            return config.unit
        lengths = lengths_text(self.result)
        if config.prompts.file:
            # The mean of the limits that were sent depends on how many were.
            digest = (environment and environment.dataset_sha256) or "unknown"
            lengths = f"SHA-256 {digest[:8]}, {config.workload.max_output_tokens} out where it has no limit"
        settings = dotted(config.workload.model_dump(mode="json", exclude_defaults=True))
        others = [f"{name} {value}" for name, value in settings if name not in NOT_WORK and value != {}]
        return ", ".join([lengths, *others])

    @property
    def gpu_names(self) -> dict[str, str]:
        """ "GPU <index>" by UUID, for every GPU of the host, and " of <node>" for those of other nodes."""
        if not (environment := self.result.environment):
            return {}
        node = {uuid: f" of {node.name}" for node in environment.nodes for uuid in node.gpu_uuids}
        return {gpu.uuid: f"GPU {gpu.index}{node.get(gpu.uuid, '')}" for gpu in environment.host_gpus}


def points_of(results: Sequence[StoredResult]) -> list[Point]:
    """Return one point per result, by backend, model, GPUs and batch size."""
    points = []
    for stored, label in zip(results, labels(results), strict=True):
        result, row = stored.result, stored.row
        figures = result.energy_figure, result.speed_figure
        points.append(Point(stored, row, marked(label, row.disturbed), *figures))

    def order(point: Point) -> tuple[str, str, int, int, datetime]:
        row = point.row
        return row.backend, row.model, row.gpu_count or 0, row.batch_size or 0, row.started_utc

    return sorted(points, key=order)


# The columns of a result's two figures: of an engine, and of a command.
ENERGY_AND_SPEED = (("energy_per_output_token_j", "output_tokens_per_s"), ("energy_per_unit_j", "units_per_s"))


def point_cells(point: Point, names: Sequence[str]) -> dict[str, str]:
    """Return some columns of a point as people read them, figures with their intervals; its label has the sign."""
    cost, speed = ENERGY_AND_SPEED[point.row.unit is not None]
    figures = {
        "name": point.label,
        "status": point.row.status,
        cost: figure_text(point.j_per_token),
        speed: figure_text(point.tokens_per_s, ",.1f"),
        "energy_per_correct_j": figure_text(point.j_per_correct),
        "score": figure_text(point.score, ".3f"),
    }
    if point.row.max_output_tokens is not None and not isinstance(point.result.config.workload.max_output_tokens, int):
        figures["max_output_tokens"] = declared_texts(point.result)[1]
    return row_cells(point.row, names) | {name: text for name, text in figures.items() if name in names}


def notes(points: Sequence[Point]) -> str:
    """Return what the sign behind a label means, how many results another version analysed, and which are missing."""
    others = sum(bool(point.row.analysed_by) for point in points)
    lacks = dict.fromkeys(name for point in points for name in point.stored.lacks)
    said = {
        DISTURBED: any(point.row.disturbed for point in points),
        f"Another version of wattdock analysed {others} of {len(points)}; --again does so anew.": others,
        f"Declared in the study, and without a result: {listed([*lacks])}.": lacks,
    }
    return " ".join(sentence for sentence, holds in said.items() if holds)


def are_numbers(names: Sequence[str]) -> list[bool]:
    """Return which of these columns hold numbers."""
    types = Row.types()
    return [types[name] in (int, float) for name in names]


def pareto_front(measured: Sequence[Point]) -> set[str]:
    """Return the labels of finished points that no other of their work beats in both tokens/s and joules per token."""
    best, least = set(), dict[str, float]()
    finished = [point for point in measured if point.row.status == "ok"]
    both = [(-p.tokens_per_s.value, p.j_per_token.value, p) for p in finished if p.tokens_per_s and p.j_per_token]
    for _, cost, point in sorted(both, key=lambda entry: entry[:2]):
        if cost < least.get(point.work, inf):
            least[point.work] = cost
            best.add(point.label)
    return best


def efficient(measured: Sequence[Point], cost: Callable[[Point], statistics.Figure | None]) -> set[str]:
    """Return the labels of points that no other is shown to beat: neither at less cost nor by a higher score.

    Another beats a point that it equals or surpasses in both, where in one of them their intervals part.
    """

    def beats(other: Point, point: Point) -> bool:
        scores, costs = (other.score, point.score), (cost(other), cost(point))
        if not (scores[0] and scores[1] and costs[0] and costs[1]):
            return False
        at_least = scores[0].value >= scores[1].value and costs[0].value <= costs[1].value
        return at_least and (_parted(scores[1], scores[0]) or _parted(costs[0], costs[1]))

    return {point.label for point in measured if not any(beats(other, point) for other in measured)}


def _parted(low: statistics.Figure, high: statistics.Figure) -> bool:
    return bool(low.interval and high.interval and low.interval.high < high.interval.low)


def why_no_joules(points: Sequence[Point]) -> str:
    """Return the commonest reason why results have no joules."""
    reasons = Counter(point.row.reason for point in points if point.row.reason).most_common(1)
    return reasons[0][0] if reasons else "nothing was measured"


@dataclass(frozen=True)
class Trace:
    """One line: values at seconds since the restart's first span began; `value[i]` holds from `at_s[i]` on.

    Attributes:
        name: A GPU's UUID, a RAPL domain, or "tokens".
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
        lines: Under "gpu" the power of each GPU of the host, under "host" that of CPU packages and memory, where RAPL
            was read, under "tokens" output tokens per second, in bins.
    """

    label: str
    spans: list[dict[str, Any]]
    lines: dict[str, list[Trace]]


def timelines(stored: StoredResult, *, points: int) -> list[RestartTimeline]:
    """Return the restarts of a result, thinned so that all lines together have about `points` points.

    A restart that was interrupted and resumed has a timeline for each part.

    Raises:
        StoreError: A restart's record cannot be read.
    """
    if not stored.result.spans or not stored.has_records:
        return []
    parts: list[RestartTimeline] = []
    for record in stored.restarts():
        label = str(record.restart + 1)
        label += ", resumed" if any(part.label == label for part in parts) else ""
        if record.spans or record.passes:
            parts.append(_restart(label, record, stored.result))
    most = max(points // max(sum(len(traces) for part in parts for traces in part.lines.values()), 1), 20)

    def thinned(traces: Sequence[Trace]) -> list[Trace]:
        return [hold_last_value(thin(trace, most)) for trace in traces]

    return [replace(part, lines={of: thinned(traces) for of, traces in part.lines.items()}) for part in parts]


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
    # The line's last point stays: it says until when the value before holds.
    places = [
        *(starts + lowest.argmin(axis=1), starts + highest.argmax(axis=1)),
        *((starts + gaps.argmax(axis=1))[gaps.any(axis=1)], [count - 1]),
    ]
    positions = np.unique(np.concatenate(places))
    positions = positions[positions < count]
    return replace(trace, at_s=trace.at_s[positions], value=trace.value[positions])


def hold_last_value(trace: Trace) -> Trace:
    """Repeat the last value before each gap at the gap's start, or the drawn step ends one point early."""
    if trace.source == "reading":
        return trace
    unknown = np.isnan(trace.value)
    ends = np.flatnonzero(unknown[1:] & ~unknown[:-1]) + 1
    at_s, value = np.insert(trace.at_s, ends, trace.at_s[ends]), np.insert(trace.value, ends, trace.value[ends - 1])
    return replace(trace, at_s=at_s, value=value)


def _restart(label: str, record: RestartRecord, result: ExperimentResult) -> RestartTimeline:
    clock = result.environment.clock.number(record.clock) if result.environment else 0
    recorded = [*record.spans, *(measured.span for measured in record.passes)]
    origin_ns, end_ns = min(span.start_ns for span in recorded), max(span.end_ns for span in recorded)
    host = record.timeline.host.energy_j if record.timeline and record.timeline.host else {}
    rows = []
    for span in sorted(result.spans, key=lambda span: span.start_ns):
        # On the clock of another boot, an instant says nothing of this record.
        is_own = (span.restart, span.clock) == (record.restart, clock)
        if not is_own or span.start_ns < origin_ns or span.end_ns > end_ns:
            continue
        name = "idle" if span.name.startswith("idle") else span.name
        kind, joules, lasts_s = name.partition(" ")[0], span.energy_j, (span.end_ns - span.start_ns) / NS_PER_S
        rows.append(
            {
                "span": name if span.pass_index is None else f"{name} {span.pass_index + 1}",
                "kind": kind if kind in KINDS else "other",
                "begins, s": round((span.start_ns - origin_ns) / NS_PER_S, 3),
                "lasts, s": round(lasts_s, 3),
                "J (GPUs used)": None if joules is None else round(joules, 3),
                "mean W": None if joules is None or not lasts_s else round(joules / lasts_s, 3),
            }
        )
    lines = {
        "gpu": [trace for gpu in record.gpus.values() if (trace := _power(gpu, origin_ns))],
        "host": [
            _of_energy(name, _seconds(series.at_ns, origin_ns), series.value)
            for name, series in sorted(host.items())
            if len(series.at_ns) > 1
        ],
        "tokens": _tokens(record.passes, origin_ns),
    }
    return RestartTimeline(label, rows, lines)


def _seconds(at_ns: NDArray[Any], origin_ns: int) -> Array:
    return (at_ns - origin_ns) / NS_PER_S


def _power(gpu: GpuTimeline, origin_ns: int) -> Trace | None:
    """Return a GPU's power: of the driver's samples, else of the counter's changes, else as the driver reports it."""
    if len(gpu.ticks.energy_mj) <= 1:
        readings = [gpu.series[name] for name in POWER_READINGS if name in gpu.series and len(gpu.series[name].at_ns)]
        if not readings:
            return None
        return Trace(gpu.uuid, "reading", _seconds(readings[0].at_ns, origin_ns), readings[0].value)
    if samples := gpu.power_samples:
        sampled_j = np.cumsum(samples.value * np.diff(samples.at_ns, prepend=samples.at_ns[:1]) / NS_PER_S)
        return _of_energy(gpu.uuid, _seconds(samples.at_ns, origin_ns), sampled_j)
    # A change's instant is halfway between the reads around it.
    changed_ns = (gpu.ticks.before_start_ns + gpu.ticks.after_end_ns) / 2
    return _of_energy(gpu.uuid, _seconds(changed_ns, origin_ns), gpu.ticks.energy_mj / 1e3)


def _of_energy(name: str, at_s: Array, energy_j: Array) -> Trace:
    """Return the mean power between readings of an energy; none where a counter was reset, nor across a gap."""
    elapsed = np.maximum(np.diff(at_s), 1e-6)
    power = np.diff(energy_j) / elapsed
    power[(power < 0) | (elapsed > max(GAP_S, GAP_PERIODS * float(np.median(elapsed))))] = np.nan
    return Trace(name, "counter", at_s, np.append(power, power[-1:]))


def _tokens(passes: Sequence[PassRecord], origin_ns: int) -> list[Trace]:
    """Return output tokens per second in equal bins of each pass; nothing where no token was recorded."""
    counts = [measured.tokens.output_tokens for measured in passes]
    if not any(map(len, counts)):
        return []
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
    return [Trace("tokens", "tokens", np.concatenate(starts), np.concatenate(rates))]
