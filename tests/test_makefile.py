"""`make` sets an environment up under a lock, one at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from wattdock.files import locked

REPO = Path(__file__).resolve().parents[1]
# Where this suite was started by make, it speaks to its parent otherwise.
ENVIRON = os.environ | {"MAKEFLAGS": "", "MAKELEVEL": ""}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose set-up would begin, with nothing that it could install."""
    shutil.copy(REPO / "Makefile", tmp_path)
    (tmp_path / "coordinator").symlink_to(REPO / "coordinator")
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_a_second_make_says_whom_it_waits_for_and_nobody_else_can_be_waited_for(checkout: Path) -> None:
    """The lock is closed to others; the line comes while it waits."""
    with locked(checkout / ".venv.lock"):
        make = subprocess.Popen(
            ["make", "setup"], env=ENVIRON, cwd=checkout, stderr=subprocess.PIPE, text=True, process_group=0
        )
        assert make.stderr
        line = make.stderr.readline()
        os.killpg(make.pid, 15)
        make.communicate(timeout=60)
    name = Path("/proc/self/comm").read_text().strip()
    assert (
        line == f"waiting up to 3600 s for process {os.getpid()} ({name} of user {os.geteuid()}), holding .venv.lock\n"
    )
    assert (checkout / ".venv.lock").stat().st_mode & 0o777 == 0o600


def test_a_pipe_in_the_locks_place_is_refused(checkout: Path) -> None:
    """In one line of ours, at once."""
    os.mkfifo(checkout / ".venv.lock")
    make = subprocess.run(
        ["make", "setup"], env=ENVIRON, cwd=checkout, capture_output=True, text=True, timeout=120, check=False
    )
    assert make.returncode == 2
    assert make.stderr.splitlines()[0] == "cannot use .venv.lock: is not a regular file"
