"""Sample one GPU: read what is due, and record what was read.

Runs in one thread and touches one GPU. Knows nothing of threads, spans or joules.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from wattdock.clock import NS_PER_S
from wattdock.host import GpuProcess, nvml
from wattdock.host import processes as host_processes
from wattdock.metering.meter_events import timeline_events
from wattdock.metering.samples import DriverSamples
from wattdock.metering.tick_schedule import TickSchedule
from wattdock.metering.timeline import POWER_SERIES, SAMPLES, GpuTimeline, MeterEvent, ProcessSample, Series, Ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wattdock.clock import Clock
    from wattdock.metering.source import GpuReader
    from wattdock.metering.timeline import EventKind
    from wattdock.values import EnergyBoundary

T = TypeVar("T")

POWER_PERIOD_NS = 50_000_000
CHEAP_PERIOD_NS = 100_000_000
SLOW_PERIOD_NS = NS_PER_S
# Period of slow reads where samples tell power: a violation counter takes 0.6 to 40 ms to read, and is cumulative.
SPARSE_SLOW_NS = 4 * NS_PER_S
# Period of reads of the driver's samples, which an H200's driver keeps for 2.4 s.
SAMPLES_PERIOD_NS = 500_000_000
# Without a new sample for this long, samples have ceased: an error, an old buffer, or an empty one.
SAMPLES_CEASE_NS = NS_PER_S
# Time between two changes of the counter that are looked for while there are samples; longer on an unused GPU.
SPARSE_NS, SPARSE_UNUSED_NS = NS_PER_S, 2 * NS_PER_S
PROCESS_PERIOD_NS = 30 * NS_PER_S
# No expensive read begins this soon before the counter is expected to change, unless the read is long overdue.
QUIET_NS = 15_000_000
OVERDUE_NS = NS_PER_S
TAIL_NS = NS_PER_S
# How long sampling goes on after the end, at most: FROZEN_S and a read, or a stopped counter is not called frozen.
TAIL_LIMIT_NS = 6 * NS_PER_S
# Delay of a failed read for each of its errors in a row, and the longest delay.
RETRY_NS = 100_000_000
RETRY_LIMIT_NS = NS_PER_S
# Longest time by which a counter or samples trail what they show.
LONGEST_LAG_NS = 30_000_000
# After this many errors in a row, over all reads, the GPU counts as lost.
MAX_ERRORS_IN_A_ROW = 50
# The same error within this time is the same event: longer than the longest period.
SAME_ERROR_NS = 2 * PROCESS_PERIOD_NS
ENERGY_COUNTER, PROCESS_LIST, POWER_SAMPLES = "energy counter", "process list", "power samples of the driver"

ENDS_HERE = "this GPU's timeline ends here"


class _TimelineEndsError(Exception):
    """Nothing more can be read of this GPU: it is lost, or no longer answers."""


@dataclass
class _Task:
    """A periodic read; an expensive read waits while a change of the counter is due."""

    what: str
    period_ns: int
    due_ns: int
    expensive: bool
    run: Callable[[], None]


@dataclass
class Recording:
    """What a sampler has recorded so far; rows of `ticks` are in the order of `Ticks`.

    Attributes:
        counter_ns: When the counter was read for the first and for the last time; None where it never answered.
        counter_mj: What it showed the last time.
        boundary: What the counter and the series of power cover.
    """

    ticks: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    series: defaultdict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    processes: list[ProcessSample] = field(default_factory=list)
    events: list[MeterEvent] = field(default_factory=list)
    counter_ns: tuple[int, int] | None = None
    counter_mj: int = 0
    period_ns: float = 0.0
    start_ns: int = 0
    end_ns: int = 0
    busy_ns: int = 0
    boundary: EnergyBoundary = "gpu_boards"

    def timeline(self, uuid: str) -> GpuTimeline:
        """Return what was recorded so far."""
        ticks = Ticks.from_rows(list(self.ticks))
        series = {name: Series.from_rows(list(rows)) for name, rows in dict(self.series).items()}
        events = list(self.events)
        first_ns, last_ns = self.counter_ns or (self.end_ns, self.end_ns)
        events += timeline_events(ticks, series, start_ns=first_ns, end_ns=last_ns, end_mj=self.counter_mj)
        metered_ns = self.end_ns - self.start_ns
        return GpuTimeline(
            uuid=uuid,
            energy_source="counter" if self.counter_ns else None,
            ticks=ticks,
            series=series,
            processes=tuple(self.processes),
            events=tuple(sorted(events, key=lambda event: event.at_ns)),
            period_s=self.period_ns / NS_PER_S or None,
            busy_fraction=self.busy_ns / metered_ns if metered_ns > 0 else None,
            boundary=self.boundary,
        )


class GpuSampler:
    """Reads one GPU until it is stopped, and a second beyond.

    Args:
        is_used: Whether the measurement is about this GPU; the others are read less often.

    Attributes:
        completed: `run` returned; it stays False where a bug of wattdock's ended it.
    """

    def __init__(self, reader: GpuReader, clock: Clock, *, is_used: bool = True) -> None:
        self.uuid = reader.uuid
        self.recording = Recording(boundary=reader.boundary)
        self.latest_power_w: float | None = None
        self.completed = False
        self._reader = reader
        self._clock = clock
        self._is_used = is_used
        self._wake = threading.Event()
        self._stop_after_ns: int | None = None
        self._edge_noted = self._is_ending = False
        self._previous: tuple[int, int, int] | None = None
        self._counter_due_ns = inf
        self._errors_in_a_row: Counter[str] = Counter()
        self._unanswered_in_a_row = 0
        self._error_places: dict[tuple[str, str], int] = {}
        self._tasks: list[_Task] = []

    def note_edge(self) -> None:
        """Ask for a change of the counter and all that is read seldom soon. May be called from any thread."""
        self._edge_noted = True
        self._wake.set()

    def has_passed(self, at_ns: int) -> bool:
        """Whether a change of the counter and a power sample later than an instant were read, of what there is."""
        recording, needed_ns = self.recording, at_ns + LONGEST_LAG_NS
        if recording.counter_ns and not (recording.ticks and recording.ticks[-1][0] > needed_ns):
            return False
        samples = recording.series.get(SAMPLES)
        return not samples or samples[-1][0] > needed_ns

    def stop_after(self, after_ns: int) -> None:
        """Ask to stop one second and one counter change after an instant. May be called from any thread."""
        self._stop_after_ns = after_ns
        self._wake.set()

    def run(self) -> None:
        """Sample until stopped, or until the GPU is lost or answers with errors only."""
        recording = self.recording
        recording.start_ns = recording.end_ns = self._clock.now_ns()
        self._schedule = TickSchedule(recording.start_ns)
        self._samples = DriverSamples(self._reader.samples, self._clock)
        try:
            self._probe()
            while not self._is_done():
                self._step()
                recording.end_ns = self._clock.now_ns()
            for task in self._tasks:
                if task.what in (POWER_SAMPLES, PROCESS_LIST):
                    self._try(task.what, task.run)
        except _TimelineEndsError as error:
            self._event("gpu_lost", said=f"{error}; {ENDS_HERE}")
            self.latest_power_w = None
        recording.end_ns = self._clock.now_ns()
        self.completed = True

    def _probe(self) -> None:
        """Try every read once, and set up tasks for those that the GPU supports."""
        has_samples = self._reader.samples is not None and self._ask(POWER_SAMPLES, self._read_samples)
        if has_samples and self._samples.doubt:
            has_samples = False
            self.recording.series.pop(SAMPLES, None)
            self._event("not_supported", POWER_SAMPLES, self._samples.doubt)
        if has_samples:
            self._add(POWER_SAMPLES, SAMPLES_PERIOD_NS if self._is_used else SLOW_PERIOD_NS, self._read_samples)
            self._follow_samples()
        if self._ask(ENERGY_COUNTER, self._read_counter):
            self._counter_due_ns = self._schedule.next_read_ns(self._clock.now_ns())
        if not has_samples:
            self._probe_power()
        self._probe_all(self._reader.cheap, CHEAP_PERIOD_NS if has_samples and self._is_used else SLOW_PERIOD_NS)
        self._probe_all(self._reader.slow, SPARSE_SLOW_NS if has_samples else SLOW_PERIOD_NS)
        if self._ask(PROCESS_LIST, self._read_processes):
            self._add(PROCESS_LIST, PROCESS_PERIOD_NS, self._read_processes, expensive=True)

    def _probe_power(self) -> None:
        for way in self._reader.power:
            sample = self._sampler_of(way.series, way.read)
            if self._ask(f"{way.series} through {way.call}", sample):
                self._add(way.series, POWER_PERIOD_NS, sample)
                break

    def _probe_all(self, reads: Mapping[str, Callable[[], float]], period_ns: int) -> None:
        for number, (name, read) in enumerate(reads.items()):
            sample = self._sampler_of(name, read)
            if self._ask(name, sample):
                # Spread over the period: no two of them fall between the same two counter changes for long.
                self._add(name, period_ns, sample, expensive=True).due_ns += number * period_ns // len(reads)

    def _add(self, what: str, period_ns: int, run: Callable[[], None], *, expensive: bool = False) -> _Task:
        task = _Task(what, period_ns, self._clock.now_ns() + period_ns, expensive, run)
        self._tasks.append(task)
        return task

    def _ask(self, what: str, read: Callable[[], None]) -> bool:
        """Return whether a read is worth repeating after its first try; record why not."""
        try:
            read()
        except self._reader.errors as error:
            self._check_lost(error)
            if self._reader.meaning(error) != "not_supported":
                # It may work the next time.
                self._note_error(what, error)
                return True
            self._event("not_supported", what, str(error))
            return False
        return True

    def _step(self) -> None:
        """Make the read that is due, or sleep until one is due or another thread calls."""
        now_ns, tasks = self._clock.now_ns(), self._tasks
        if self._counter_due_ns <= now_ns:
            self._try(ENERGY_COUNTER, self._read_counter)
            self._counter_due_ns = self._schedule.next_read_ns(self._clock.now_ns()) + self._back_off_ns(ENERGY_COUNTER)
            return
        if self._counter_due_ns - now_ns < QUIET_NS:
            tasks = [task for task in tasks if not task.expensive or now_ns - task.due_ns >= OVERDUE_NS]
        task = min(tasks, key=attrgetter("due_ns"), default=None)
        if task is not None and task.due_ns <= now_ns:
            self._try(task.what, task.run)
            if task.what == POWER_SAMPLES:
                self._follow_samples()
            task.due_ns = max(task.due_ns + task.period_ns, now_ns) + self._back_off_ns(task.what)
        else:
            due_ns = min(self._counter_due_ns, task.due_ns if task else now_ns + POWER_PERIOD_NS)
            self._clock.wait(self._wake, (due_ns - now_ns) / NS_PER_S)
            # Cleared before the flag is read, so that a call in between is handled the next time.
            self._wake.clear()
            if self._edge_noted:
                self._edge_noted = False
                now_ns = self._clock.now_ns()
                self._want_change(now_ns)
                for task in self._tasks:
                    if task.what in (PROCESS_LIST, POWER_SAMPLES, *self._reader.slow):
                        task.due_ns = min(task.due_ns, now_ns)

    def _want_change(self, now_ns: int) -> None:
        self._schedule.want_next()
        if self._counter_due_ns < inf:
            self._counter_due_ns = self._schedule.next_read_ns(now_ns)

    def _read_counter(self) -> None:
        start_ns = self._clock.now_ns()
        energy_mj = self._timed(self._reader.counter_mj)
        end_ns = self._clock.now_ns()
        self._schedule.note_cost(end_ns - start_ns)
        self.recording.counter_mj = energy_mj
        self.recording.counter_ns = ((self.recording.counter_ns or (start_ns,))[0], start_ns)
        previous, self._previous = self._previous, (start_ns, end_ns, energy_mj)
        if previous is not None and previous[2] != energy_mj:
            self.recording.ticks.append((previous[0], previous[1], start_ns, end_ns, energy_mj))
            self._schedule.note_change((previous[0] + previous[1]) // 2, (start_ns + end_ns) // 2)
            self.recording.period_ns = self._schedule.period_ns
            if self._schedule.skips:
                # Until the next change that is looked for, others pass unseen.
                self._previous = None

    def _read_samples(self) -> None:
        rows = self._timed(self._samples.read)
        self.recording.series[SAMPLES] += rows
        if rows:
            self.latest_power_w = rows[-1][1]

    def _follow_samples(self) -> None:
        """Look for every change of the counter, and poll power in case it fails, too, while there are no samples."""
        has_samples = (now_ns := self._clock.now_ns()) - self._samples.latest_ns < SAMPLES_CEASE_NS
        if has_samples != (self._schedule.every_ns > 0):
            self._schedule.every_ns = (SPARSE_NS if self._is_used else SPARSE_UNUSED_NS) if has_samples else 0
            self._want_change(now_ns)
            if not has_samples and not any(task.what in POWER_SERIES for task in self._tasks):
                self._probe_power()

    def _sampler_of(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        def sample() -> None:
            value = self._timed(read)
            self.recording.series[name].append((self._clock.now_ns(), value))
            if name in POWER_SERIES:
                self.latest_power_w = value

        return sample

    def _read_processes(self) -> None:
        at_ns = self._clock.now_ns()
        listings = [(kind, self._timed(partial(self._reader.processes, kind))) for kind in nvml.PROCESS_LISTS]
        processes = tuple(
            GpuProcess(pid, kind, memory_bytes, *host_processes.owner_of(pid))
            for kind, listing in listings
            for pid, memory_bytes in listing
        )
        self.recording.processes.append(ProcessSample(at_ns=at_ns, processes=processes))

    def _timed(self, read: Callable[[], T]) -> T:
        start_ns = self._clock.now_ns()
        try:
            return read()
        finally:
            self.recording.busy_ns += self._clock.now_ns() - start_ns

    def _try(self, what: str, read: Callable[[], None]) -> None:
        try:
            read()
        except self._reader.errors as error:
            self._check_lost(error)
            # A failing read is never given up while others work: when it answers again, later spans have energy.
            self._errors_in_a_row[what] += 1
            self._unanswered_in_a_row += 1
            self._note_error(what, error)
            if self._unanswered_in_a_row >= MAX_ERRORS_IN_A_ROW:
                raise _TimelineEndsError(f"{MAX_ERRORS_IN_A_ROW} errors in a row, the last one: {error}") from error
        else:
            self._errors_in_a_row[what] = self._unanswered_in_a_row = 0

    def _back_off_ns(self, what: str) -> int:
        return min(self._errors_in_a_row[what] * RETRY_NS, RETRY_LIMIT_NS)

    def _note_error(self, what: str, error: Exception) -> None:
        """Record an error; the event of an error that repeats soon lasts until its last occurrence."""
        now_ns, key, events = self._clock.now_ns(), (what, str(error)), self.recording.events
        place = self._error_places.get(key, len(events))
        first = events[place] if place < len(events) else None
        if first and now_ns - (first.end_ns or first.at_ns) <= SAME_ERROR_NS:
            events[place] = replace(first, end_ns=now_ns)
        else:
            self._error_places[key] = len(events)
            self._event("counter_error" if what == ENERGY_COUNTER else "read_error", *key)

    def _check_lost(self, error: Exception) -> None:
        if self._reader.meaning(error) == "gpu_lost":
            raise _TimelineEndsError(str(error)) from error

    def _event(self, kind: EventKind, reading: str = "", said: str = "") -> None:
        self.recording.events.append(MeterEvent(self._clock.now_ns(), kind, reading=reading, said=said))

    def _is_done(self) -> bool:
        """Return whether a second, and a change that shows more than the instant to stop after, have passed since."""
        after_ns, now_ns = self._stop_after_ns, self._clock.now_ns()
        if after_ns is None or now_ns < after_ns:
            return False
        if not self._is_ending:
            self._is_ending = True
            self._want_change(now_ns)
        if now_ns < after_ns + TAIL_NS:
            return False
        if not self.recording.counter_ns or now_ns >= after_ns + TAIL_LIMIT_NS:
            return True
        return bool(self.recording.ticks) and self.recording.ticks[-1][0] > after_ns + LONGEST_LAG_NS
