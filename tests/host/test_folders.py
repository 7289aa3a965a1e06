"""Scratch folders of several coordinators in one temporary folder."""

from __future__ import annotations

import fcntl
import tempfile
from typing import TYPE_CHECKING

from wattdock.host.folders import SCRATCH_LOCK, SCRATCH_PREFIX, scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_a_killed_coordinator_left_goes_and_what_a_living_one_uses_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart by the lock alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{SCRATCH_PREFIX}left"
    left.mkdir()
    (left / SCRATCH_LOCK).touch()
    with scratch_folder() as used, scratch_folder() as other:
        assert sorted(tmp_path.iterdir()) == sorted([used, other])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_coordinator_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the lock's file and locking it, the folder looks left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock, others = fcntl.flock, iter([scratch_folder()])

    def late(fd: int, operation: int) -> None:
        for other in others:
            with other:
                pass
        lock(fd, operation)

    monkeypatch.setattr("wattdock.host.folders.fcntl.flock", late)
    with scratch_folder() as used:
        assert [file.name for file in used.iterdir()] == [SCRATCH_LOCK]
