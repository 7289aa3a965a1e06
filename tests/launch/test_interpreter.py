"""Interpreters that a user names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wattdock.errors import PreflightError
from wattdock.launch.environment import check_python


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_this_interpreter_will_do() -> None:
    """It has grpcio and protobuf, as the coordinator needs them too."""
    assert check_python(sys.executable) == Path(sys.executable)


def test_another_that_has_what_every_runner_needs_will_do(tmp_path: Path) -> None:
    """It is tried, where the coordinator's own is not."""
    other = program(tmp_path / "other", f'exec {sys.executable} "$@"')
    assert check_python(other) == other


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The message names what was written."""
    with pytest.raises(PreflightError, match=r"runner_python: .*/absent is not there"):
        check_python(tmp_path / "absent")


def test_one_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    """A file is not a program."""
    (tmp_path / "python").touch()
    with pytest.raises(PreflightError, match=r"/python cannot be executed"):
        check_python(tmp_path / "python")


def test_one_without_grpc_is_refused(tmp_path: Path) -> None:
    """The message names the missing package."""
    bare = program(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    with pytest.raises(PreflightError, match="cannot import what every runner needs: No module named 'grpc'"):
        check_python(bare)


def test_one_that_is_too_old_is_refused(tmp_path: Path) -> None:
    """Runners need Python 3.10."""
    setup = "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (x)'; exec(sys.argv[1])"
    old = program(tmp_path / "old", f'shift; exec {sys.executable} -c "{setup}" "$@"')
    with pytest.raises(PreflightError, match=r"is Python 3\.9\.1, 3\.10 or later is needed"):
        check_python(old)


def test_one_that_is_no_python_is_refused(tmp_path: Path) -> None:
    """Whatever it prints last is the reason."""
    with pytest.raises(PreflightError, match="not today"):
        check_python(program(tmp_path / "other", "echo not today >&2; exit 4"))
