"""Files that anybody may have put there, and files that are written whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from unprivileged import UID

from wattdock.files import open_regular, read_regular

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    """Opening a FIFO for reading would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(tmp_path / "pipe")


def test_a_link_is_followed_only_where_that_is_meant(tmp_path: Path) -> None:
    """A hub's cache is made of links; a lock is never one."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", follow=True) == b"content"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "link")


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    """Nobody fills the memory of who looks at a file."""
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", limit_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", limit_bytes=4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_trusted_file_belongs_to_root_or_to_the_caller(tmp_path: Path) -> None:
    """A stranger's file in a lock's place is no lock."""
    (tmp_path / "file").touch()
    os.close(open_regular(tmp_path / "file", owned=True))
    os.chown(tmp_path / "file", UID, UID)
    with pytest.raises(OSError, match=f"belongs to user {UID}"):
        open_regular(tmp_path / "file", owned=True)
