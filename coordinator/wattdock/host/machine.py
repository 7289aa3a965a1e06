"""CPU, memory and kernel of this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from wattdock.host.code import checkout

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """What does not change while we measure; None where the system does not tell.

    Attributes:
        wattdock_commit, wattdock_dirty: Of our own checkout, and whether its files differ from the commit's; None
            where we are installed without one.
    """

    cpu_model: str | None
    cpu_count: int
    memory_total_bytes: int | None
    kernel: str
    wattdock_commit: str | None = None
    wattdock_dirty: bool | None = None


def describe_machine() -> Machine:
    """Return this machine's facts."""
    cpus = len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ours = checkout()
    return Machine(
        cpu_model=_cpu_model(),
        cpu_count=cpus,
        memory_total_bytes=pages if pages > 0 else None,
        kernel=f"{platform.system()} {platform.release()}",
        wattdock_commit=ours.commit if ours else None,
        wattdock_dirty=ours.dirty if ours else None,
    )


def _cpu_model() -> str | None:
    if not os.access(CPUINFO, os.R_OK):
        return None
    names = (
        line.split(":", 1)[1].strip() for line in CPUINFO.read_text().splitlines() if line.startswith("model name")
    )
    return next(names, None)
