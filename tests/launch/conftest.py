"""A stand-in runner for launcher tests, and a way to see which processes are left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STANDIN = Path(__file__).with_name("standin_runner.py")
PATIENCE_S = 120
SEGMENTS = Path("/dev/shm")  # where shm_open(3) puts them


class Until(Protocol):
    """Waits for a condition and fails the test where it does not come true."""

    def __call__(self, condition: Callable[[], object]) -> None: ...


@pytest.fixture
def until() -> Until:
    """Return a wait with a deadline."""

    def wait(condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"did not come true within {PATIENCE_S} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    """Return a program that takes an interpreter's place and behaves as its backend name says."""
    program = tmp_path / "standin"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def launcher(standin: Path) -> ProcessLauncher:
    """Return a launcher of stand-ins."""
    return ProcessLauncher(standin, orphan_grace_s=1)


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], LaunchSpec]:
    """Return a maker of launch specs by behaviour."""
    return lambda behaviour: LaunchSpec(
        backend=behaviour, runner_dir=tmp_path / "runners" / behaviour, log_path=tmp_path / f"{behaviour}.log"
    )


@pytest.fixture
def left() -> Callable[[Path], list[str]]:
    """Return what is still there of the processes and shared memory that were written into a log."""

    def still_there(log_path: Path) -> list[str]:
        return [line for line in log_path.read_text().splitlines() if exists(*line.split()[:2])]

    return still_there


def exists(kind: str = "", name: str = "") -> bool:
    """Whether a process or a segment that a stand-in told of is there."""
    return (kind == "pid" and is_running(int(name))) or (kind == "segment" and (SEGMENTS / name).exists())


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def keeper_of() -> Callable[[int], int]:
    """Return the keeper of a runner."""
    return parent_of


@pytest.fixture
def zombies() -> Callable[[], list[int]]:
    """Return this process's children that began in this test, ended and were not collected."""
    before = {pid for pid, _ in children()}
    return lambda: [pid for pid, state in children() if state == "Z" and pid not in before]


def children() -> Iterator[tuple[int, str]]:
    """Yield pid and state of every child of this process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == os.getpid():
                yield int(entry.name), state
