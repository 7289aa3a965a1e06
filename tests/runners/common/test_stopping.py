"""A runner ends when it is asked to."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from contract.runner_process import FAKE_FOLDER, running

SYS_TGKILL = 234
ENDS_WITHIN_S = 15


@pytest.mark.skipif(sys.platform != "linux", reason="signals single threads through Linux's tgkill")
def test_a_runner_stops_when_another_of_its_threads_takes_the_signal() -> None:
    """The kernel may hand a process's signal to any thread; Python runs its handler in the first one only."""
    with running("fake", FAKE_FOLDER) as runner:
        pid = runner.process.pid
        other = min(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if takes_sigterm(task, pid))
        assert ctypes.CDLL(None).syscall(SYS_TGKILL, pid, other, int(signal.SIGTERM)) == 0
        try:
            runner.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there after {ENDS_WITHIN_S} s:\n{runner.log.read_text()}")
        assert runner.process.returncode == 0


def takes_sigterm(task: Path, pid: int) -> bool:
    """Whether a thread other than the first does not block SIGTERM."""
    blocked = next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk:"))
    return task.name != str(pid) and not int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1
