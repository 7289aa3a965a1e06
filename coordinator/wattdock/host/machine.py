"""CPU, memory and kernel of this machine, and how busy its CPUs are."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from wattdock.host.code import checkout

STAT = Path("/proc/stat")
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


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks of all CPUs together since boot."""

    busy: int
    total: int

    def busy_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean busy share since `earlier`, 0 to 1; None where no tick has passed."""
        passed = self.total - earlier.total
        return (self.busy - earlier.busy) / passed if passed > 0 else None


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


def cpu_times() -> CpuTimes | None:
    """Return the CPUs' times now, or None where the kernel does not tell.

    Source: proc(5), /proc/stat: user nice system idle iowait irq softirq steal; the last two (guest) are in user.
    """
    if not os.access(STAT, os.R_OK):
        return None
    ticks = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    return CpuTimes(sum(ticks) - idle, sum(ticks))


def _cpu_model() -> str | None:
    if not os.access(CPUINFO, os.R_OK):
        return None
    names = (
        line.split(":", 1)[1].strip() for line in CPUINFO.read_text().splitlines() if line.startswith("model name")
    )
    return next(names, None)
