"""A folder that others may have filled, opened once: what it holds is reached through it, by the rule of `opening`.

Must not know: what the files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from wattdock.opening import (
    MAX_BYTES,
    OTHERS_WRITE,
    follow_links,
    is_trusted,
    open_descriptor,
    proc_path,
    read_bounded,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

# Folders in folders that are walked through; a result has three.
MOST_DEPTH = 32


class OwnedFolder:
    """A folder that was opened once, and what it holds, by names relative to it; a context manager that closes it.

    Attributes:
        path: As it was named, for messages; the real path where a link was followed.
        owner: The user id of its owner.
        only_trusted_can_write: Whether it is the caller's or root's, and nobody else can write to it.
        identity: Its device and inode.
        makers: The users who made the links that led to it, who may have no more read than others.
    """

    def __init__(self, path: Path, descriptor: int, makers: frozenset[int] = frozenset()) -> None:
        """Take a descriptor, which is closed with the folder.

        Raises:
            OSError: It is no folder.
        """
        state = os.fstat(descriptor)
        if not stat.S_ISDIR(state.st_mode):
            os.close(descriptor)
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        self.path, self.descriptor, self.makers, self.owner = path, descriptor, makers, state.st_uid
        self.identity = state.st_dev, state.st_ino
        self.only_trusted_can_write = is_trusted(state.st_uid) and not state.st_mode & OTHERS_WRITE

    @classmethod
    def open(cls, path: Path) -> OwnedFolder:
        """Open the folder that a path leads to.

        Raises:
            OSError: There is none, or a stranger's link leads to it; see `follow_links`.
        """
        with follow_links(path) as resolved:
            descriptor = os.dup(resolved.found)
            real = Path(proc_path(descriptor)).readlink() if resolved.makers else path
            return cls(real, descriptor, resolved.makers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def folder(self, name: str, *, allow_other_owner: bool = False) -> OwnedFolder:
        """Open a folder in this one or below it.

        Args:
            allow_other_owner: Whether it may be anybody's, as in a folder of results that all may write to.

        Raises:
            OSError: There is none, or its maker may not have it read.
        """
        return OwnedFolder(self.path / name, *self._entry(name, allow_other_owner=allow_other_owner))

    def file(self, name: str) -> io.BufferedReader:
        """Open a file in this folder or below it; waits for nobody.

        Raises:
            OSError: There is none, it is not regular, or its maker may not have it read.
        """
        descriptor, _ = self._entry(name)
        try:
            return open_descriptor(descriptor, self.path / name)
        finally:
            os.close(descriptor)

    def read(self, name: str, *, limit_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of a file in this folder or below it.

        Raises:
            OSError: As `file`, or it is larger than `limit_bytes`.
        """
        with self.file(name) as file:
            return read_bounded(file, self.path / name, limit_bytes)

    def target(self, name: str) -> Path:
        """Return the path, without links, of what is in this folder or below it.

        Raises:
            OSError: As `file`.
        """
        descriptor, _ = self._entry(name)
        try:
            return Path(proc_path(descriptor)).readlink()
        finally:
            os.close(descriptor)

    def reopenable(self, name: str) -> OwnedFile:
        """Return a file in this folder or below it that is opened when it is needed."""
        return OwnedFile(self.path, self.identity, name)

    def state(self, name: str) -> os.stat_result | None:
        """Return what `lstat` tells of a file, a folder or a link, in this folder or below it; None where none is."""
        with suppress(OSError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def is_regular(self, name: str) -> bool:
        """Whether there is a file of this name which is neither a folder nor a link, a pipe or a device."""
        return (state := self.state(name)) is not None and stat.S_ISREG(state.st_mode)

    def names(self) -> list[str]:
        """Return the names of what it holds, sorted; nothing is opened.

        Raises:
            OSError: The caller may not read it.
        """
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            return sorted(os.listdir(listing))  # noqa: PTH208 (a descriptor)
        finally:
            os.close(listing)

    def files(self, *, depth: int = MOST_DEPTH) -> Iterator[str]:
        """Yield the relative names of everything in it and below it that is no folder, sorted; no link is followed.

        Args:
            depth: How many folders in folders are walked through.

        Raises:
            OSError: There are more, or a folder cannot be read, or its maker may not have it read.
        """
        if not depth:
            raise OSError(errno.ELOOP, "is too many folders deep", str(self.path))
        for name in self.names():
            if (state := self.state(name)) and stat.S_ISDIR(state.st_mode):
                with self.folder(name) as inner:
                    yield from (f"{name}/{below}" for below in inner.files(depth=depth - 1))
            else:
                yield name

    def _entry(self, name: str, *, allow_other_owner: bool = False) -> tuple[int, frozenset[int]]:
        """Return a descriptor that names what is in this folder or below it, and who made the links to it."""
        first, *inner = name.split("/", 1)
        if first in ("", ".."):
            raise OSError(errno.EINVAL, "is no name in a folder", repr(name))
        with follow_links(first, within=self.descriptor) as resolved:
            descriptor, makers = os.dup(resolved.found), self.makers | resolved.makers
            judged = makers if self.only_trusted_can_write or allow_other_owner else makers | {self.owner}
            if strangers := [user for user in judged if not resolved.may_be_read_for(user)]:
                os.close(descriptor)
                whose = f"belongs to user {resolved.owner}, its folder or a link to user {min(strangers)}; copy it"
                raise OSError(errno.EPERM, whose, str(self.path / first))
        if not inner:
            return descriptor, makers
        with OwnedFolder(self.path / first, descriptor, makers) as below:
            return below._entry(inner[0], allow_other_owner=allow_other_owner)


@dataclass(frozen=True)
class OwnedFile:
    """A file in a folder, to be opened later, from the same folder or not at all.

    Attributes:
        folder, identity: Of the folder, as `OwnedFolder` had them.
        name: Relative to the folder.
    """

    folder: Path
    identity: tuple[int, int]
    name: str

    def open(self) -> io.BufferedReader:
        """Open the file, as `OwnedFolder.file` does.

        Raises:
            OSError: As `OwnedFolder.file`, or another folder has the path by now.
        """
        with OwnedFolder.open(self.folder) as opened:
            if opened.identity != self.identity:
                raise OSError(errno.ESTALE, "was replaced while it was read", str(self.folder))
            return opened.file(self.name)

    def __str__(self) -> str:
        return str(self.folder / self.name)
