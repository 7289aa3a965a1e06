"""Write files that a crash or a power cut leaves whole, as they were or as they were to be; read a log's end.

Knows nothing of what stands in them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


TAIL_LINES, TAIL_BYTES = 20, 64 * 1024


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, replacing what stands there; durable when this returns.

    Raises:
        OSError: There is no room, or no permission.
    """
    # Several processes may write the same file, each its own scratch.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def last_lines(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, of its last 64 KiB at most; empty where there is no log."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
