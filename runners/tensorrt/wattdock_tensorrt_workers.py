"""Know the processes that an engine has started, see when one has ended, and end those that are left.

TensorRT-LLM does not tell when a worker was killed: a request then waits for ever, and so does its own shutdown.
Reads /proc only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# What mpi4py, with which TensorRT-LLM starts its workers, runs in each of them.
WORKER_MODULE = b"mpi4py.futures"


@dataclass(frozen=True)
class Process:
    """One process; a pid is used again, with its start time (clock ticks after boot) it is one of a kind."""

    pid: int
    start_ticks: int


def descendants(pid: int) -> frozenset[Process]:
    """Return all living processes below `pid`."""
    parents: dict[int, list[Process]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (seen := _stat(int(entry.name))) and seen[1] != "Z":
            parents.setdefault(seen[2], []).append(seen[0])
    found: list[Process] = list(parents.get(pid, ()))
    for process in found:
        found += parents.get(process.pid, ())
    return frozenset(found)


def workers_below(pid: int) -> frozenset[Process]:
    """Return those of the processes below `pid` that compute; others come and go as they please."""
    return frozenset(process for process in descendants(pid) if WORKER_MODULE in _command(process.pid))


def is_alive(process: Process) -> bool:
    """Return whether a process is there and has not ended."""
    seen = _stat(process.pid)
    return seen is not None and seen[0] == process and seen[1] != "Z"


def kill(processes: frozenset[Process]) -> None:
    """End what still lives."""
    for process in processes:
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _stat(pid: int) -> tuple[Process, str, int] | None:
    """Return a process, its state and its parent, or None when it is gone.

    Source: proc_pid_stat(5), fields 3 (state), 4 (ppid) and 22 (starttime).
    """
    try:
        # The name in brackets may hold anything.
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[19])), fields[0], int(fields[1])
