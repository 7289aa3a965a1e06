"""Write files so that a crash or a power cut leaves the old content or the new; read the end of a log.

Names of files that several rooms read stand here, too. Must not know: what the files hold.
"""

from __future__ import annotations

import os
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
