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
# What the command line of every runner's first process holds.
RUNNER = b"wattdock_runner"
# Fields of proc(5)'s /proc/PID/stat behind the name: utime and stime, then those of children that were waited for.
OWN_FIELDS, WITH_CHILDREN = slice(11, 13), slice(11, 15)


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks so far.

    Attributes:
        busy, total: Of these CPUs since boot; what the hypervisor gave to other machines counts as busy.
        own: Of some processes, with those of children that they waited for; None where they cannot be read.
        stolen: That part of `busy` which the hypervisor gave away.
    """

    busy: int
    total: int
    own: int | None = None
    stolen: int = 0

    def busy_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean busy share since `earlier`, 0 to 1; None where no tick has passed."""
        passed = self.total - earlier.total
        return (self.busy - earlier.busy) / passed if passed > 0 else None

    def others_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean share since `earlier` that went to anybody but `own`, 0 to 1; None where that is unknown."""
        passed = self.total - earlier.total
        # Fewer than before: one that nobody waited for took its ticks with it.
        if passed <= 0 or self.own is None or earlier.own is None or self.own < earlier.own:
            return None
        return max(0, self.busy - earlier.busy - (self.own - earlier.own)) / passed


def cpu_times(cpus: Collection[int] | None = None, *, own: int | None = None, proc: Path = PROC) -> CpuTimes | None:
    """Return the CPUs' times now, or None where the kernel does not tell.

    Args:
        cpus: Their numbers; None is all of the machine.
        own: Ticks of the processes whose share is no other's.
        proc: /proc, or a stand-in.

    Source: proc(5), /proc/stat: user nice system idle iowait irq softirq steal; the last two (guest) are in user.
    """
    if not os.access(proc / "stat", os.R_OK):
        return None
    wanted = ["cpu"] if cpus is None else [f"cpu{number}" for number in cpus]
    fields = [line.split() for line in (proc / "stat").read_text().splitlines() if line.startswith("cpu")]
    ticks = [[int(one) for one in numbers[:8]] for name, *numbers in fields if name in wanted]
    total = sum(map(sum, ticks))
    return CpuTimes(total - sum(sum(one[3:5]) for one in ticks), total, own, stolen=sum(one[7] for one in ticks))


def times_around(runner: Collection[int], proc: Path = PROC) -> CpuTimes | None:
    """Return the times of all CPUs that a runner may use; `own` is what it and this process used.

    Args:
        runner: Its processes, as this host numbers them.

    Returns:
        None where they are not to be seen here, or others have their numbers, as in a container with ids of its own.
    """
    ticks = [_ticks(proc / str(pid), WITH_CHILDREN) for pid in (os.getpid(), *runner)]
    if not any(_is_runner(proc / str(pid)) for pid in runner):
        return None
    cpus: set[int] = set()
    for pid in runner:
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(pid)
    return cpu_times(cpus, own=sum(one for one in ticks if one is not None), proc=proc)


def process_times(proc: Path = PROC) -> dict[int, int]:
    """Return the ticks so far of every process that can be read, by pid."""
    times = {int(one.name): _ticks(one, OWN_FIELDS) for one in proc.iterdir() if one.name.isdigit()}
    return {pid: ticks for pid, ticks in times.items() if ticks is not None}


def _is_runner(process: Path) -> bool:
    with contextlib.suppress(OSError):
        return RUNNER in (process / "cmdline").read_bytes()
    return False


def _ticks(process: Path, fields: slice) -> int | None:
    with contextlib.suppress(OSError):
        # The name in brackets may itself hold brackets and spaces.
        after_name = (process / "stat").read_bytes().rpartition(b")")[2].split()
        return sum(int(field) for field in after_name[fields])
    return None
