"""A runner ends when it is asked to."""

from __future__ import annotations

import ctypes
import re
import signal
import sys
from pathlib import Path

import pytest
from contract.runner_process import FAKE_FOLDER, PATIENCE_S, load_request, running
from contract.subjects import write_config

from wattdock_runner.__main__ import EXIT_STUCK

SYS_TGKILL = 234
IMPATIENT = """
import sys
from wattdock_runner import __main__ as runner
runner.STOP_GRACE_S, runner.STACKS_AFTER_S = 2.0, 0.2
sys.exit(runner.main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals single threads through Linux's tgkill")
def test_a_runner_stops_when_another_of_its_threads_takes_the_signal() -> None:
    """The kernel may hand a process's signal to any thread; Python runs its handler in the first one only."""
    with running("fake", FAKE_FOLDER) as runner:
        pid = runner.process.pid
        other = min(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if takes_sigterm(task, pid))
        assert ctypes.CDLL(None).syscall(SYS_TGKILL, pid, other, int(signal.SIGTERM)) == 0
        assert runner.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_a_runner_whose_engine_hangs_leaves_without_it_and_logs_where_it_hangs(tmp_path: Path) -> None:
    """Whoever has to find out what an engine waits for finds the stack of every thread in the runner's log."""
    with running("fake", FAKE_FOLDER, program=("-c", IMPATIENT)) as runner:
        # A load hears no cancelling: it hangs however early the signal comes.
        next(runner.stub.Load(load_request(write_config(tmp_path), engine_args={"load_s": 600.0})))
        runner.process.terminate()
        assert runner.process.wait(PATIENCE_S) == EXIT_STUCK
        log = runner.log.read_text()
    # A thread that holds the GIL has read them; stacks that change while they are read can crash the runner.
    assert re.search(r'^Current thread 0x.*\n(  File .*\n)*?  File ".*__main__.py", line', log, re.MULTILINE), log
    assert re.search(r'^Thread 0x.*\n(  File .*\n)*?  File ".*fake.*", line', log, re.MULTILINE), log


def takes_sigterm(task: Path, pid: int) -> bool:
    """Whether a thread other than the first does not block SIGTERM."""
    blocked = next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk:"))
    return task.name != str(pid) and not int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1
