"""A stored restart's power and tokens over time, small enough to draw: extremes are kept, the rest is thinned.

Reads the timelines of a result folder; draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.records import COUNTER, TIMELINE, TOKENS
from wattdock.store import RESTARTS, load_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wattdock.analysis import StoredSpan
    from wattdock.store import StoredResult

    Array = NDArray[np.float64]
    Columns = Mapping[str, Any]

NS_PER_S = 1e9
SUM = "sum over the GPUs used"
# The calls that bracket a change of a counter; the change lies between them.
EDGES = ("before_start_ns", "after_end_ns")
# Where a GPU has no energy counter, or it was not read.
POWER_READINGS = ("power_w", "power_average_w")
# A longer gap between two changes of a counter lies between stored spans, where only the mean power is known.
GAP_S, GAP_PERIODS = 1.0, 10
# With fewer tokens in a bin its rate is noise of whole numbers.
RATE_BINS, TOKENS_PER_BIN, SHORTEST_BIN_S = 400, 20, 0.05


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


def timelines(row: StoredResult, *, points: int) -> list[RestartTimeline]:
    """Return the restarts of a result, thinned so that all lines together have about `points` points.

    A restart during which the host was rebooted has two clocks, and a timeline for each.

    Raises:
        StoreError: The timeline cannot be read.
    """
    parts = sorted({(span.restart, span.clock) for span in row.result.spans})
    if not parts or not (row.folder / RESTARTS).is_dir():
        return []
    columns = _columns(row)
    found = []
    for restart, clock in parts:
        here = (columns["restart"] == restart) & (columns["clock"] == clock)
        spans = [span for span in row.result.spans if (span.restart, span.clock) == (restart, clock)]
        own = {name: column[here] for name, column in columns.items()}
        label = f"{restart + 1}{', after a reboot' if clock else ''}"
        found.append(_restart(label, row, sorted(spans, key=lambda span: span.start_ns), own))
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


def _columns(row: StoredResult) -> Columns:
    """Return the series that are drawn, as arrays; the other series of a timeline stay on disk."""
    import pyarrow as pa
    import pyarrow.compute as pc

    meters = row.result.energy.meter.values() if row.result.energy else ()
    # Power as the driver reports it is drawn only where a GPU has no counter.
    readings = () if all(meter.source == "counter" for meter in meters) else POWER_READINGS
    columns = ["restart", "pass", "clock", "gpu_uuid", "series", "at_ns", "value", *EDGES]
    table = load_table(row.folder, TIMELINE, columns)
    series = table["series"].cast(pa.string())
    wanted = pc.or_(pc.is_in(series, pa.array([COUNTER, TOKENS, *readings])), pc.starts_with(series, "host_"))
    table = table.filter(wanted).sort_by("at_ns")
    numbers = {name: table[name].to_numpy() for name in ("restart", "at_ns", "value", *EDGES)}
    texts = {name: _texts(table[name].cast(pa.string())) for name in ("gpu_uuid", "series", "clock")}
    identities = row.result.environment.clock.identities if row.result.environment else []
    numbered = {clock: number for number, clock in enumerate(identities)}
    clocks = np.array([numbered.get(clock, 0) for clock in texts["clock"]], dtype=np.int16)
    return texts | numbers | {"pass": np.array(table["pass"].fill_null(-1)), "clock": clocks}


def _texts(column: Any) -> NDArray[np.object_]:
    """Return a column of few different texts; equal ones are one object, which makes comparing them quick."""
    import pyarrow as pa

    encoded = column.combine_chunks().dictionary_encode()
    known = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    texts: NDArray[np.object_] = known[pa.array(encoded.indices).fill_null(-1).to_numpy()]
    return texts


def _restart(label: str, row: StoredResult, spans: Sequence[StoredSpan], part: dict[str, Any]) -> RestartTimeline:
    environment = row.result.environment
    origin_ns = spans[0].start_ns
    part["at_s"] = (part["at_ns"] - origin_ns) / NS_PER_S
    part["changed_s"] = ((part["before_start_ns"] + part["after_end_ns"]) / 2 - origin_ns) / NS_PER_S
    metered = set(part["gpu_uuid"]) - {None}
    host = [gpu.uuid for gpu in environment.host_gpus] if environment else []
    uuids = [*(uuid for uuid in host if uuid in metered), *sorted(metered - set(host))]
    counters = {uuid: _series(part, COUNTER, uuid, at="changed_s") for uuid in uuids}
    counted = {uuid: (at_s, mj / 1e3) for uuid, (at_s, mj) in counters.items() if len(at_s) > 1}
    power = [_of_energy(uuid, *counted[uuid]) if uuid in counted else _reading(part, uuid) for uuid in uuids]
    used = environment.gpu_uuids if environment else []
    if len(used) > 1 and set(used) <= counted.keys():
        power.append(_sum([counted[uuid] for uuid in used]))
    domains = [name for name in sorted(set(part["series"])) if name.startswith("host_")]
    host_w = {name: series for name in domains if len((series := _series(part, name))[0]) > 1}
    return RestartTimeline(
        label=label,
        spans=[_span(span, origin_ns) for span in spans],
        power_w=tuple(trace for trace in power if trace is not None),
        host_w=tuple(_of_energy(name.removeprefix("host_").removesuffix("_j"), *host_w[name]) for name in host_w),
        tokens_per_s=_tokens(part, [span for span in spans if span.pass_index is not None], origin_ns),
    )


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


def _reading(part: Columns, uuid: str) -> Trace | None:
    for name in POWER_READINGS:
        at_s, power_w = _series(part, name, uuid)
        if len(at_s):
            return Trace(uuid, "reading", at_s, power_w)
    return None


def _series(part: Columns, name: str, uuid: str | None = None, *, at: str = "at_s") -> tuple[Array, Array]:
    """Return instants and values of a series of one GPU, or of the host."""
    own = part["series"] == name
    if uuid is not None:
        own &= part["gpu_uuid"] == uuid
    return part[at][own], part["value"][own]


def _tokens(part: Columns, passes: Sequence[StoredSpan], origin_ns: int) -> Trace | None:
    """Return output tokens per second in equal bins of each pass; tokens outside the passes are not stored."""
    own = part["series"] == TOKENS
    if not own.any() or not passes:
        return None
    at_s, counts, numbers = part["at_s"][own], part["value"][own], part["pass"][own]
    measured_s = sum(span.end_ns - span.start_ns for span in passes) / NS_PER_S
    tokens = sum(float(counts[numbers == span.pass_index].max(initial=0.0)) for span in passes)
    bin_s = max(measured_s / RATE_BINS, TOKENS_PER_BIN * measured_s / max(tokens, 1.0), SHORTEST_BIN_S)
    starts, rates = [], []
    for span in passes:
        here = numbers == span.pass_index
        start_s, end_s = ((at_ns - origin_ns) / NS_PER_S for at_ns in (span.start_ns, span.end_ns))
        edges = np.linspace(start_s, end_s, max(int((end_s - start_s) / bin_s), 1) + 1)
        emitted, _ = np.histogram(at_s[here], edges, weights=np.diff(counts[here], prepend=0.0))
        starts.append(edges)
        rates.append(np.append(emitted / np.diff(edges), np.nan))
    return Trace("tokens", "tokens", np.concatenate(starts), np.concatenate(rates))
