"""How busy this machine's CPUs are, and with whose work."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

PROC = Path("/proc")


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks so far.

    Attributes:
        busy, total: Of all CPUs together since boot; what the hypervisor gave to other machines counts as busy.
        own: Of some processes, with those of children that they have waited for; None where one cannot be read.
    """

    busy: int
    total: int
    own: int | None = None

    def busy_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean busy share since `earlier`, 0 to 1; None where no tick has passed."""
        passed = self.total - earlier.total
        return (self.busy - earlier.busy) / passed if passed > 0 else None

    def others_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean share since `earlier` that went to anybody but `own`, 0 to 1; None where that is unknown."""
        passed = self.total - earlier.total
        if passed <= 0 or self.own is None or earlier.own is None:
            return None
        # A process that ended unwaited for took its ticks with it.
        own = max(0, self.own - earlier.own)
        return max(0, self.busy - earlier.busy - own) / passed


def cpu_times(own_pids: Collection[int] = (), proc: Path = PROC) -> CpuTimes | None:
    """Return the CPUs' times now, or None where the kernel does not tell.

    Args:
        own_pids: Processes whose times are `own`.
        proc: /proc, or a stand-in.

    Source: proc(5), /proc/stat: user nice system idle iowait irq softirq steal; the last two (guest) are in user.
    """
    if not os.access(proc / "stat", os.R_OK):
        return None
    ticks = [int(field) for field in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    own = [_process_ticks(proc / str(pid)) for pid in own_pids]
    known = [one for one in own if one is not None]
    return CpuTimes(sum(ticks) - idle, sum(ticks), own=sum(known) if known else None)


def busiest_process(earlier: dict[int, int], later: dict[int, int]) -> int | None:
    """Return the pid that got most ticks between two `process_times`; None where none got any."""
    gained = {pid: ticks - earlier.get(pid, 0) for pid, ticks in later.items()}
    most = max(gained, key=gained.__getitem__, default=None)
    return most if most is not None and gained[most] > 0 else None


def process_times(proc: Path = PROC) -> dict[int, int]:
    """Return the ticks so far of every process that can be read, by pid."""
    times = {int(one.name): _process_ticks(one) for one in proc.iterdir() if one.name.isdigit()}
    return {pid: ticks for pid, ticks in times.items() if ticks is not None}


def _process_ticks(process: Path) -> int | None:
    """Source: proc(5), /proc/PID/stat: utime, stime, cutime, cstime are fields 14 to 17, the name is the second."""
    with contextlib.suppress(OSError):
        after_name = (process / "stat").read_bytes().rpartition(b")")[2].split()
        return sum(int(field) for field in after_name[11:15])
    return None
