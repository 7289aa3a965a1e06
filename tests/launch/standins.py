"""Stand-in runners for launcher tests, and what is left of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STANDIN = Path(__file__).with_name("standin_runner.py")
APPTAINER = Path(__file__).with_name("standin_apptainer.py")
PATIENCE_S = 120
SEGMENTS = Path("/dev/shm")  # where shm_open(3) puts them


def write_standin(folder: Path) -> Path:
    """Write a program that takes an interpreter's place and behaves as its backend name says; return it."""
    program = folder / "standin"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    program.chmod(0o755)
    return program


def write_apptainer(folder: Path, name: str = "apptainer") -> Path:
    """Write a program that takes Apptainer's place into a folder; return it."""
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {APPTAINER} "$0" "$@"\n')
    program.chmod(0o755)
    return program


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition, and fail the test where it does not come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"did not come true within {PATIENCE_S} s"
        time.sleep(0.02)


def folder_of(address: str) -> Path:
    """Return the folder of a runner's socket."""
    return Path(address.removeprefix("unix:")).parent


def left(log_path: Path) -> list[str]:
    """Return what is still there of the processes and shared memory that were written into a log."""
    return [line for line in log_path.read_text().splitlines() if exists(*line.split()[:2])]


def exists(kind: str = "", name: str = "") -> bool:
    """Whether a process that is no zombie, or a segment, is there that a stand-in told of."""
    return (kind == "pid" and state_of(int(name))[0] not in "Z-") or (kind == "segment" and (SEGMENTS / name).exists())


def state_of(pid: int) -> tuple[str, int]:
    """Return the state of a process, "-" for one that is gone, and its parent."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "-", 0
    return state, int(parent)


def zombies() -> set[int]:
    """Return this process's children that ended and were not collected."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {pid for pid in pids if state_of(pid) == ("Z", os.getpid())}
