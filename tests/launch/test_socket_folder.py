"""Where a runner's socket lies."""

from __future__ import annotations

import stat
import tempfile
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import PreflightError
from wattdock.launch.protocol import make_socket_folder

if TYPE_CHECKING:
    from pathlib import Path


def test_the_folder_is_private_and_below_the_runtime_folder(tmp_path: Path) -> None:
    """Nobody else may talk to a runner."""
    folder = make_socket_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert folder.parent == tmp_path / "wattdock"
    assert len(folder.name) == 8
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("runtime", [None, "", "relative", "/absent/folder"])
def test_without_a_runtime_folder_it_is_a_private_temporary_one(
    runtime: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cron jobs and containers have no runtime folder, or one that does not exist."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = make_socket_folder({} if runtime is None else {"XDG_RUNTIME_DIR": runtime})
    assert folder.parent == tmp_path
    assert folder.name.startswith("wattdock-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("length", "allowed"), [(100, True), (101, False)])
def test_one_hundred_bytes_are_the_limit(
    length: int, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as the kernel does, in bytes and with the socket's own name; ä counts twice."""
    fixed = len(f"{tmp_path}/ä/wattdock-01234567/r.sock".encode())
    parent = tmp_path / ("ä" + "d" * (length - fixed))
    parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    if allowed:
        assert len(bytes(make_socket_folder({}) / "r.sock")) == length
    else:
        with pytest.raises(PreflightError, match=r"has 101 bytes, 100 are allowed: set TMPDIR to a shorter folder"):
            make_socket_folder({})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """With what to set instead."""
    (tmp_path / "wattdock").touch()
    with pytest.raises(PreflightError, match=r"cannot make .*: .*; set XDG_RUNTIME_DIR to a writable folder"):
        make_socket_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
