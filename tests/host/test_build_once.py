"""How a folder is made once, complete or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from refused import raises
from seams.host import build_once
from unprivileged import alone, run_as_user, user_home

from wattdock.errors import Cause, PreflightError

if TYPE_CHECKING:
    from pathlib import Path

BUILD = f"""{alone("host")}
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.host.folders import build_once
target = Path(sys.argv[1])
def build(scratch):
    (scratch / "half").touch()
    print("building", flush=True)
    sys.stdin.read()
    (scratch / "whole").touch()
try:
    build_once(target, build, progress=lambda line: print(line, flush=True))
except PreflightError as error:
    sys.exit("refused: " + str(error))
print("done", sorted(file.name for file in target.iterdir()), flush=True)
"""
DONE = "done ['half', 'whole']"


def start(target: Path) -> Any:
    """Start one that builds until its standard input is closed."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", BUILD, str(target)], text=True, **pipes)


def test_of_several_that_want_a_folder_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    """All get the whole folder; Ctrl-C in one terminal does not ruin the download in another."""
    target = tmp_path / "models" / "m"
    builder = start(target)
    assert builder.stdout.readline() == "building\n"
    waiting = [start(target), start(target)]
    holder, lock = f"process {builder.pid} (python of user {os.getuid()})", f"{tmp_path}/models/.m.lock"
    for process in waiting:
        assert process.stdout.readline() == f"waiting up to 3600 s for {holder}, holding {lock}\n"
    waiting[0].send_signal(signal.SIGINT)
    waiting[0].communicate(timeout=240)
    said = [process.communicate(timeout=240)[0].splitlines() for process in (builder, waiting[1])]
    assert [lines[-1] for lines in said] == [DONE] * 2


def test_a_killed_builder_leaves_no_folder_and_the_next_one_starts_afresh(tmp_path: Path) -> None:
    """Half a model must never be found under the model's name."""
    target = tmp_path / "m"
    process = start(target)
    assert process.stdout.readline() == "building\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=240)
    assert not target.exists()
    build_once(target, lambda scratch: (scratch / "whole").touch(), progress=pytest.fail)
    assert [file.name for file in target.iterdir()] == ["whole"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".m.lock", "m"]


def test_an_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    """The next attempt must not think that it is done."""

    def build(scratch: Path) -> None:
        (scratch / "half").touch()
        raise PreflightError("no")

    with pytest.raises(PreflightError, match=r"^no$"):
        build_once(tmp_path / "m", build, progress=print)
    assert [file.name for file in tmp_path.iterdir()] == [".m.lock"]


def test_a_pipe_in_the_locks_place_is_named(tmp_path: Path) -> None:
    """It would be waited for."""
    os.mkfifo(tmp_path / ".m.lock")
    with raises(PreflightError, "/.m.lock", cause=Cause.NO_SPACE):
        build_once(tmp_path / "m", lambda _: None, progress=print)


def test_too_little_space_is_said_before_anything_is_built(tmp_path: Path) -> None:
    """With both figures and the way out."""

    def build(scratch: Path) -> None:
        pytest.fail("built without the space for it")

    with raises(PreflightError, "1.0", "WATTDOCK_HOME", cause=Cause.NO_SPACE):
        build_once(tmp_path / "m", build, progress=print, needed_bytes=10**15)


def test_a_home_that_may_not_be_written_to_is_refused_in_one_line(tmp_path: Path) -> None:
    """As a real unprivileged user, for whom it is true."""
    home = user_home(tmp_path)
    barred = home / "barred"
    barred.mkdir(mode=0o555)
    done = run_as_user([sys.executable, "-c", BUILD, barred / "models" / "m"], env={"HOME": str(home)}, cwd=home)
    assert done.returncode == 1
    assert done.stderr.startswith(f"refused: cannot write {barred}/models/m: Permission denied; ")
    assert done.stderr.count("\n") == 1
