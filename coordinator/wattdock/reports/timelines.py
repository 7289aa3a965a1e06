"""A stored run's power and tokens over time, small enough to draw: extremes are kept, the rest thinned.

Reads the timelines of a run's restarts; draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

NS_PER_S = 1e9
SUM = "sum"
# The calls that bracket a change of a counter; the change lies between them.
EDGES = ("before_start_ns", "after_end_ns")
# Where a GPU has no energy counter, or it was not read.
POWER_READINGS = ("power_w", "power_average_w")
# Between what is stored around the spans lie gaps, in which only the mean is known.
GAP_S, GAP_PERIODS = 1.0, 10
# With fewer tokens in a bin its rate is noise of whole numbers.
RATE_BINS, TOKENS_PER_BIN = 400, 20
SHORTEST_BIN_S = 0.05


@dataclass(frozen=True)
class Trace:
    """One line: values at seconds since the restart's first span began; `value[i]` holds from `at_s[i]` on.

    Attributes:
        name: A GPU's UUID, "sum", a domain of the host's own counters, or "tokens".
        source: "counter" for energy between two changes of the counter ÷ the time between them, "reading" for power
            as the driver says it.
    """

    name: str
    source: str
    at_s: Array
    value: Array


@dataclass(frozen=True)
class DrawnSpan:
    """A span of the run: name, pass (None outside the passes), seconds since the first began, joules."""

    name: str
    pass_index: int | None
    start_s: float
    end_s: float
    energy_j: float | None


@dataclass(frozen=True)
class RestartTimeline:
    """What one restart looked like over time.

    Attributes:
        power_w: Of each GPU of the host, and the sum over those used where they are several.
        host_w: CPU packages and memory, where they were read.
        tokens_per_s: Output tokens per second, in bins.
        clock: One of several where the host was booted anew in the middle of the restart; each is a timeline.
    """

    restart: int
    spans: tuple[DrawnSpan, ...]
    power_w: tuple[Trace, ...]
    host_w: tuple[Trace, ...]
    tokens_per_s: Trace | None
    clock: int = 0


def timelines(row: StoredResult, *, points: int) -> list[RestartTimeline]:
    """Return the run's restarts, each line thinned so that all lines together have about `points` points.

    Raises:
        StoreError: The run's timeline cannot be read.
    """
    parts = sorted({(span.restart, span.clock) for span in row.result.spans})
    if not parts or not (row.folder / RESTARTS).is_dir():
        return []
    used = row.result.environment.gpu_uuids if row.result.environment else []
    columns = _columns(row)
    every = [_restart(number, clock, row, used, columns) for number, clock in parts]
    lines = sum(len(one.power_w) + len(one.host_w) + (one.tokens_per_s is not None) for one in every)
    most = max(points // max(lines, 1), 20)
    return [_thinned(one, most) for one in every]


def thin(trace: Trace, most: int) -> Trace:
    """Return about `most` points of a line, the smallest and the largest of each stretch of it among them."""
    count = len(trace.at_s)
    if count <= most:
        return trace
    width = -(-count // max(most // 2, 1))
    stretches = np.full((-(-count // width), width), np.nan)
    stretches.flat[:count] = trace.value
    # The first hole of a stretch stays one.
    holes = np.isnan(stretches)
    lowest, highest = (np.where(holes, fill, stretches) for fill in (np.inf, -np.inf))
    places = [lowest.argmin(axis=1), highest.argmax(axis=1), holes.argmax(axis=1)]
    starts = np.arange(len(stretches)) * width
    # Where the line ends says until when its last value holds.
    chosen = [starts + places[0], starts + places[1], (starts + places[2])[holes.any(axis=1)], [count - 1]]
    kept = np.unique(np.concatenate(chosen))
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


def _thinned(one: RestartTimeline, most: int) -> RestartTimeline:
    def drawn(trace: Trace) -> Trace:
        return to_its_end(thin(trace, most))

    tokens = drawn(one.tokens_per_s) if one.tokens_per_s else None
    power, host = (tuple(map(drawn, traces)) for traces in (one.power_w, one.host_w))
    return replace(one, power_w=power, host_w=host, tokens_per_s=tokens)


def _columns(row: StoredResult) -> Mapping[str, Any]:
    """Return the rows that are drawn, as arrays; the other series of a timeline stay on disk."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ["restart", "pass", "clock", "gpu_uuid", "series", "at_ns", "value", *EDGES]
    table = load_table(row.folder, TIMELINE, columns)
    series = table["series"].cast(pa.string())
    wanted = pc.or_(pc.is_in(series, pa.array(_drawn(row))), pc.starts_with(series, "host_"))
    table = table.filter(wanted).sort_by("at_ns")
    numbers = {name: table[name].to_numpy() for name in ("restart", "at_ns", "value", *EDGES)}
    texts = {name: _coded(table[name].cast(pa.string())) for name in ("gpu_uuid", "series")}
    identities = row.result.environment.clock.identities if row.result.environment else []
    numbered = {clock: number for number, clock in enumerate(identities)}
    clocks = np.array([numbered.get(clock, 0) for clock in _coded(table["clock"].cast(pa.string()))], dtype=np.int16)
    return texts | numbers | {"pass": np.array(table["pass"].fill_null(-1)), "clock": clocks}


def _coded(texts: Any) -> NDArray[np.object_]:
    """Return a column of few different texts; equal ones are one object, which makes comparing them quick."""
    import pyarrow as pa

    coded = texts.combine_chunks().dictionary_encode()
    known = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    where: NDArray[np.object_] = known[pa.array(coded.indices).fill_null(-1).to_numpy()]
    return where


def _drawn(row: StoredResult) -> list[str]:
    """Return the series to read: power as the driver says it only where a GPU has no counter."""
    facts = row.result.energy.meter.values() if row.result.energy else ()
    counted = all(fact.source == "counter" for fact in facts)
    return [COUNTER, TOKENS, *(() if counted else POWER_READINGS)]


def _restart(
    number: int, clock: int, row: StoredResult, used: Sequence[str], columns: Mapping[str, Any]
) -> RestartTimeline:
    own = [span for span in row.result.spans if (span.restart, span.clock) == (number, clock)]
    origin_ns = min(span.start_ns for span in own)
    here = (columns["restart"] == number) & (columns["clock"] == clock)
    part = {name: column[here] for name, column in columns.items()}
    part["at_s"] = (part["at_ns"] - origin_ns) / NS_PER_S
    metered = set(part["gpu_uuid"]) - {None}
    host = [gpu.uuid for gpu in row.result.environment.host_gpus] if row.result.environment else []
    uuids = [*(uuid for uuid in host if uuid in metered), *sorted(metered - set(host))]
    energy = {uuid: found for uuid in uuids if (found := _energy(part, uuid, origin_ns)) is not None}
    power = [_of_energy(uuid, *energy[uuid]) if uuid in energy else _reading(part, uuid) for uuid in uuids]
    if len(used) > 1 and set(used) <= energy.keys():
        power.append(_sum({uuid: energy[uuid] for uuid in used}))
    domains = [name for name in sorted(set(part["series"])) if name.startswith("host_") and _is_line(part, name)]
    host_w = [_of_energy(name.removeprefix("host_").removesuffix("_j"), *_series(part, name)) for name in domains]
    spans = tuple(_span(span, origin_ns) for span in sorted(own, key=lambda one: one.start_ns))
    return RestartTimeline(
        restart=number,
        spans=spans,
        power_w=tuple(one for one in power if one is not None),
        host_w=tuple(host_w),
        tokens_per_s=_tokens(part, spans),
        clock=clock,
    )


def _span(span: StoredSpan, origin_ns: int) -> DrawnSpan:
    start_s, end_s = ((at_ns - origin_ns) / NS_PER_S for at_ns in (span.start_ns, span.end_ns))
    return DrawnSpan(span.name, span.pass_index, start_s, end_s, span.energy_j)


def _energy(part: Mapping[str, Any], uuid: str, origin_ns: int) -> tuple[Array, Array] | None:
    """Return when a GPU's counter changed, the middle of what brackets each change, and its joules then."""
    own = (part["gpu_uuid"] == uuid) & (part["series"] == COUNTER)
    if own.sum() < 2:
        return None
    before, after = part["before_start_ns"][own].astype(np.float64), part["after_end_ns"][own].astype(np.float64)
    return ((before + after) / 2 - origin_ns) / NS_PER_S, part["value"][own] / 1e3


def _of_energy(name: str, at_s: Array, energy_j: Array) -> Trace:
    """Return the mean power between readings of an energy; none where a counter was reset, nor across a gap."""
    elapsed = np.maximum(np.diff(at_s), 1e-6)
    power = np.diff(energy_j) / elapsed
    power[(power < 0) | (elapsed > max(GAP_S, GAP_PERIODS * float(np.median(elapsed))))] = np.nan
    return Trace(name, "counter", at_s, np.append(power, power[-1:]))


def _sum(energy: Mapping[str, tuple[Array, Array]]) -> Trace:
    """Return the GPUs' power together, on the instants of the first: no joule is lost between their ticks."""
    at_s = next(iter(energy.values()))[0]
    total = np.sum([np.interp(at_s, *one) for one in energy.values()], axis=0)
    return _of_energy(SUM, at_s, total)


def _reading(part: Mapping[str, Any], uuid: str) -> Trace | None:
    for name in POWER_READINGS:
        own = (part["gpu_uuid"] == uuid) & (part["series"] == name)
        if own.any():
            return Trace(uuid, "reading", part["at_s"][own], part["value"][own])
    return None


def _is_line(part: Mapping[str, Any], name: str) -> bool:
    return int((part["series"] == name).sum()) > 1


def _series(part: Mapping[str, Any], name: str) -> tuple[Array, Array]:
    own = part["series"] == name
    return part["at_s"][own], part["value"][own]


def _tokens(part: Mapping[str, Any], spans: Sequence[DrawnSpan]) -> Trace | None:
    """Return output tokens per second in equal bins of each pass; what was generated outside of them was not kept."""
    passes = [span for span in spans if span.pass_index is not None]
    own = part["series"] == TOKENS
    if not own.any() or not passes:
        return None
    at_s, counts, numbers = part["at_s"][own], part["value"][own], part["pass"][own]
    measured_s = sum(span.end_s - span.start_s for span in passes)
    tokens = sum(float(counts[numbers == span.pass_index].max(initial=0.0)) for span in passes)
    bin_s = max(measured_s / RATE_BINS, TOKENS_PER_BIN * measured_s / max(tokens, 1.0), SHORTEST_BIN_S)
    starts, rates = [], []
    for span in passes:
        here = numbers == span.pass_index
        edges = np.linspace(span.start_s, span.end_s, max(int((span.end_s - span.start_s) / bin_s), 1) + 1)
        emitted, _ = np.histogram(at_s[here], edges, weights=np.diff(counts[here], prepend=0.0))
        starts.append(edges)
        rates.append(np.append(emitted / np.diff(edges), np.nan))
    return Trace("tokens", "tokens", np.concatenate(starts), np.concatenate(rates))
