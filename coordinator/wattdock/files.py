"""Open files that others may have made; write files so that a crash or a power cut leaves the old content or the new.

Names of files that several rooms read stand here, too. Must not know: what the files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from wattdock.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# In a folder of results: the folder of studies' folders, and in each of those its journal.
STUDIES, JOURNAL = "studies", "journal.jsonl"
# A bundle's file name ends so; in it: what it holds, and the folder of its results.
TAR, MANIFEST, BUNDLED = ".tar", "bundle.json", "results"
TAIL_LINES, TAIL_BYTES = 20, 64 * 1024
# Far more than any file that is read into memory whole.
MAX_BYTES = 1_000_000_000


def open_regular(path: Path, flags: int = os.O_RDONLY, *, owned: bool = False, follow: bool = False) -> int:
    """Open a file that anybody may have put there, and return its descriptor; waits for nobody.

    Args:
        owned: Whether only root and the caller may own it: for what is trusted, such as a lock.
        follow: Whether it may be a link, as files in a hub's cache are.

    Raises:
        OSError: It cannot be opened, is a link, a pipe or a device, or belongs to another user.
    """
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if owned and state.st_uid not in (0, os.geteuid()):
            raise OSError(errno.EPERM, f"belongs to user {state.st_uid}", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, *, limit_bytes: int = MAX_BYTES, owned: bool = False, follow: bool = False) -> bytes:
    """Return the content of a file, opened as `open_regular` does.

    Raises:
        OSError: As `open_regular`, or it is larger than `limit_bytes`.
    """
    with os.fdopen(open_regular(path, owned=owned, follow=follow), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"is larger than {limit_bytes:,} bytes", str(path))
    return content


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces the one at `path` when the block ends, and is durable then.

    Raises:
        OSError: There is no room, or no permission; the old file is unchanged.
    """
    # Several processes may write the same file: each has a scratch file of its own.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content`, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(content)


def write_output(path: Path, content: bytes, flag: str) -> None:
    """Write a file that a person named with `flag`: whole or not at all; replaces what is there.

    Raises:
        StoreError: The file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            # A pipe or a device cannot be replaced.
            path.write_bytes(content)
        else:
            # A link names the file to replace.
            write_whole(path.resolve(), content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another file with {flag}") from error


def last_lines(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, of its last 64 KiB at most; empty where there is no log."""
    with suppress(OSError), path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
