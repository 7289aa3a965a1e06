"""What every meter can do, and the clock it does it by.

Knows no hardware: `nvml` and others satisfy `Meter`, `run` and `measure` use it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager

    from wattdock.metering.timeline import Timeline


class Clock(Protocol):
    """CLOCK_MONOTONIC, or a simulation of it."""

    def now_ns(self) -> int:
        """Return this instant in nanoseconds."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Sleep until the event is set or the time is over; return whether the event is set."""
        ...


class SystemClock:
    """The host's CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Sleep until the event is set or `timeout_s` seconds are over; return whether the event is set."""
        return event.wait(timeout_s)


class Meter(Protocol):
    """Records one timeline, from `start` to `stop`."""

    def start(self) -> None:
        """Begin to record.

        Raises:
            MeterError: The source exists and cannot be read. That there is none is no error: the timeline says why.
        """
        ...

    def window(self, key: str) -> AbstractContextManager[None]:
        """Enter around a span: what is read seldom is read soon, and a meter that measures windows measures one."""
        ...

    def watts(self) -> dict[str, float | None]:
        """Return the latest power per GPU UUID in watts, None where there is none; for display only."""
        ...

    def peek(self) -> Timeline:
        """Return what has been recorded so far; recording goes on."""
        ...

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Record for one second and one tick beyond `after_ns` (default: now) and return what was recorded.

        Args:
            after_ns: End of the last span, CLOCK_MONOTONIC nanoseconds.

        Raises:
            MeterError: The meter was not started, or broke off without being able to say what it saw.
        """
        ...
