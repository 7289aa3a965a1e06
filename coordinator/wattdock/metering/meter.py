"""The meter on the host: a thread for each GPU of one source, and the host's own counters beside them.

Knows no backend and no experiment, nor how a GPU is read: a `Source` knows that.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S, Clock
from wattdock.errors import MeterError
from wattdock.metering.rapl import RaplRecorder
from wattdock.metering.sampler import ENDS_HERE, TAIL_LIMIT_NS, GpuSampler
from wattdock.metering.tick_schedule import LONGEST_PAUSE_NS
from wattdock.metering.timeline import GpuTimeline, MeterEvent, Ticks, Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from wattdock.metering.rapl import Domain
    from wattdock.metering.source import Meaning, Source

# How long to wait for a call into NVML before its GPU counts as lost: longer than any call that was seen to return.
CALL_PATIENCE_S = 15.0
# How long `peek` waits: a change may have begun before the instant, and the next one comes a pause later.
PEEK_PATIENCE_NS, PEEK_POLL_S = LONGEST_PAUSE_NS + 2 * NS_PER_S, 0.02


class Meter:
    """Records one timeline, from `start` to `stop`; an instance serves once.

    Args:
        domains: The host's counters that are recorded too: CPU packages and memory.
        clock: CLOCK_MONOTONIC unless given.
        used: UUIDs of the GPUs that the measurement is about, all by default; the others are read less often.

    Attributes:
        reason: Once started, why there is no GPU; None where there is one.
    """

    def __init__(
        self,
        source: Source,
        domains: tuple[Domain, ...] = (),
        *,
        clock: Clock | None = None,
        used: Collection[str] | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.reason: str | None = None
        self._source = source
        self._used = used
        self._threads: dict[GpuSampler, threading.Thread] = {}
        self._host = RaplRecorder(domains, self.clock) if domains else None
        self._unreadable: dict[str, MeterEvent] = {}
        self._start_ns = self.clock.now_ns()

    def start(self) -> None:
        """Find the GPUs and begin to record; a machine without GPUs gets a timeline that says why.

        Raises:
            MeterError: A driver is there and cannot be talked to.
        """
        self._start_ns = self.clock.now_ns()
        try:
            self.reason = self._source.open()
            for index in range(0 if self.reason else self._source.count()):
                try:
                    reader = self._source.reader(index, self.clock)
                except self._source.errors as error:
                    kind: Meaning = "gpu_lost" if self._source.meaning(error) == "gpu_lost" else "read_error"
                    event = MeterEvent(self.clock.now_ns(), kind, reading=f"GPU {index}", said=str(error))
                    # A GPU that does not tell its UUID is named by its index in NVML.
                    self._unreadable[f"index-{index}"] = event
                    continue
                is_used = self._used is None or reader.uuid in self._used
                sampler = GpuSampler(reader, self.clock, is_used=is_used)
                self._threads[sampler] = threading.Thread(target=sampler.run, name=f"meter-{reader.uuid}", daemon=True)
            if not self._threads and not self._unreadable:
                self.reason = self.reason or "the NVIDIA driver lists no GPU"
        except self._source.errors as error:
            self.reason = f"the driver cannot be read: {error}; does nvidia-smi work on this host?"
            raise MeterError(self.reason) from error
        except MeterError as error:
            self.reason = str(error)
            raise
        for thread in self._threads.values():
            thread.start()
        if self._host:
            self._host.start()

    @contextmanager
    def window(self, key: str) -> Iterator[None]:
        """Mark a span: list processes at both ends; the source may measure the span too."""
        self.note_edge()
        try:
            with self._source.window(key, self.clock):
                yield
        finally:
            self.note_edge()

    def note_edge(self) -> None:
        """Say that a span begins or ends about now: processes are listed soon."""
        for sampler in self._threads:
            sampler.note_edge()

    def watts(self) -> dict[str, float | None]:
        """Return the latest power per GPU UUID in watts, None where there is none; for display only."""
        return {sampler.uuid: sampler.latest_power_w for sampler in self._threads}

    def peek(self, after_ns: int | None = None) -> Timeline:
        """Return what has been recorded so far, after a moment's wait for readings beyond `after_ns`, a span's end."""
        if after_ns is not None:
            self.note_edge()
            until_ns = self.clock.now_ns() + PEEK_PATIENCE_NS
            waiting = [sampler for sampler, thread in self._threads.items() if thread.is_alive()]
            while self.clock.now_ns() < until_ns and not all(sampler.has_passed(after_ns) for sampler in waiting):
                self.clock.sleep(PEEK_POLL_S)
        gpus = {sampler.uuid: sampler.recording.timeline(sampler.uuid) for sampler in self._threads}
        return self._timeline(gpus, self.clock.now_ns())

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Record for one second and one counter change beyond `after_ns`, the last span's end; return the timeline.

        A counter that no longer changes is waited for until it can be called frozen.
        """
        now_ns = self.clock.now_ns()
        until_ns = now_ns if after_ns is None else after_ns
        for sampler in self._threads:
            sampler.stop_after(until_ns)
        patience_s = max(0, until_ns - now_ns) / NS_PER_S + TAIL_LIMIT_NS / NS_PER_S + CALL_PATIENCE_S
        for thread in self._threads.values():
            thread.join(patience_s)
        if self._host:
            self._host.stop()
        gpus: dict[str, GpuTimeline] = {}
        end_ns = max(until_ns, self.clock.now_ns())
        hung = [sampler for sampler, thread in self._threads.items() if thread.is_alive()]
        for sampler in self._threads:
            recording = sampler.recording
            if sampler in hung:
                said = f"a call into NVML has not returned for {CALL_PATIENCE_S:.0f} s; {ENDS_HERE}"
                recording.events.append(MeterEvent(recording.end_ns, "gpu_lost", said=said))
            elif not sampler.completed:
                recording.events.append(MeterEvent(recording.end_ns, "broke_off"))
            gpus[sampler.uuid] = recording.timeline(sampler.uuid)
            end_ns = max(end_ns, recording.end_ns)
        if self.reason is None and not hung:
            self._source.close()
        return self._timeline(gpus, end_ns)

    def _timeline(self, gpus: dict[str, GpuTimeline], end_ns: int) -> Timeline:
        for name, event in self._unreadable.items():
            gpus[name] = GpuTimeline(uuid=name, energy_source=None, ticks=Ticks.from_rows(), events=(event,))
        return Timeline(
            meter=self._source.name,
            start_ns=self._start_ns,
            end_ns=end_ns,
            gpus=gpus,
            reason=self.reason,
            windows=tuple(self._source.windows),
            host=self._host.peek() if self._host else None,
        )
