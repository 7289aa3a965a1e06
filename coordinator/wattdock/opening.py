"""Open what others may have put in the caller's way, and never read for another user what that user could not read.

A path is a name that others can give to another file between two looks at it. So a path is walked once, folder by
folder, and what was opened is judged by its descriptor. A link anywhere in a path, and a file in a folder, is followed
or read if the caller or root made it, if its maker owns what is found, or if everybody on this machine may read that.
Must not know: what the files hold.
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
    from typing import IO

PROC = Path("/proc")
# The user of files whose owner this user namespace does not know: any neighbour's, seen from a rootless container.
OVERFLOW_UID = PROC / "sys/kernel/overflowuid"
# The largest file that is read into memory whole: far more than any of ours.
MAX_BYTES = 1_000_000_000
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# How many links a path may lead through: the kernel follows as many (path_resolution(7)).
MOST_LINKS = 40
# A descriptor that names a file and opens nothing: to open some devices is to start them.
PATH_ONLY = os.O_PATH | os.O_CLOEXEC


def is_trusted(uid: int) -> bool:
    """Whether a file's owner is the caller or root; an owner whom this user namespace does not know is neither."""
    return uid == os.geteuid() or (uid == root_uid() and uid != int(OVERFLOW_UID.read_text()))


def root_uid() -> int:
    """Return the number that root's files have in this user namespace; in a rootless container many others' have it."""
    return PROC.stat().st_uid


@dataclass(frozen=True)
class ResolvedPath:
    """Where a path leads, as open descriptors; a context manager that closes them.

    Attributes:
        folder: The folder that holds the file, whatever has its path by now.
        name: The file's name in it.
        descriptor: The file itself, named and not opened; None where there is none.
        makers: The users who made the links on the way.
    """

    folder: int
    name: str
    descriptor: int | None
    makers: frozenset[int] = frozenset()

    @property
    def found(self) -> int:
        """The descriptor of a file that must be there.

        Raises:
            FileNotFoundError: There is none.
        """
        if self.descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        return self.descriptor

    @property
    def owner(self) -> int | None:
        """The owner of the file; None where there is none."""
        return None if self.descriptor is None else os.fstat(self.descriptor).st_uid

    def may_be_read_for(self, maker: int) -> bool:
        """Whether a user may have the caller read the file: its owner, or anybody where everybody may read it."""
        if is_trusted(maker) or maker == self.owner:
            return True
        if self.descriptor is None:
            return False
        # Everybody may where the file, and all folders above it, let others in.
        state, folder = os.fstat(self.descriptor), self.folder
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(state.st_mode) else 0)
        with ExitStack() as stack, suppress(OSError):
            while needed & state.st_mode == needed:
                above = os.fstat(folder)
                if os.path.samestat(above, state):
                    return True
                state, needed = above, stat.S_IXOTH
                folder = os.open("..", PATH_ONLY | os.O_DIRECTORY, dir_fd=folder)
                stack.callback(os.close, folder)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)
        if self.descriptor is not None:
            os.close(self.descriptor)


def follow_links(path: str | Path, *, within: int | None = None) -> ResolvedPath:
    """Walk a path to its end, folder by folder, through its links.

    Args:
        within: The open folder that a relative path begins at; None is the working folder.

    Raises:
        OSError: There is no such folder, too many links, or a link whose maker may not have the file read.
    """
    shown = os.fspath(path)
    if not shown or "\0" in shown:
        raise OSError(errno.EINVAL, "is empty or has a null character in its name", repr(shown))
    makers, links, left = set[int](), 0, _names(shown)
    with ExitStack() as stack:

        def begin(path: str, within: int | None) -> int:
            descriptor = os.open(os.sep if path[0] == os.sep else ".", PATH_ONLY | os.O_DIRECTORY, dir_fd=within)
            stack.callback(os.close, descriptor)
            return descriptor

        folder = begin(shown, within)
        while True:
            name = left.pop()
            try:
                descriptor = _named(name, folder)
            except OSError as error:
                raise OSError(error.errno, error.strerror, shown) from None
            if descriptor is None and left:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown)
            mode = 0 if descriptor is None else os.fstat(descriptor).st_mode
            if not left and not stat.S_ISLNK(mode):
                found = ResolvedPath(os.dup(folder), name, descriptor, frozenset(makers))
                if strangers := [maker for maker in makers if not found.may_be_read_for(maker)]:
                    found.__exit__()
                    why = f"is a link of user {min(strangers)}; name or copy what it leads to"
                    raise OSError(errno.EPERM, why, shown)
                return found
            assert descriptor is not None
            stack.callback(os.close, descriptor)
            if not stat.S_ISLNK(mode):
                folder = descriptor
                continue
            if (links := links + 1) > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), shown)
            makers.add(os.fstat(descriptor).st_uid)
            target = os.readlink("", dir_fd=descriptor)
            left += _names(target)
            folder = begin(target, folder)


def _names(path: str) -> list[str]:
    """Return the names in a path, the last of them first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1] or ["."]


def _named(name: str, folder: int) -> int | None:
    """Return a descriptor that names a file in an open folder, links included; None where there is none."""
    # The kernel's own links, such as /proc/self/fd/1, have no target that could be read.
    flags = PATH_ONLY if is_kernels(folder) else PATH_ONLY | os.O_NOFOLLOW
    # What is mounted on demand is mounted once it is opened as a folder.
    for kind in (os.O_DIRECTORY, 0):
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.open(name, flags | kind, dir_fd=folder)
    return None


def is_kernels(folder: int) -> bool:
    """Whether an open folder is one of /proc."""
    return os.fstat(folder).st_dev == PROC.stat().st_dev


def open_regular(path: Path, flags: int = os.O_RDONLY, *, owned: bool = False, mode: int = 0o666) -> int:
    """Open a file that anybody may have put there, and return its descriptor; waits for nobody and follows no link.

    Args:
        owned: Whether only root, the caller and the owner of its folder, who could replace it, may own it: for what is
            trusted, such as a lock.
        mode: Mode of a file that is made, less the umask.

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


def open_data(path: Path) -> io.BufferedReader:
    """Return the file that a path leads to, to read from; waits for nobody.

    Raises:
        OSError: As `follow_links` or `open_descriptor`.
    """
    with follow_links(path) as resolved:
        return open_descriptor(resolved.found, path)


def proc_path(file: IO[bytes] | int) -> str:
    """Return a name by which a library opens this very file or folder, whatever has its path by now.

    A library that reads through Python has threads that need Python, and abort a process that is just ending.
    """
    return f"{PROC}/self/fd/{file if isinstance(file, int) else file.fileno()}"


def read_regular(path: Path, *, limit_bytes: int = MAX_BYTES, owned: bool = False, follow: bool = False) -> bytes:
    """Return the content of a file.

    Args:
        owned: As in `open_regular`; for a path that is no link.
        follow: Whether the path may lead through links, as in `open_data`.

    Raises:
        OSError: As `open_regular` or `open_data`, or it is larger than `limit_bytes`.
    """
    with open_data(path) if follow else os.fdopen(open_regular(path, owned=owned), "rb") as file:
        return read_bounded(file, path, limit_bytes)


def open_descriptor(descriptor: int, path: str | Path) -> io.BufferedReader:
    """Return the regular file that a descriptor names, opened to read.

    Raises:
        OSError: It is a pipe, a device or a folder, or the caller may not read it.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    try:
        return os.fdopen(os.open(proc_path(descriptor), os.O_RDONLY | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def read_bounded(file: io.BufferedReader, path: Path, limit_bytes: int) -> bytes:
    """Return the content of an open file.

    Raises:
        OSError: It is larger than `limit_bytes`.
    """
    if (size_bytes := os.fstat(file.fileno()).st_size) > limit_bytes:
        raise OSError(errno.EFBIG, f"is larger than {limit_bytes:,} bytes", str(path))
    # No more than it had: another process may go on writing.
    return file.read(size_bytes)
