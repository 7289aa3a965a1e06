"""Open what others may have put in a folder, and nothing that they could not have read themselves.

A path is a name that others can give to another file between two looks at it. So a folder is opened once; its owner,
its mode and every file in it are judged by open descriptors. Two rules: a link is followed if the caller or root made
it, or if its maker owns what it leads to; a file in a folder belongs to the folder's owner, unless the folder is the
caller's or root's and nobody else can write to it. Must not know: what the files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from typing import IO

PROC = Path("/proc")
# Far more than any file that is read into memory whole.
MAX_BYTES = 1_000_000_000
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# How many links the kernel follows, too (path_resolution(7)).
MOST_LINKS = 40
# A descriptor that names a file and opens nothing: to open some devices is to start them.
NAMING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def is_trusted(uid: int) -> bool:
    """Whether a file's owner is the caller or root."""
    return uid in (os.geteuid(), root_uid())


def root_uid() -> int:
    """Return root's number in this user namespace: a rootless container's own root is another user."""
    return PROC.stat().st_uid


@dataclass(frozen=True)
class Located:
    """Where a path leads, as open descriptors; `close` them.

    Attributes:
        folder: The folder that holds the file, whatever has its path by now.
        name: The file's name in it.
        descriptor: The file itself, named and not opened; None where there is none.
    """

    folder: int
    name: str
    descriptor: int | None

    @property
    def found(self) -> int:
        """The descriptor of a file that must be there.

        Raises:
            FileNotFoundError: There is none.
        """
        if self.descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        return self.descriptor

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.folder)
        if self.descriptor is not None:
            os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def locate(path: str | Path, *, within: int | None = None) -> Located:
    """Follow a path to its end; the folders on the way are the person's who wrote the path.

    Args:
        within: The open folder that a relative path begins at; None is the working folder.

    Raises:
        OSError: There is no such folder, too many links, or a link that another user made leads to what that user does
            not own.
    """
    shown = str(path)
    if "\0" in shown:
        raise OSError(errno.EINVAL, "has a null character in its name", repr(shown))
    makers = set[int]()
    with ExitStack() as stack:
        for _ in range(MOST_LINKS):
            parent, name = os.path.split(os.fspath(path).rstrip(os.sep) or os.sep)
            try:
                folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=within)
                stack.callback(os.close, folder)
                descriptor = _named(name or ".", folder)
            except OSError as error:
                raise OSError(error.errno, error.strerror, shown) from None
            state = None if descriptor is None else os.fstat(descriptor)
            if descriptor is None or state is None or not stat.S_ISLNK(state.st_mode):
                located = Located(os.dup(folder), name, descriptor)
                if strangers := makers - {os.geteuid(), root_uid(), state and state.st_uid}:
                    located.close()
                    raise OSError(errno.EPERM, f"is a link of user {min(strangers)}", shown)
                return located
            stack.callback(os.close, descriptor)
            makers.add(state.st_uid)
            path, within = os.readlink("", dir_fd=descriptor), folder
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), shown)


def _named(name: str, folder: int) -> int | None:
    """Return a descriptor that names a file in an open folder, links included; None where there is none."""
    # The kernel's own links, such as /proc/self/fd/1, have no target that could be read.
    flags = NAMING & ~os.O_NOFOLLOW if os.fstat(folder).st_dev == PROC.stat().st_dev else NAMING
    # What is mounted on demand is mounted once it is opened as a folder.
    for kind in (os.O_DIRECTORY, 0):
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.open(name, flags | kind, dir_fd=folder)
    return None


def open_regular(path: Path, flags: int = os.O_RDONLY, *, owned: bool = False, mode: int = 0o666) -> int:
    """Open a file that anybody may have put there, and return its descriptor; waits for nobody and follows no link.

    Args:
        owned: Whether only root, the caller and the owner of its folder, who could replace it, may own it: for what is
            trusted, such as a lock.
        mode: Of a file that is made, less the umask.

    Raises:
        OSError: It cannot be opened, is a link, a pipe or a device, or belongs to another user.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "has a null character in its name", repr(str(path)))
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if owned and not is_trusted(state.st_uid) and state.st_uid != path.parent.stat().st_uid:
            raise OSError(errno.EPERM, f"belongs to user {state.st_uid}", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_data(path: Path, *, owned: bool = False, follow: bool = True) -> io.BufferedReader:
    """Return a file to read from; waits for nobody.

    Args:
        owned: As in `open_regular`.
        follow: Whether the path may be a link, as `locate` follows one.

    Raises:
        OSError: As `open_regular` or `locate`.
    """
    if not follow:
        return os.fdopen(open_regular(path, owned=owned), "rb")
    with locate(path) as located:
        return reopened(located.found, path)


def name_of(file: IO[bytes] | int) -> str:
    """Return a name by which a library opens this very file or folder, whatever has its path by now.

    A library that reads through Python has threads that need Python, and abort a process that is just ending.
    """
    return f"{PROC}/self/fd/{file if isinstance(file, int) else file.fileno()}"


def read_regular(path: Path, *, limit_bytes: int = MAX_BYTES, owned: bool = False, follow: bool = False) -> bytes:
    """Return the content of a file, opened as `open_data` does.

    Raises:
        OSError: As `open_data`, or it is larger than `limit_bytes`.
    """
    with open_data(path, owned=owned, follow=follow) as file:
        return content_of(file, path, limit_bytes)


def reopened(descriptor: int, path: str | Path) -> io.BufferedReader:
    """Return the regular file that a descriptor names, opened to read.

    Raises:
        OSError: It is a pipe, a device or a folder, or the caller may not read it.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    try:
        return os.fdopen(os.open(f"{PROC}/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class OwnedFolder:
    """A folder that was opened once, and what it holds, by names relative to it; a context manager that closes it.

    Attributes:
        path: As it was named, for messages.
        owner: The user id of its owner.
        identity: Its device and inode.
        is_closed: Whether it is the caller's or root's, and nobody else can write to it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take a descriptor, which is closed with the folder.

        Raises:
            OSError: It is no folder.
        """
        state = os.fstat(descriptor)
        if not stat.S_ISDIR(state.st_mode):
            os.close(descriptor)
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        self.path, self.descriptor, self.owner = path, descriptor, state.st_uid
        self.identity = state.st_dev, state.st_ino
        self.is_closed = is_trusted(state.st_uid) and not state.st_mode & OTHERS_WRITE

    @classmethod
    def open(cls, path: Path) -> OwnedFolder:
        """Open the folder that a person named, or that stands in a folder which all may write to.

        Raises:
            OSError: There is none, or a stranger's link leads to it; see `locate`.
        """
        with locate(path) as located:
            return cls(path, os.dup(located.found))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def folder(self, name: str, *, anyones: bool = False) -> OwnedFolder:
        """Open a folder in this one or below it.

        Args:
            anyones: Whether it may be another owner's, as in a folder of results that all may write to.

        Raises:
            OSError: There is none, or it breaks one of the two rules.
        """
        return OwnedFolder(self.path / name, self._entry(name, anyones=anyones))

    def file(self, name: str) -> io.BufferedReader:
        """Open a file in this folder or below it; waits for nobody.

        Raises:
            OSError: There is none, it is not regular, or it breaks one of the two rules.
        """
        descriptor = self._entry(name)
        try:
            return reopened(descriptor, self.path / name)
        finally:
            os.close(descriptor)

    def read(self, name: str, *, limit_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of a file in this folder or below it.

        Raises:
            OSError: As `file`, or it is larger than `limit_bytes`.
        """
        with self.file(name) as file:
            return content_of(file, self.path / name, limit_bytes)

    def target(self, name: str) -> Path:
        """Return the path, without links, of what is in this folder or below it.

        Raises:
            OSError: As `file`.
        """
        descriptor = self._entry(name)
        try:
            return Path(name_of(descriptor)).readlink()
        finally:
            os.close(descriptor)

    def later(self, name: str) -> OwnedFile:
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

    def files(self) -> Iterator[str]:
        """Yield the relative names of everything in it and below it that is no folder, sorted; no link is followed.

        Raises:
            OSError: A folder breaks one of the two rules, or cannot be read.
        """
        for name in self.names():
            if (state := self.state(name)) and stat.S_ISDIR(state.st_mode):
                with self.folder(name) as inner:
                    yield from (f"{name}/{below}" for below in inner.files())
            else:
                yield name

    def _entry(self, name: str, *, anyones: bool = False) -> int:
        """Return a descriptor that names what is in this folder or below it."""
        folder, *inner = name.split(os.sep, 1)
        with locate(folder, within=self.descriptor) as located:
            owner = os.fstat(located.found).st_uid
            if owner != self.owner and not self.is_closed and not anyones:
                whose = f"belongs to user {owner}, its folder to user {self.owner}"
                raise OSError(errno.EPERM, whose, str(self.path / folder))
            descriptor = os.dup(located.found)
        if not inner:
            return descriptor
        with OwnedFolder(self.path / folder, descriptor) as below:
            return below._entry(inner[0], anyones=anyones)


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


def content_of(file: io.BufferedReader, path: Path, limit_bytes: int) -> bytes:
    """Return the content of an open file.

    Raises:
        OSError: It is larger than `limit_bytes`.
    """
    if (size_bytes := os.fstat(file.fileno()).st_size) > limit_bytes:
        raise OSError(errno.EFBIG, f"is larger than {limit_bytes:,} bytes", str(path))
    # No more than it had: another process may go on writing.
    return file.read(size_bytes)
