"""Files that anybody may have put there, locks, and what is written whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refused import raises
from unprivileged import UID

from wattdock.errors import Cause, StoreError
from wattdock.files import NewFolder, locked, new_folder, remove_leftovers, write_output
from wattdock.opening import open_regular, read_regular

# Fills a folder until its standard input ends, and finishes it then.
FILL = """
import sys
from pathlib import Path
from wattdock.files import new_folder
place = Path(sys.argv[1])
with new_folder(place, ".made.") as folder:
    (folder.path / "half").touch()
    print(folder.path.name, flush=True)
    if not sys.stdin.readline():
        folder.finish(place / "made")
"""
LOCK = "import sys, pathlib, wattdock.files as f\nwith f.locked(pathlib.Path(sys.argv[1])): print(flush=True); input()"
CLEAR = """
import sys, pathlib, wattdock.files
print(flush=True)
while True:
    wattdock.files.remove_leftovers(pathlib.Path(sys.argv[1]))
"""


def begun(program: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a program that goes on until its standard input ends; return it and its first line."""
    words = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    """Opening a FIFO for reading would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with raises(OSError, cause=errno.EINVAL):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("follow", [False, True])
def test_a_name_that_no_file_can_have_is_refused_like_a_file_that_is_not_there(*, follow: bool) -> None:
    """The system's functions raise ValueError for a null character, which no reader of files expects."""
    with raises(OSError, cause=errno.EINVAL):
        read_regular(Path("a\0b"), follow=follow)


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
    with raises(OSError, "file", cause=errno.EFBIG):
        read_regular(tmp_path / "file", limit_bytes=4)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_trusted_file_belongs_to_root_or_to_the_caller(tmp_path: Path) -> None:
    """A stranger's file in a lock's place is no lock; whoever owns the folder could replace the file anyway."""
    (tmp_path / "file").touch()
    os.close(open_regular(tmp_path / "file", owned=True))
    os.chown(tmp_path / "file", UID, UID)
    with raises(OSError, UID, cause=errno.EPERM):
        open_regular(tmp_path / "file", owned=True)
    os.chown(tmp_path, UID, UID)
    os.close(open_regular(tmp_path / "file", owned=True))


def test_a_lock_is_waited_for_with_a_limit_and_its_holder_is_named(tmp_path: Path) -> None:
    """By the kernel, whatever the file holds; a killed holder blocks nobody."""
    lock, said = tmp_path / "lock", list[str]()
    holder, _ = begun(LOCK, lock)
    named = f"process {holder.pid} (python of user {os.geteuid()})"
    with pytest.raises(BlockingIOError) as refused, locked(lock, wait_s=0.3, say=said.append):
        pass
    assert said == [f"waiting up to 0.3 s for {named}, holding {lock}"]
    assert refused.value.strerror == f"locked by {named} (waited 0.3 s)"
    killed(holder)
    with locked(lock), pytest.raises(BlockingIOError), locked(lock):
        pass


def test_nobody_else_can_open_a_lock_and_so_nobody_else_can_hold_it(tmp_path: Path) -> None:
    """Who can read a file can lock it, for ever; one that is there already is closed, too."""
    (tmp_path / "old").touch(0o644)
    for name in ("lock", "old"):
        with locked(tmp_path / name):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_in_a_locks_place_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """In one line, and nothing else is made."""
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to("elsewhere")}
    make[kind](tmp_path / "lock")
    with raises(OSError), locked(tmp_path / "lock", wait_s=60):
        pass
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_being_filled_stays_and_one_that_a_killed_process_filled_goes(tmp_path: Path) -> None:
    """Whatever process ids say; a finished one has its name and the mode of any other folder."""
    living, name = begun(FILL, tmp_path)
    dead, left = begun(FILL, tmp_path)
    assert remove_leftovers(tmp_path) == []
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    killed(dead)
    # Making a folder removes what was left beside it.
    with new_folder(tmp_path, "other-"):
        assert not (tmp_path / left).exists()
    living.communicate(timeout=60)
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "half"]
    (tmp_path / "other").mkdir()
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_folders_made_and_cleared_at_once_are_each_whole(tmp_path: Path) -> None:
    """Between its making and its locking, another process takes a folder for left behind; then there is a new one."""
    clearing, _ = begun(CLEAR, tmp_path)
    for _ in range(300):
        with new_folder(tmp_path, ".made.") as folder:
            (folder.path / "file").touch()
            assert (folder.path / "file").exists()
    killed(clearing)
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def unlocked(parent: Path) -> Path:
    """Make a folder as a killed process leaves it, with a file in it."""
    folder = NewFolder.make(parent, ".made.")
    (folder.path / "file").touch()
    os.close(folder.descriptor)
    return folder.path


def test_a_finished_folder_that_somebody_renamed_is_not_removed(tmp_path: Path) -> None:
    """In a shared folder, others may rename what they cannot remove."""
    with new_folder(tmp_path, ".made.") as folder:
        name = folder.path.name
        (folder.path / "result").touch()
        folder.finish(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / name)
    assert remove_leftovers(tmp_path) == []
    assert (tmp_path / name / "result").exists()


def test_on_another_machine_a_folder_may_still_be_filled(tmp_path: Path) -> None:
    """On a network file system its lock is not seen; what nobody has touched for a day was left."""
    path = unlocked(tmp_path)
    other = path.rename(tmp_path / ".made.____0123")
    assert remove_leftovers(tmp_path) == []
    os.utime(other, (0, time.time() - 90_000))
    assert remove_leftovers(tmp_path) == [other]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("kind", ["theirs", "link"])
def test_only_ones_own_folders_are_removed(tmp_path: Path, kind: str) -> None:
    """Neither another user's, nor what a link of theirs leads to."""
    (tmp_path / "place").mkdir()
    path = unlocked(tmp_path / "place" if kind == "theirs" else tmp_path)
    os.chown(path, *((UID, UID) if kind == "theirs" else (0, 0)))
    if kind == "link":
        (tmp_path / "place" / path.name).symlink_to(path)
    assert remove_leftovers(tmp_path / "place") == []
    assert (path / "file").exists()


def test_an_output_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """A pipe in a file's place would be waited for."""
    os.mkfifo(tmp_path / "out.csv")
    with raises(StoreError, "out.csv", cause=Cause.NOT_A_FILE):
        write_output(tmp_path / "out.csv", b"content", "--csv")
