"""Read the clock that runner and coordinator share, and the evidence that they share it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

NS_PER_S = 1_000_000_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")


@dataclass(frozen=True)
class Span:
    """A named interval in nanoseconds of CLOCK_MONOTONIC; no accelerator had work at either end."""

    name: str
    start_ns: int
    end_ns: int


def now_ns() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""
    # time.monotonic_ns is this clock on Linux, but only this spelling promises it.
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """Return the kernel's boot id, the same for every process of one boot."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def time_namespace() -> int | None:
    """Return the inode of this process's time namespace, or None where the kernel has none."""
    return TIME_NAMESPACE.stat().st_ino if TIME_NAMESPACE.exists() else None
