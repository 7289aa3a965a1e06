"""A folder made once: together, interrupted, and where it cannot be made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from unprivileged import run_as_user, user_home

from wattdock.errors import PreflightError
from wattdock.inputs.model_folder import build_once

if TYPE_CHECKING:
    from pathlib import Path

BUILD = """
import sys
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.inputs.model_folder import build_once
target = Path(sys.argv[1])
def build(scratch):
    (scratch / "half").touch()
    print("building", flush=True)
    sys.stdin.read()
    (scratch / "whole").touch()
try:
    build_once(target, build, progress=lambda line: print(line, flush=True))
except PreflightError as error:
    sys.exit(f"refused: {error}")
print("done", sorted(file.name for file in target.iterdir()), flush=True)
"""
DONE = "done ['half', 'whole']"


def start(target: Path) -> subprocess.Popen[str]:
    """Start one that builds until its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_of_two_that_want_a_folder_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    """Both get the whole folder."""
    target = tmp_path / "models" / "m"
    processes = [start(target), start(target)]
    said = {next_line(process): process for process in processes}
    assert sorted(said) == ["building\n", f"waiting for another wattdock that holds {tmp_path}/models/.m.lock\n"]
    # The builder first, which the other waits for.
    assert [said[word].communicate(timeout=240)[0] for word in sorted(said)] == [f"{DONE}\n"] * 2


def test_a_killed_builder_leaves_no_folder_and_the_next_one_starts_afresh(tmp_path: Path) -> None:
    """Half a model must never be found under the model's name."""
    target = tmp_path / "m"
    process = start(target)
    assert next_line(process) == "building\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=240)
    assert not target.exists()
    build_once(target, lambda scratch: (scratch / "whole").touch(), progress=pytest.fail)
    assert [file.name for file in target.iterdir()] == ["whole"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".m.lock", "m"]


def test_an_interrupted_wait_leaves_the_builder_its_folder(tmp_path: Path) -> None:
    """Ctrl-C in one terminal must not ruin the download in another."""
    target = tmp_path / "m"
    builder = start(target)
    assert next_line(builder) == "building\n"
    waiter = start(target)
    assert next_line(waiter).startswith("waiting")
    waiter.send_signal(signal.SIGINT)
    waiter.communicate(timeout=240)
    assert builder.communicate(timeout=240)[0] == f"{DONE}\n"


def test_an_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    """The next attempt must not think that it is done."""

    def build(scratch: Path) -> None:
        (scratch / "half").touch()
        raise PreflightError("no")

    with pytest.raises(PreflightError, match=r"^no$"):
        build_once(tmp_path / "m", build, progress=print)
    assert [file.name for file in tmp_path.iterdir()] == [".m.lock"]


def test_too_little_space_is_said_before_anything_is_built(tmp_path: Path) -> None:
    """With both figures and the way out."""

    def build(scratch: Path) -> None:
        pytest.fail("built without the space for it")

    with pytest.raises(PreflightError, match=r"GB free and 1000000\.00 GB are needed.*WATTDOCK_HOME"):
        build_once(tmp_path / "m", build, progress=print, needed_bytes=10**15)


def test_a_home_that_may_not_be_written_to_is_refused_in_one_line(tmp_path: Path) -> None:
    """As a real unprivileged user, for whom it is true."""
    home = user_home(tmp_path)
    barred = home / "barred"
    barred.mkdir(mode=0o755)
    os.chown(barred, 0, 0) if os.getuid() == 0 else barred.chmod(0o555)
    done = run_as_user([sys.executable, "-c", BUILD, barred / "models" / "m"], env={"HOME": str(home)}, cwd=home)
    assert done.returncode == 1
    assert done.stderr.startswith(f"refused: cannot write {barred}/models/m: Permission denied; ")
    assert done.stderr.count("\n") == 1
