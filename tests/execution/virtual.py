"""A whole study in virtual time: simulated GPUs, meter, launcher and engine behind the seams of `execution`."""

from __future__ import annotations

from wattdock.clock import NS_PER_S


class VirtualClock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self, start_s: float = 100.0) -> None:
        self._now_ns = round(start_s * NS_PER_S)

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, duration_s: float) -> None:
        self._now_ns += round(duration_s * NS_PER_S)
