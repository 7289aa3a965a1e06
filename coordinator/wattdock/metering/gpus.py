"""The host meter: every GPU of this machine, one thread each.

Knows no backend and no spans, nor through what GPUs are read: `nvml` and `zeus` say that.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import MeterError
from wattdock.host import nvml
from wattdock.metering.findings import counter_events, period_s
from wattdock.metering.protocol import SystemClock
from wattdock.metering.sampler import TAIL_LIMIT_NS, GpuSampler, Recording
from wattdock.metering.timeline import GpuTimeline, MeterEvent, Series, Ticks, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.metering.protocol import Clock
    from wattdock.metering.source import GpuHost, Meaning
    from wattdock.metering.timeline import EnergySource

# Longer than any NVML call that was seen to return.
CALL_PATIENCE_S = 15.0


class _SamplerThread(threading.Thread):
    """Runs one sampler; `completed` stays False when it broke off with an error of our own."""

    def __init__(self, sampler: GpuSampler) -> None:
        super().__init__(name=f"meter-{sampler.uuid}", daemon=True)
        self.sampler = sampler
        self.completed = False

    def run(self) -> None:
        self.sampler.run()
        self.completed = True


class GpuMeter:
    """Meters every GPU of a host; satisfies `Meter`. One start and one stop per instance.

    Attributes:
        reason: Once started, why there is no GPU; None where there is one.
    """

    def __init__(self, host: GpuHost, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.reason: str | None = None
        self._host = host
        self._threads: list[_SamplerThread] = []
        self._unreadable: dict[str, MeterEvent] = {}
        self._start_ns: int | None = None

    def start(self) -> None:
        """Find the GPUs and begin to record.

        Raises:
            MeterError: A driver is there and cannot be talked to, or the meter was started before.
        """
        if self._start_ns is not None:
            raise MeterError("this meter was started before; make a new one for each timeline")
        self._start_ns = self.clock.now_ns()
        try:
            self.reason = self._host.open()
            if self.reason is None:
                self._open_gpus()
        except nvml.NvmlError as error:
            self.reason = f"NVML cannot be read: {error}; does nvidia-smi work on this host?"
            raise MeterError(self.reason) from error
        except MeterError as error:
            self.reason = str(error)
            raise
        for thread in self._threads:
            thread.start()

    @contextmanager
    def window(self, key: str) -> Iterator[None]:  # noqa: ARG002  (named for meters that measure windows of their own)
        """Read what is read seldom soon, at both ends of what is done inside."""
        self.note_edge()
        try:
            yield
        finally:
            self.note_edge()

    def note_edge(self) -> None:
        """Say that a span begins or ends about now: process lists are read soon."""
        for thread in self._threads:
            thread.sampler.note_edge()

    def watts(self) -> dict[str, float | None]:
        """Return the latest power per GPU UUID in watts, None where there is none; for display only."""
        return {thread.sampler.uuid: thread.sampler.latest_power_w for thread in self._threads}

    def peek(self) -> Timeline:
        """Return what has been recorded so far; recording goes on."""
        gpus = {one.sampler.uuid: gpu_timeline(one.sampler.uuid, one.sampler.recording) for one in self._threads}
        return self._made(gpus, self.clock.now_ns())

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Record for one second and one counter change beyond `after_ns` (default: now); return the timeline.

        A counter that no longer changes is waited for three seconds.

        Args:
            after_ns: End of the last span, CLOCK_MONOTONIC nanoseconds.

        Raises:
            MeterError: The meter was not started.
        """
        if self._start_ns is None:
            raise MeterError("the meter was stopped before it was started")
        now_ns = self.clock.now_ns()
        until_ns = now_ns if after_ns is None else after_ns
        for thread in self._threads:
            thread.sampler.stop_after(until_ns)
        patience_s = max(0, until_ns - now_ns) / NS_PER_S + TAIL_LIMIT_NS / NS_PER_S + CALL_PATIENCE_S
        for thread in self._threads:
            thread.join(patience_s)
        return self._timeline(until_ns)

    def _open_gpus(self) -> None:
        for index in range(self._host.count()):
            try:
                self._threads.append(_SamplerThread(GpuSampler(self._host.source(index), self.clock)))
            except nvml.NvmlError as error:
                kind: Meaning = "gpu_lost" if nvml.code_of(error) == nvml.GPU_LOST else "read_error"
                # Without a UUID its place in NVML's order is all there is to name it by.
                self._unreadable[f"index-{index}"] = MeterEvent(self.clock.now_ns(), kind, f"GPU {index}: {error}")
        if not self._threads and not self._unreadable:
            self.reason = "the NVIDIA driver lists no GPU"

    def _timeline(self, until_ns: int) -> Timeline:
        gpus: dict[str, GpuTimeline] = {}
        end_ns = max(until_ns, self.clock.now_ns())
        hung = [thread for thread in self._threads if thread.is_alive()]
        for thread in self._threads:
            seen = thread.sampler.recording
            if thread not in hung and not thread.completed:
                message = "reading this GPU broke off; this is a bug, see its traceback above"
                seen.events.append(MeterEvent(seen.end_ns, "broke_off", message))
            gpus[thread.sampler.uuid] = gpu_timeline(thread.sampler.uuid, seen, hung=thread in hung)
            end_ns = max(end_ns, seen.end_ns)
        if self.reason is None and not hung:
            self._host.close()
        return self._made(gpus, end_ns)

    def _made(self, gpus: dict[str, GpuTimeline], end_ns: int) -> Timeline:
        for name, event in self._unreadable.items():
            gpus[name] = GpuTimeline(uuid=name, energy_source=None, ticks=_ticks([]), events=(event,))
        return Timeline(
            meter=self._host.name, start_ns=self._start_ns or 0, end_ns=end_ns, gpus=gpus, reason=self.reason
        )


def gpu_timeline(uuid: str, seen: Recording, *, hung: bool = False) -> GpuTimeline:
    """Turn a recording into one GPU's timeline; `hung` says that its last NVML call has not returned."""
    ticks = _ticks(list(seen.ticks))
    series = {name: _series(list(rows)) for name, rows in dict(seen.series).items()}
    power = series.get("power_w", series.get("power_average_w"))
    events = [*seen.events, *counter_events(ticks, power, start_ns=seen.start_ns, end_ns=seen.end_ns)]
    if hung:
        message = f"a call into NVML has not returned for {CALL_PATIENCE_S:.0f} s; this GPU's timeline ends here"
        events.append(MeterEvent(seen.end_ns, "read_error", message))
    metered_ns = seen.end_ns - seen.start_ns
    source: EnergySource | None = "counter" if seen.has_counter else None
    if source is None and power is not None:
        source = "integrated_power"
    return GpuTimeline(
        uuid=uuid,
        energy_source=source,
        ticks=ticks,
        series=series,
        processes=tuple(seen.processes),
        events=tuple(sorted(events, key=lambda event: event.at_ns)),
        period_s=period_s(ticks),
        busy_fraction=seen.busy_ns / metered_ns if metered_ns > 0 else None,
    )


def _ticks(rows: list[tuple[int, int, int, int, int]]) -> Ticks:
    return Ticks(*np.asarray(rows, dtype=np.int64).reshape(-1, 5).T.copy())


def _series(rows: list[tuple[int, float]]) -> Series:
    return Series(
        at_ns=np.asarray([at_ns for at_ns, _ in rows], dtype=np.int64),
        value=np.asarray([value for _, value in rows], dtype=np.float64),
    )
