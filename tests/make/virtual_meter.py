"""A clock and a meter in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from make.records import PERIOD_S
from seams.metering import COUNTER_LAG, Series, Ticks

from wattdock.clock import NS_PER_S, Clock, ClockIdentity
from wattdock.metering import GpuTimeline, Timeline

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

# Watts at an instant, in seconds of the virtual clock.
Power = Callable[[float], float]


class VirtualClock(Clock):
    """A clock that moves only when somebody sleeps."""

    def __init__(self, start_s: float = 100.0) -> None:
        self._now_ns = round(start_s * NS_PER_S)

    def now_ns(self) -> int:
        return self._now_ns

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._now_ns += round(timeout_s * NS_PER_S)
        return event.is_set()

    def now_utc(self) -> str:
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._now_ns // 1000)
        return now.isoformat(timespec="milliseconds")

    def identity(self) -> ClockIdentity:
        return ClockIdentity("virtual", None)


@dataclass
class VirtualMeter:
    """Meters simulated GPUs: a counter that ticks every 100 ms, and a temperature of 40 °C read once a second.

    Attributes:
        edges_ns: When a span was said to begin or end.
    """

    clock: VirtualClock
    power: Mapping[str, Power]
    as_read: Callable[[Timeline], Timeline]
    at_end: Callable[[Timeline], Timeline]
    start_ns: int = 0
    edges_ns: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.start_ns = self.clock.now_ns()

    def window(self, key: str) -> Any:
        return nullcontext()

    def note_edge(self) -> None:
        self.edges_ns.append(self.clock.now_ns())

    def watts(self) -> dict[str, float | None]:
        now_s = self.clock.now_ns() / NS_PER_S
        return {uuid: power(now_s) for uuid, power in self.power.items()}

    def peek(self, after_ns: int | None = None) -> Timeline:
        start_ns, end_ns = self.start_ns, self.clock.now_ns()
        gpus = {uuid: self._gpu(uuid, power, start_ns, end_ns) for uuid, power in self.power.items()}
        return self.as_read(Timeline("nvml", start_ns, end_ns, gpus, reason=None if gpus else "no GPU"))

    def stop(self, after_ns: int | None = None) -> Timeline:
        self.clock.sleep(1.5)
        return self.at_end(self.peek())

    def _gpu(self, uuid: str, power: Power, start_ns: int, end_ns: int) -> GpuTimeline:
        at_s = np.arange(start_ns / NS_PER_S, end_ns / NS_PER_S, PERIOD_S)
        # The counter trails by as much as is assumed of it.
        watts = np.array([power(at - COUNTER_LAG.mean_s) for at in at_s])
        energy_mj = np.round(np.cumsum(watts * PERIOD_S) * 1e3).astype(np.int64)
        at_ns = (at_s * NS_PER_S).astype(np.int64)
        ticks = Ticks(at_ns - 1_000_000, at_ns - 1_000_000, at_ns + 1_000_000, at_ns + 1_000_000, energy_mj)
        seconds = at_ns[::10]
        series = {"temperature_c": Series(seconds, np.full(len(seconds), 40.0))}
        return GpuTimeline(uuid=uuid, energy_source="counter", ticks=ticks, series=series, period_s=PERIOD_S)
