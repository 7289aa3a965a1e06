"""Sample one GPU: read what is due, and record what was read.

Runs in one thread and touches one GPU. Knows nothing of threads, spans or joules.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.host import GpuProcess
from wattdock.host import processes as host_processes
from wattdock.metering.schedule import TickSchedule
from wattdock.metering.timeline import GpuTimeline, MeterEvent, ProcessSample, Series, Ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.clock import Clock
    from wattdock.metering.source import GpuReader, ProcessKind
    from wattdock.metering.timeline import EnergySource, EventKind

T = TypeVar("T")

# Longer than any NVML call that was seen to return.
CALL_PATIENCE_S = 15.0
POWER_PERIOD_NS = 50_000_000
SLOW_PERIOD_NS = NS_PER_S
PROCESS_PERIOD_NS = 30 * NS_PER_S
# An expensive call must not be under way when the counter is expected to change.
QUIET_NS = 15_000_000
OVERDUE_NS = NS_PER_S
TAIL_NS = NS_PER_S
# So long that a counter which stopped before the end is seen to be frozen: FROZEN_S and a read of it.
TAIL_LIMIT_NS = 6 * NS_PER_S
# A read that fails is tried again this much later for each error in a row, and no later than RETRY_LIMIT_NS.
RETRY_NS = 100_000_000
RETRY_LIMIT_NS = NS_PER_S
# Counted over all reads: the GPU no longer answers.
MAX_ERRORS_IN_A_ROW = 50
# Longer than the longest period, so that an error which a read repeats is one event, however long it lasts.
SAME_ERROR_NS = 2 * PROCESS_PERIOD_NS
# Between 1.26 periods, the longest interval seen on an H200 under load, and the 2 of a missed change.
GAP_PERIODS = 1.7
FROZEN_S = 5.0
# Below this a counter may stand still because the GPU is off the bus's power, not because it froze.
FROZEN_POWER_W = 1.0
ENERGY_COUNTER, PROCESS_LIST = "energy counter", "process list"
PROCESS_KINDS: tuple[ProcessKind, ...] = ("compute", "graphics", "mps")


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
class _RepeatedError:
    """One error that a read repeats; `place` is the index of its event in the recording."""

    place: int
    first_ns: int
    last_ns: int
    count: int = 0


@dataclass
class Recording:
    """What a sampler has recorded so far; rows of `ticks` are in the order of `Ticks`.

    Attributes:
        counter_ns: When the counter was read for the first and for the last time; None where it never answered.
    """

    ticks: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    series: defaultdict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    processes: list[ProcessSample] = field(default_factory=list)
    events: list[MeterEvent] = field(default_factory=list)
    counter_ns: tuple[int, int] | None = None
    start_ns: int = 0
    end_ns: int = 0
    busy_ns: int = 0

    def timeline(self, uuid: str, *, hung: bool = False) -> GpuTimeline:
        """Return what was recorded so far; `hung` says that the last call has not returned."""
        ticks = Ticks.from_rows(list(self.ticks))
        series = {name: Series.from_rows(list(rows)) for name, rows in dict(self.series).items()}
        power = series.get("power_w", series.get("power_average_w"))
        events = list(self.events)
        if self.counter_ns:
            first_ns, last_ns = self.counter_ns
            events += counter_events(ticks, power, start_ns=first_ns, end_ns=last_ns)
        if hung:
            message = f"a call into NVML has not returned for {CALL_PATIENCE_S:.0f} s; this GPU's timeline ends here"
            events.append(MeterEvent(self.end_ns, "gpu_lost", message))
        metered_ns = self.end_ns - self.start_ns
        source: EnergySource | None = "counter" if self.counter_ns else "integrated_power" if power else None
        return GpuTimeline(
            uuid=uuid,
            energy_source=source,
            ticks=ticks,
            series=series,
            processes=tuple(self.processes),
            events=tuple(sorted(events, key=lambda event: event.at_ns)),
            period_s=ticks.period_s,
            busy_fraction=self.busy_ns / metered_ns if metered_ns > 0 else None,
        )


class GpuSampler:
    """Reads one GPU until it is stopped, and a second beyond."""

    def __init__(self, reader: GpuReader, clock: Clock) -> None:
        self.uuid = reader.uuid
        self.recording = Recording()
        self.latest_power_w: float | None = None
        self._reader = reader
        self._clock = clock
        self._wake = threading.Event()
        self._stop_after_ns: int | None = None
        self._edge_noted = False
        self._previous: tuple[int, int, int] | None = None
        self._counter_due_ns: int | None = None
        self._errors_in_a_row: Counter[str] = Counter()
        self._unanswered_in_a_row = 0
        self._repeated: dict[str, _RepeatedError] = {}
        self._tasks: list[_Task] = []
        self._process_task: _Task | None = None

    def note_edge(self) -> None:
        """Ask for the process list soon. May be called from any thread."""
        self._edge_noted = True
        self._wake.set()

    def stop_after(self, after_ns: int) -> None:
        """Ask to stop one second and one counter change after an instant. May be called from any thread."""
        self._stop_after_ns = after_ns
        self._wake.set()

    def run(self) -> None:
        """Sample until stopped, or until the GPU is lost or answers with errors only."""
        recording = self.recording
        recording.start_ns = recording.end_ns = self._clock.now_ns()
        self._schedule = TickSchedule(recording.start_ns)
        try:
            self._probe()
            while not self._is_done():
                self._step()
                recording.end_ns = self._clock.now_ns()
            if self._process_task is not None:
                self._try(PROCESS_LIST, self._read_processes)
        except _TimelineEndsError as error:
            self._event("gpu_lost", f"{error}; this GPU's timeline ends here")
            self.latest_power_w = None
        recording.end_ns = self._clock.now_ns()

    def _probe(self) -> None:
        """Try every read once, and set up tasks for those that the GPU supports."""
        now_ns = self._clock.now_ns()
        if self._ask(ENERGY_COUNTER, self._read_counter):
            self._counter_due_ns = self._schedule.next_read_ns(self._clock.now_ns())
        for way in self._reader.power:
            sample = self._sampler_of(way.series, way.read)
            if self._ask(f"{way.series} through {way.call}", sample):
                self._tasks.append(
                    _Task(way.series, POWER_PERIOD_NS, now_ns + POWER_PERIOD_NS, expensive=False, run=sample)
                )
                break
        for number, (name, read) in enumerate(self._reader.slow.items()):
            sample = self._sampler_of(name, read)
            if self._ask(name, sample):
                # Spread over the second: no two of them fall between the same two counter changes for long.
                due_ns = now_ns + SLOW_PERIOD_NS + number * SLOW_PERIOD_NS // len(self._reader.slow)
                self._tasks.append(_Task(name, SLOW_PERIOD_NS, due_ns, expensive=True, run=sample))
        if self._ask(PROCESS_LIST, self._read_processes):
            self._process_task = _Task(
                PROCESS_LIST, PROCESS_PERIOD_NS, now_ns + PROCESS_PERIOD_NS, expensive=True, run=self._read_processes
            )
            self._tasks.append(self._process_task)

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
            self._event("not_supported", f"{what}: {error}")
            return False
        return True

    def _step(self) -> None:
        """Make the read that is due, or sleep until one is due or another thread calls."""
        now_ns = self._clock.now_ns()
        task = min(self._tasks, key=lambda task: self._ready_ns(task, now_ns), default=None)
        task_ns = now_ns + POWER_PERIOD_NS if task is None else self._ready_ns(task, now_ns)
        counter_ns = self._counter_due_ns
        if counter_ns is not None and counter_ns <= now_ns:
            self._try(ENERGY_COUNTER, self._read_counter)
            self._counter_due_ns = self._schedule.next_read_ns(self._clock.now_ns()) + self._back_off_ns(ENERGY_COUNTER)
        elif task is not None and task_ns <= now_ns:
            self._try(task.what, task.run)
            task.due_ns = max(task.due_ns + task.period_ns, now_ns) + self._back_off_ns(task.what)
        else:
            due_ns = task_ns if counter_ns is None else min(task_ns, counter_ns)
            self._clock.wait(self._wake, (due_ns - now_ns) / NS_PER_S)
            self._handle_calls()

    def _handle_calls(self) -> None:
        # Cleared before the flag is read, so that a call in between is handled the next time.
        self._wake.clear()
        if self._edge_noted and self._process_task is not None:
            self._edge_noted = False
            self._process_task.due_ns = min(self._process_task.due_ns, self._clock.now_ns())

    def _ready_ns(self, task: _Task, now_ns: int) -> int:
        """Return when a task may run: an expensive one, unless long overdue, after the counter's next read."""
        if not task.expensive or self._counter_due_ns is None or now_ns - task.due_ns >= OVERDUE_NS:
            return task.due_ns
        if self._counter_due_ns - now_ns >= QUIET_NS:
            return task.due_ns
        return max(task.due_ns, self._counter_due_ns)

    def _read_counter(self) -> None:
        start_ns = self._clock.now_ns()
        energy_mj = self._timed(self._reader.counter_mj)
        end_ns = self._clock.now_ns()
        self._schedule.note_cost(end_ns - start_ns)
        self.recording.counter_ns = ((self.recording.counter_ns or (start_ns,))[0], start_ns)
        previous, self._previous = self._previous, (start_ns, end_ns, energy_mj)
        if previous is not None and previous[2] != energy_mj:
            self.recording.ticks.append((previous[0], previous[1], start_ns, end_ns, energy_mj))
            self._schedule.note_change((previous[0] + previous[1]) // 2, (start_ns + end_ns) // 2)

    def _sampler_of(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        def sample() -> None:
            value = self._timed(read)
            self.recording.series[name].append((self._clock.now_ns(), value))
            if name.startswith("power"):
                self.latest_power_w = value

        return sample

    def _read_processes(self) -> None:
        at_ns = self._clock.now_ns()
        listings = [(kind, self._timed(partial(self._reader.processes, kind))) for kind in PROCESS_KINDS]
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
        """Record an error; one that repeats soon is counted in the event of its first occurrence."""
        now_ns, message = self._clock.now_ns(), f"{what}: {error}"
        kind: EventKind = "counter_error" if what == ENERGY_COUNTER else "read_error"
        repeated = self._repeated.get(message)
        if repeated is None or now_ns - repeated.last_ns > SAME_ERROR_NS:
            repeated = self._repeated[message] = _RepeatedError(len(self.recording.events), now_ns, now_ns)
            self._event(kind, message)
        repeated.last_ns = now_ns
        repeated.count += 1
        if repeated.count > 1:
            over_s = (repeated.last_ns - repeated.first_ns) / NS_PER_S
            message = f"{message} ({repeated.count} times, the last {over_s:.1f} s after the first)"
            self.recording.events[repeated.place] = MeterEvent(repeated.first_ns, kind, message, end_ns=now_ns)

    def _check_lost(self, error: Exception) -> None:
        if self._reader.meaning(error) == "gpu_lost":
            raise _TimelineEndsError(str(error)) from error

    def _event(self, kind: EventKind, message: str) -> None:
        self.recording.events.append(MeterEvent(at_ns=self._clock.now_ns(), kind=kind, message=message))

    def _is_done(self) -> bool:
        """Return whether a second and a counter change have passed since the instant to stop after."""
        after_ns, now_ns = self._stop_after_ns, self._clock.now_ns()
        if after_ns is None or now_ns < after_ns + TAIL_NS:
            return False
        if not self.recording.counter_ns or now_ns >= after_ns + TAIL_LIMIT_NS:
            return True
        return bool(self.recording.ticks) and self.recording.ticks[-1][0] > after_ns


def counter_events(ticks: Ticks, power: Series | None, *, start_ns: int, end_ns: int) -> tuple[MeterEvent, ...]:
    """Return gaps, resets and standstills of one GPU's counter, by time.

    Args:
        ticks: The counter's changes.
        power: Any power series in watts; without one a counter that stands still is not called frozen.
        start_ns: When the counter was read for the first time.
        end_ns: When it was read for the last time.
    """
    events = [*_gaps(ticks), *_resets(ticks), *_standstills(ticks, power, start_ns=start_ns, end_ns=end_ns)]
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _gaps(ticks: Ticks) -> list[MeterEvent]:
    usual_s = ticks.period_s
    if usual_s is None:
        return []
    intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
    return [
        MeterEvent(
            at_ns=int(ticks.after_start_ns[index + 1]),
            kind="gap",
            message=f"{intervals_s[index]:.3f} s between two counter changes; usual {usual_s:.3f} s",
        )
        for index in np.flatnonzero(intervals_s > GAP_PERIODS * usual_s)
    ]


def _resets(ticks: Ticks) -> list[MeterEvent]:
    return [
        MeterEvent(
            at_ns=int(ticks.after_start_ns[index + 1]),
            kind="counter_reset",
            message=f"counter went from {ticks.energy_mj[index]} to {ticks.energy_mj[index + 1]} mJ;"
            " was the driver reloaded?",
        )
        for index in np.flatnonzero(np.diff(ticks.energy_mj) < 0)
    ]


def _standstills(ticks: Ticks, power: Series | None, *, start_ns: int, end_ns: int) -> list[MeterEvent]:
    if power is None:
        return []
    # From the first read of each value to the last: a counter that does not answer does not stand still.
    first_ns = np.concatenate(([start_ns], ticks.after_start_ns))
    last_ns = np.concatenate((ticks.before_start_ns, [end_ns]))
    events = []
    # Power is looked up for the few long intervals only: a session has tens of thousands of short ones.
    for index in np.flatnonzero(last_ns - first_ns >= FROZEN_S * NS_PER_S):
        begin_ns, until_ns = int(first_ns[index]), int(last_ns[index])
        stood_s = (until_ns - begin_ns) / NS_PER_S
        power_w = power.value[(power.at_ns >= begin_ns) & (power.at_ns <= until_ns)]
        if len(power_w) and float(np.median(power_w)) > FROZEN_POWER_W:
            mean_w = float(np.mean(power_w))
            message = f"counter did not change for {stood_s:.1f} s while the GPU drew {mean_w:.0f} W"
            events.append(MeterEvent(at_ns=begin_ns, kind="counter_frozen", message=message, end_ns=until_ns))
    return events
