"""Read the host's clock, and decide whether a runner reads the same one."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from wattdock.errors import ClockError

NS_PER_S = 1_000_000_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")
CONSEQUENCE = "spans and energy cannot be put on one timeline; run the runner on this host, in its time namespace"


class Clock:
    """The host's CLOCK_MONOTONIC and time of day; a class derived from it simulates both."""

    def now_ns(self) -> int:
        """Return this instant in nanoseconds."""
        return time.monotonic_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Sleep until the event is set or `timeout_s` seconds are over; return whether the event is set."""
        return event.wait(timeout_s)

    def wall_ns(self) -> int:
        """Return the time of day, which may be stepped, in nanoseconds since 1970."""
        return time.time_ns()

    def sleep(self, duration_s: float) -> None:
        """Return when `duration_s` seconds are over."""
        self.wait(threading.Event(), duration_s)

    def now_utc(self) -> str:
        """Return the time of day, ISO 8601 with milliseconds: a label, never the end of a duration."""
        return datetime.now(UTC).isoformat(timespec="milliseconds")

    def identity(self) -> ClockIdentity:
        """Return which CLOCK_MONOTONIC this is."""
        namespace = TIME_NAMESPACE.stat().st_ino if TIME_NAMESPACE.exists() else None
        return ClockIdentity(BOOT_ID.read_text().strip() if os.access(BOOT_ID, os.R_OK) else "", namespace)


@dataclass(frozen=True)
class ClockCheck:
    """The runner's clock is the host's, to within `round_trip_ns`."""

    boot_id: str
    round_trip_ns: int


@dataclass(frozen=True)
class ClockIdentity:
    """Which CLOCK_MONOTONIC a process reads: the boot it counts from, and the namespace that shifts it."""

    boot_id: str
    time_namespace: int | None

    def __str__(self) -> str:
        return f"boot {self.boot_id or 'unknown'}, time namespace {self.time_namespace or 'unknown'}"


def check_clock(
    host: ClockIdentity, runner: ClockIdentity, *, sent_ns: int, runner_ns: int, received_ns: int
) -> ClockCheck:
    """Return the round trip that bounds any offset between the two clocks.

    Args:
        sent_ns, received_ns: Host's instants around the call.
        runner_ns: The runner's instant, stamped inside the call.

    Raises:
        ClockError: Another boot, another time namespace, or an instant that cannot lie inside the call.
    """
    if host.boot_id != runner.boot_id:
        raise ClockError(f"the runner's boot id is {runner.boot_id!r}, the host's {host.boot_id!r}: {CONSEQUENCE}")
    if host.time_namespace != runner.time_namespace:
        raise ClockError(
            f"the runner is in time namespace {runner.time_namespace}, the host in {host.time_namespace}: {CONSEQUENCE}"
        )
    if not sent_ns <= runner_ns <= received_ns:
        off_by_s = (runner_ns - (sent_ns + received_ns) // 2) / NS_PER_S
        raise ClockError(f"the runner's clock is {off_by_s:+.6f} s off the host's: {CONSEQUENCE}")
    return ClockCheck(host.boot_id, received_ns - sent_ns)
