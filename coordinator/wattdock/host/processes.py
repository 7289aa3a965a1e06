"""This machine's processes and CPUs: who owns a process or serves a port, how busy the CPUs are, and with whose work.

And what a process that wattdock starts gets to know of the caller's environment.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.opening import PROC

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

# Module in the command line of every runner's first process.
RUNNER = b"wattdock_runner"
# The state of a socket that listens. Source: proc_net_tcp.rst of Linux, include/net/tcp_states.h.
LISTENS = "0A"
# Fields of /proc/PID/stat behind the name: utime and stime, then the same of children that were waited for (proc(5)).
TICK_FIELDS = slice(11, 15)
# Variables that any program may have: to start, to find its user's files, to speak the user's language.
BASIC = (
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG(UAGE)?|LC_[A-Z]+|TMPDIR|TEMP|TMP|XDG_[A-Z_]+"
    r"|LD_(LIBRARY_PATH|PRELOAD)|WATTDOCK_[A-Z_]+"
)
# Variables of programs that fetch packages and images, logins included.
NETWORK = r"(?i:(https?|ftp|all|no)_proxy)|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|NETRC"
COMPILERS = r"CC|CXX|C(PLUS)?(_INCLUDE_)?PATH|LIBRARY_PATH|MAX_JOBS"
PACKAGES = rf"{NETWORK}|{COMPILERS}|(PIP|UV)_\w+"


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks so far.

    Attributes:
        busy, total: Of these CPUs since boot; what the hypervisor gave to other machines counts as busy.
        measurement_ticks: CPU time of this coordinator and its runner, with children that they waited for; None where
            unreadable.
        stolen: The part of `busy` that the hypervisor gave to other machines.
    """

    busy: int
    total: int
    measurement_ticks: int | None = None
    stolen: int = 0

    def others_share_since(self, earlier: CpuTimes) -> float | None:
        """Return the mean share since `earlier` that went to processes of others, 0 to 1; None where unknown."""
        passed = self.total - earlier.total
        if passed <= 0 or self.measurement_ticks is None or earlier.measurement_ticks is None:
            return None
        measurement = self.measurement_ticks - earlier.measurement_ticks
        # Fewer than before: a child that was not waited for took its ticks with it.
        return None if measurement < 0 else max(0, self.busy - earlier.busy - measurement) / passed


def cpu_times(
    cpus: Collection[int] | None = None, *, measurement_ticks: int | None = None, proc: Path = PROC
) -> CpuTimes | None:
    """Return the CPUs' times now, or None where the kernel hides them.

    Args:
        cpus: Their numbers; None is all of the machine.
        measurement_ticks: CPU time of this coordinator and its runner.
        proc: /proc, or a stand-in.

    Source: proc(5), /proc/stat: user nice system idle iowait irq softirq steal; the last two (guest) are in user.
    """
    if not os.access(proc / "stat", os.R_OK):
        return None
    names = ["cpu"] if cpus is None else [f"cpu{number}" for number in cpus]
    fields = [line.split() for line in (proc / "stat").read_text().splitlines() if line.startswith("cpu")]
    ticks = [[int(field) for field in numbers[:8]] for name, *numbers in fields if name in names]
    total = sum(map(sum, ticks))
    idle, stolen = sum(sum(cpu[3:5]) for cpu in ticks), sum(cpu[7] for cpu in ticks)
    return CpuTimes(total - idle, total, measurement_ticks, stolen)


def times_around(runner: Collection[int], *, of_runner: bool = True) -> CpuTimes | None:
    """Return the times of all CPUs that a runner may use; `measurement_ticks` is what it and this process used.

    Args:
        runner: Its processes, as this host numbers them.
        of_runner: Whether they are told by a runner's command line, or are those of a command of the user's own.

    Returns:
        None where this machine does not show them, or shows others by their ids, as in a container with its own ids.
    """
    ticks = 0
    for process in (PROC / str(pid) for pid in (os.getpid(), *runner)):
        with contextlib.suppress(OSError):
            # The name in brackets may itself hold brackets and spaces.
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[TICK_FIELDS]))
    is_shown, cpus = False, set[int]()
    for pid in runner:
        with contextlib.suppress(OSError):
            is_shown |= not of_runner or RUNNER in (PROC / str(pid) / "cmdline").read_bytes()
            cpus |= os.sched_getaffinity(pid)
    if not is_shown:
        return None
    return cpu_times(cpus, measurement_ticks=ticks)


def child_environment(environ: Mapping[str, str], names: str = r"(?!)") -> dict[str, str]:
    """Return the variables of a program that wattdock starts.

    Args:
        environ: The caller's environment.
        names: Pattern of variables that the program gets besides those in `BASIC`.
    """
    pattern = re.compile(f"{BASIC}|{names}")
    return {name: value for name, value in environ.items() if pattern.fullmatch(name)}


def owner_of(pid: int) -> tuple[str | None, str | None]:
    """Return user and command of a process, None each where /proc does not show it."""
    process = PROC / str(pid)
    with contextlib.suppress(OSError):
        return user_name(process.stat().st_uid), (process / "comm").read_text(errors="replace").strip()
    return None, None


def user_name(uid: int | None = None) -> str:
    """Return a user's name (our own by default), or the number where it has none."""
    number = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def is_here(host: str) -> bool:
    """Return whether a name or an address is this machine's: it alone can bind a socket to it.

    Raises:
        OSError: Nobody knows the name.
    """
    for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def listening_pids(port: int, proc: Path = PROC) -> frozenset[int]:
    """Return the processes that listen at a port, as far as this user may see them.

    Args:
        proc: /proc, or a stand-in.

    Source: proc(5), /proc/net/tcp: local address, state, …, inode; /proc/PID/fd.
    """
    sockets = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{words[9]}]")
    pids = set()
    for process in proc.iterdir() if sockets else ():
        # Another user's, or it has ended.
        with contextlib.suppress(OSError):
            if process.name.isdigit() and any(str(file.readlink()) in sockets for file in (process / "fd").iterdir()):
                pids.add(int(process.name))
    return frozenset(pids)


def with_descendants(pids: Collection[int]) -> frozenset[int]:
    """Return these processes and all below them."""
    found = set(pids)
    for pid in pids:
        with contextlib.suppress(OSError):
            for file in (PROC / str(pid) / "task").glob("*/children"):
                found |= with_descendants([int(word) for word in file.read_text().split()])
    return frozenset(found)
