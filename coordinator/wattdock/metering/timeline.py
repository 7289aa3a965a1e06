"""The timeline that a meter fills and that energy arithmetic reads.

Arrays only: no hardware, no backend, no files. All instants are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from wattdock.clock import NS_PER_S
from wattdock.host import GpuProcess
from wattdock.values import EnergyBoundary

if TYPE_CHECKING:
    from collections.abc import Sequence

EnergySource = Literal["counter"]
# What tells the energy between two changes of the counter.
PowerCourse = Literal["driver_samples", "counter_only"]
# Name of the series of the driver's power samples, one each 20 ms; all series of power, the best first.
SAMPLES = "power_sample_w"
POWER_SERIES = (SAMPLES, "power_w", "power_average_w")
# Name of the series of the memory's power, a part of the board's.
HBM_POWER = "hbm_power_w"
# How much an excerpt keeps on either side of a span: enough idle time to see the span's edges.
EXCERPT_MARGIN_NS = 6 * NS_PER_S
# How many counter changes an excerpt keeps on either side of a span: energy at an instant is computed from them.
NEIGHBOURS = 4
# Longest gap between readings across which energy is computed: a longer standstill may have lost energy.
MAX_GAP_S = 1.0
MJ_PER_J = 1_000


@dataclass(frozen=True)
class Span:
    """A named interval.

    Raises:
        ValueError: It ends before it begins.
    """

    name: str
    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        """Refuse a negative length."""
        if self.end_ns < self.start_ns:
            raise ValueError(f"the span {self.name[:40]!r} ends before it begins")

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    def contains(self, other: Span) -> bool:
        """Return whether another span lies inside this one."""
        return self.start_ns <= other.start_ns and other.end_ns <= self.end_ns


@dataclass(frozen=True)
class LagModel:
    """How far a reading trails what it measures: reading(t) shows what was true at t - lag.

    One lag per GPU, the same at both ends of a span; negative where the reading leads.
    """

    mean_s: float
    std_s: float


@dataclass(frozen=True)
class Ticks:
    """The energy counter's change instants, one element per observed change.

    A change happened between the instant at which the last call that returned the old value sampled it, somewhere in
    [before_start_ns, before_end_ns], and the one at which the first call that returned the new value did, somewhere in
    [after_start_ns, after_end_ns].

    Attributes:
        before_start_ns, before_end_ns: When the last call that saw the old value began and ended, int64, shape (n,).
        after_start_ns, after_end_ns: The same for the first call that saw the new value.
        energy_mj: The new value, millijoules since driver load, int64, shape (n,).
    """

    before_start_ns: NDArray[np.int64]
    before_end_ns: NDArray[np.int64]
    after_start_ns: NDArray[np.int64]
    after_end_ns: NDArray[np.int64]
    energy_mj: NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, int, int, int]] = ()) -> Ticks:
        """Return the changes of rows in the order of the attributes."""
        return cls(*np.asarray(rows, dtype=np.int64).reshape(-1, 5).T.copy())

    @property
    def period_s(self) -> float | None:
        """Median interval between changes in seconds; None with fewer than three changes."""
        if len(self.energy_mj) < 3:
            return None
        return float(np.median(np.diff(self.after_start_ns))) / NS_PER_S

    def inside(self, spans: Sequence[Span]) -> Ticks:
        """Return the changes inside any span, with `NEIGHBOURS` more on either side."""
        inside = _inside(self.after_end_ns, spans)
        keep = inside.copy()
        for distance in range(1, NEIGHBOURS + 1):
            keep[distance:] |= inside[:-distance]
            keep[:-distance] |= inside[distance:]
        return Ticks(**{column.name: getattr(self, column.name)[keep] for column in fields(self)})


@dataclass(frozen=True)
class Series:
    """One sampled quantity: values at instants, shapes (n,); the unit stands in the name it is stored under."""

    at_ns: NDArray[np.int64]
    value: NDArray[np.float64]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, float]]) -> Series:
        """Return the series of (instant in nanoseconds, value) rows."""
        at_ns, value = zip(*rows, strict=True) if rows else ((), ())
        return cls(np.asarray(at_ns, dtype=np.int64), np.asarray(value, dtype=np.float64))

    def inside(self, spans: Sequence[Span]) -> Series:
        """Return the samples inside any span."""
        keep = _inside(self.at_ns, spans)
        return Series(self.at_ns[keep], self.value[keep])

    def increase(self, span: Span) -> float | None:
        """Return by how much a growing quantity grew, linear between samples.

        None where samples do not surround the span, or are missing in it for longer than a second.
        """
        first = int(np.searchsorted(self.at_ns, span.start_ns, side="right")) - 1
        last = int(np.searchsorted(self.at_ns, span.end_ns, side="left"))
        if first < 0 or last >= len(self.at_ns):
            return None
        if float(np.diff(self.at_ns[first : last + 1]).max(initial=0)) > MAX_GAP_S * NS_PER_S:
            return None
        start, end = np.interp([span.start_ns, span.end_ns], self.at_ns, self.value)
        return float(end - start)


def _inside(at_ns: NDArray[np.int64], spans: Sequence[Span]) -> NDArray[np.bool_]:
    inside = np.zeros(len(at_ns), dtype=bool)
    for span in spans:
        inside |= (at_ns >= span.start_ns) & (at_ns <= span.end_ns)
    return inside


@dataclass(frozen=True)
class ProcessSample:
    """The processes that NVML listed on one GPU at one instant."""

    at_ns: int
    processes: tuple[GpuProcess, ...]


EventKind = Literal[
    "gap",
    "sample_gap",
    "counter_reset",
    "counter_error",
    "gpu_lost",
    "counter_frozen",
    "samples_ceased",
    "not_supported",
    "read_error",
    "broke_off",
]
# Events that concern only their own time; the others concern the whole timeline.
TEMPORARY = ("gap", "sample_gap", "counter_reset", "counter_frozen", "samples_ceased")
# Events that end a measurement, and all that explain why a span has no energy from the counter, the gravest first.
LOSSES = ("gpu_lost", "counter_frozen")
CAUSES = (*LOSSES, "counter_error")
# How far beyond a span's ends the energy counter must have answered for the span to have energy.
REACH_NS = 3 * NS_PER_S
NO_SAMPLE = "no power sample of the driver for {missing_s:.3f} s"
# Messages of event kinds, to be filled with `MeterEvent.values`; other kinds carry `reading` and `said`.
MESSAGES: Mapping[str, str] = {
    "gap": "{interval_s:.3f} s between two counter changes; usual {usual_s:.3f} s",
    "sample_gap": NO_SAMPLE,
    "samples_ceased": NO_SAMPLE,
    "counter_reset": "counter went from {before_mj:.0f} to {after_mj:.0f} mJ; was the driver reloaded?",
    "counter_frozen": "counter did not change for {stood_s:.1f} s while the GPU drew {mean_w:.0f} W",
    "broke_off": "reading this GPU broke off; this is a bug, see its traceback above",
}


@dataclass(frozen=True)
class MeterEvent:
    """A limit of what a GPU's timeline can say.

    Attributes:
        end_ns: When what lasted ended.
        values: By name with unit, such as `missing_s`; a read that failed alike several times has a `count`.
        reading: The reading or GPU concerned, such as "power_w".
        said: The driver's words, or another reason.
    """

    at_ns: int
    kind: EventKind
    end_ns: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    reading: str = ""
    said: str = ""

    @property
    def message(self) -> str:
        """The event in words, for people."""
        words = MESSAGES.get(self.kind, "").format(**self.values) or self.said
        words = ": ".join(filter(None, (self.reading, words)))
        again = " ({count:.0f} times, the last {over_s:.1f} s after the first)" if "count" in self.values else ""
        return words + again.format(**self.values)

    def touches(self, span: Span) -> bool:
        """Return whether the event, or a part of it, lies inside a span."""
        end_ns = self.at_ns if self.end_ns is None else self.end_ns
        return self.at_ns <= span.end_ns and span.start_ns <= end_ns


@dataclass(frozen=True)
class GpuTimeline:
    """Everything the meter recorded of one GPU.

    Attributes:
        uuid: In NVML's form, "GPU-…".
        energy_source: "counter", or None where there is none that answers; the events say why.
        ticks: Counter changes that were looked for; empty arrays without a counter.
        series: By name with unit: power_sample_w, power_w, temperature_c, sm_clock_mhz, violation_power_ns, ….
        period_s: Interval between the counter's changes, seen or not; None where it is not known.
        busy_fraction: Share of the metered time this GPU's thread spent inside NVML calls.
        boundary: What its counter and its series of power cover.
        node: Name of the other node that recorded it; empty for this host. All instants are this host's.
        clock_std_s: Standard uncertainty of all instants together against this host's clock; 0 for this host.
    """

    uuid: str
    energy_source: EnergySource | None
    ticks: Ticks
    series: Mapping[str, Series] = field(default_factory=dict)
    processes: tuple[ProcessSample, ...] = ()
    events: tuple[MeterEvent, ...] = ()
    period_s: float | None = None
    busy_fraction: float | None = None
    boundary: EnergyBoundary = "gpu_boards"
    node: str = ""
    clock_std_s: float = 0.0

    @property
    def losses(self) -> tuple[MeterEvent, ...]:
        """The GPU's loss and standstills of its counter."""
        return tuple(event for event in self.events if event.kind in LOSSES)

    def cause(self, start_ns: int, end_ns: int) -> MeterEvent | None:
        """Return the gravest event that explains why a span has no energy from the counter; None where none does."""
        around = Span("", start_ns - REACH_NS, end_ns + REACH_NS)
        events = [
            event
            for event in self.events
            if event.kind in CAUSES and (event.touches(around) or (event.kind == "gpu_lost" and event.at_ns < start_ns))
        ]
        return min(events, key=lambda event: CAUSES.index(event.kind), default=None)

    @property
    def power_samples(self) -> Series | None:
        """The driver's own samples, watts, each a mean of about the 20 ms before it; None with fewer than two."""
        samples = self.series.get(SAMPLES)
        return samples if samples and len(samples.at_ns) > 1 else None

    @property
    def power_courses(self) -> tuple[PowerCourse, ...]:
        """How the course of energy between counter changes is known, one after the other; none without a source."""
        courses: list[PowerCourse] = ["driver_samples"] if self.power_samples else []
        if not self.power_samples or any(event.kind == "samples_ceased" for event in self.events):
            courses.append("counter_only")
        return tuple(courses) if self.energy_source else ()

    def inside(self, spans: Sequence[Span]) -> GpuTimeline:
        """Return what lies inside any span, with neighbouring counter changes and events that concern every span."""
        return replace(
            self,
            ticks=self.ticks.inside(spans),
            series={name: series.inside(spans) for name, series in self.series.items()},
            processes=tuple(
                sample
                for sample in self.processes
                if any(span.start_ns <= sample.at_ns <= span.end_ns for span in spans)
            ),
            events=tuple(
                event for event in self.events if event.kind not in TEMPORARY or any(map(event.touches, spans))
            ),
        )


@dataclass(frozen=True)
class Window:
    """A span that the source measured by itself too.

    Attributes:
        span: From the middle of the call that began the measurement to the middle of the call that ended it.
        energy_j: Joules by GPU UUID; empty where the source failed.
        reason: Why the source failed, or None.
    """

    span: Span
    energy_j: Mapping[str, float]
    reason: str | None = None


@dataclass(frozen=True)
class HostTimeline:
    """What the counters of CPU packages and memory recorded.

    Attributes:
        energy_j: Joules since the first sample, by domain ("package-0", "package-0-dram"); wraps are taken out.
        events: Reads that failed, and resets, with the domain as `reading`.
    """

    energy_j: Mapping[str, Series] = field(default_factory=dict)
    events: tuple[MeterEvent, ...] = ()

    def joules(self, span: Span) -> dict[str, float | None]:
        """Return by domain a span's joules, None where they are unknown."""
        lost = {event.reading for event in self.events if event.kind == "counter_reset" and event.touches(span)}
        return {name: None if name in lost else series.increase(span) for name, series in self.energy_j.items()}


@dataclass(frozen=True)
class Timeline:
    """What a meter recorded from start to stop.

    Attributes:
        meter: "nvml", "zeus", "rapl", "none".
        gpus: Every GPU of the host by UUID, in NVML's order; empty where there is none.
        reason: Why there is no energy source at all, or None.
        windows: What the source itself measured.
        host: CPU packages and memory, where they can be read; never part of a GPU's energy.
        broke_off: The meter ended with a bug of wattdock's; `reason` names it.
    """

    meter: str
    start_ns: int
    end_ns: int
    gpus: Mapping[str, GpuTimeline] = field(default_factory=dict)
    reason: str | None = None
    windows: tuple[Window, ...] = ()
    host: HostTimeline | None = None
    broke_off: bool = False

    def window_around(self, span: Span) -> Window | None:
        """Return the source's own measurement in which a span lies, or None."""
        return next((window for window in self.windows if window.span.contains(span)), None)

    def excerpt(self, spans: Sequence[Span]) -> Timeline:
        """Return the part around `spans`, enough to compute their energy.

        It has the windows in which one of them lies, the counter changes next to them, and the events that concern it.
        """
        windows = tuple(window for window in self.windows if any(window.span.contains(span) for span in spans))
        parts = [
            Span(span.name, span.start_ns - EXCERPT_MARGIN_NS, span.end_ns + EXCERPT_MARGIN_NS)
            for span in (*spans, *(window.span for window in windows))
        ]
        energy_j = {name: series.inside(parts) for name, series in self.host.energy_j.items()} if self.host else {}
        return replace(
            self,
            gpus={uuid: gpu.inside(parts) for uuid, gpu in self.gpus.items()},
            windows=windows,
            host=self.host and replace(self.host, energy_j=energy_j),
        )
