"""Two rules decide what is opened in a folder; generated folders of three users try to get round them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refused import raises
from unprivileged import OTHER_UID, UID

from wattdock import files
from wattdock.errors import Cause, StoreError
from wattdock.opening import open_data, read_regular
from wattdock.owned_folder import OwnedFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="several real users need root")
ROOT = 0
USERS = st.sampled_from([ROOT, UID, OTHER_UID])
PRIVATE, NAMES = b"what its owner alone may read", count()


class World(NamedTuple):
    """A folder, a file elsewhere that only its owner may read, and a chain of links from the one to the other.

    Attributes:
        makers: Of the links, the first of them in the folder; none where the file itself is there.
        in_link: Whether the folder is reached by a link, too, and who made it.
        is_inner: Whether that link leads to the folder that holds it.
    """

    folder_owner: int
    folder_mode: int
    file_owner: int
    makers: tuple[int, ...]
    in_link: int | None
    is_inner: bool = False


WORLDS = st.builds(
    World,
    USERS,
    st.sampled_from([0o755, 0o775, 0o777, 0o1777]),
    USERS,
    st.lists(USERS, max_size=3).map(tuple),
    st.none() | USERS,
    st.booleans(),
)


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Have the process act as a user, whose files are judged by this user's rights."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def build(place: Path, world: World) -> Path:
    """Make a world; return the path of its folder, which holds "file"."""
    place.chmod(0o755)
    folder = place / "top/folder"
    folder.mkdir(parents=True)
    target = place / "target" if world.makers else folder / "file"
    target.write_bytes(PRIVATE)
    os.chown(target, world.file_owner, world.file_owner)
    target.chmod(0o600)
    for number, maker in reversed([*enumerate(world.makers)]):
        link = folder / "file" if number == 0 else place / f"link-{number}"
        link.symlink_to(target)
        os.lchown(link, maker, maker)
        target = link
    os.chown(folder, world.folder_owner, world.folder_owner)
    folder.chmod(world.folder_mode)
    if world.in_link is None:
        return folder
    (place / "in").symlink_to("top" if world.is_inner else "top/folder")
    os.lchown(place / "in", world.in_link, world.in_link)
    return place / "in/folder" if world.is_inner else place / "in"


def content_for(caller: int, path: Path) -> bytes | None:
    with acting_as(caller), suppress(OSError), OwnedFolder.open(path) as opened:
        return opened.read("file")
    return None


@settings(max_examples=400, deadline=None)
@given(world=WORLDS, caller=USERS)
@example(world=World(OTHER_UID, 0o755, UID, (OTHER_UID,), None), caller=UID)
@example(world=World(OTHER_UID, 0o755, UID, (), None), caller=UID)
@example(world=World(UID, 0o775, UID, (OTHER_UID,), None), caller=UID)
@example(world=World(OTHER_UID, 0o755, ROOT, (OTHER_UID,), OTHER_UID), caller=ROOT)
@example(world=World(UID, 0o700, UID, (), OTHER_UID, is_inner=True), caller=UID)
def test_nobody_gets_a_caller_to_read_what_is_not_theirs(world: World, caller: int) -> None:
    """Whoever put the file's name where the caller finds it owns the file; or is the caller, or root."""
    with tempfile.TemporaryDirectory() as place:
        read = content_for(caller, build(Path(place), world))
    strangers = {world.folder_owner, *world.makers, world.in_link} - {caller, ROOT, None}
    if strangers - {world.file_owner}:
        assert read is None
    # What one user made is that user's to read, and root's.
    if {world.folder_owner, *world.makers, world.file_owner, world.in_link} <= {caller, None}:
        assert read == PRIVATE


@settings(max_examples=100, deadline=None)
@given(owner=USERS, mode=st.sampled_from([0o755, 0o775]), links=st.integers(0, 3), caller=USERS)
def test_what_is_of_one_owner_is_read_by_whoever_may(owner: int, mode: int, links: int, caller: int) -> None:
    """A hub's cache is folders of links to blobs; users share one."""
    with tempfile.TemporaryDirectory() as place:
        path = build(Path(place), World(owner, mode, owner, (owner,) * links, None))
        (Path(place) / "target" if links else path / "file").chmod(0o644)
        assert content_for(caller, path) == PRIVATE


def test_a_person_s_path_is_followed_unless_a_stranger_s_link_leads_to_what_is_not_the_stranger_s(
    tmp_path: Path,
) -> None:
    """One file: prompts, a study, a config.json."""
    tmp_path.chmod(0o755)
    own, link, pipe = tmp_path / "own", tmp_path / "link", tmp_path / "pipe"
    own.write_text("mine")
    os.mkfifo(pipe)
    link.symlink_to("own")
    assert read_regular(link, follow=True) == b"mine"
    os.lchown(link, OTHER_UID, OTHER_UID)
    with raises(PermissionError, OTHER_UID, cause=errno.EPERM):
        open_data(link)
    os.chown(own, OTHER_UID, OTHER_UID)
    assert read_regular(link, follow=True) == b"mine"
    with raises(OSError, cause=errno.EINVAL):
        open_data(pipe)
    with pytest.raises(FileNotFoundError):
        open_data(tmp_path / "none")
    with raises(OSError, cause=errno.EINVAL):
        open_data(tmp_path / "a\0b")
    (tmp_path / "loop").symlink_to("loop")
    with raises(OSError, cause=errno.ELOOP):
        open_data(tmp_path / "loop")


def test_a_folder_that_was_opened_stays_the_same_whatever_has_its_path(tmp_path: Path) -> None:
    """Between two looks at a path, another folder may take it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_text("first")
    with OwnedFolder.open(tmp_path / "a") as opened:
        later = opened.reopenable("file")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        (tmp_path / "a/file").write_text("second")
        assert opened.read("file") == b"first"
        assert [*opened.files()] == ["file"]
    with raises(OSError, cause=errno.ESTALE):
        later.open()
    with raises(OSError, "file", cause=errno.EFBIG), OwnedFolder.open(tmp_path / "a") as opened:
        opened.read("file", limit_bytes=2)


def test_an_output_is_written_where_its_path_led_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour swaps the named file for a link after it was looked at."""
    victim, out, write = tmp_path / "victim", tmp_path / "out.csv", files.write_whole
    victim.write_text("precious")

    def swapped(path: Path, content: bytes) -> None:
        out.unlink(missing_ok=True)
        out.symlink_to(victim)
        os.lchown(out, OTHER_UID, OTHER_UID)
        write(path, content)

    out.write_text("old")
    monkeypatch.setattr(files, "write_whole", swapped)
    files.write_output(out, b"new", "-o")
    assert (victim.read_text(), out.read_text(), out.is_symlink()) == ("precious", "new", False)
    monkeypatch.undo()
    (tmp_path / "link").symlink_to("out.csv")
    files.write_output(tmp_path / "link", b"newer", "-o")
    assert (out.read_text(), (tmp_path / "link").is_symlink()) == ("newer", True)


def test_an_output_goes_into_no_pipe_of_a_stranger_and_through_no_link_of_one(tmp_path: Path) -> None:
    """A table of what only the caller may read; a link that everybody may read through is none to write through."""
    tmp_path.chmod(0o755)
    pipe, target, link = tmp_path / "pipe", tmp_path / "target", tmp_path / "link"
    os.mkfifo(pipe)
    os.chown(pipe, OTHER_UID, OTHER_UID)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with raises(StoreError, OTHER_UID, cause=Cause.OTHERS_COULD_WRITE):
        files.write_output(pipe, b"x", "-o")
    os.close(reading)
    target.write_text("precious")
    link.symlink_to(target)
    os.lchown(link, OTHER_UID, OTHER_UID)
    with raises(StoreError, OTHER_UID, cause=Cause.OTHERS_COULD_WRITE):
        files.write_output(link, b"x", "-o")
    assert target.read_text() == "precious"


def test_what_everybody_may_read_is_read_whoever_linked_to_it() -> None:
    """A colleague's link to a public model; a hub's cache to which several users have added."""
    with tempfile.TemporaryDirectory() as place:
        path = build(Path(place), World(OTHER_UID, 0o755, ROOT, (OTHER_UID,), OTHER_UID))
        (Path(place) / "target").chmod(0o644)
        assert content_for(UID, path) == PRIVATE
        # Nobody but its owner gets there.
        (Path(place) / "top").chmod(0o700)
        (Path(place) / "target").rename(Path(place) / "top/target")
        (Path(place) / "top/folder/file").unlink()
        (Path(place) / "top/folder/file").symlink_to("../target")
        os.lchown(Path(place) / "top/folder/file", OTHER_UID, OTHER_UID)
        assert content_for(ROOT, path) is None


def test_a_folder_is_walked_through_to_a_depth(tmp_path: Path) -> None:
    """Deeper ones end in a line, not in Python's limit."""
    deep = tmp_path.joinpath(*["x"] * 200)
    deep.mkdir(parents=True)
    with OwnedFolder.open(tmp_path) as opened:
        with raises(OSError, "x", cause=errno.ELOOP):
            [*opened.files()]
        for name in ("..", "/etc/passwd", "", "x/../../y"):
            with pytest.raises(OSError, match=r"."):
                opened.read(name)


def test_in_a_user_namespace_an_unknown_owner_is_not_root() -> None:
    """There root's files and every neighbour's have the same number."""
    code = "import os; from wattdock.opening import is_trusted; print(is_trusted(os.geteuid()), is_trusted(65534))"
    words = ["unshare", "--user", "--map-current-user", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespace can be made here: {done.stderr.strip()}")
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Thousands of results are opened by one command."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    (tmp_path / "link").symlink_to("a")
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        with OwnedFolder.open(tmp_path / "link") as opened:
            assert opened.read("b/file") == b"x"
            assert [*opened.files()] == ["b/file"]
            for wrong in ("b", "c", "b/none", "b/file/x"):
                with pytest.raises(OSError, match=r"."):
                    opened.read(wrong)
        with pytest.raises(NotADirectoryError):
            OwnedFolder.open(tmp_path / "a/b/file")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    shutil.rmtree(tmp_path / "a")
