"""Which of some files were opened, by any process: Linux's inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Source: inotify(7).
IN_OPEN, EVENT = 0x20, struct.Struct("iIII")


@contextmanager
def opened_files(files: Iterable[Path]) -> Iterator[set[str]]:
    """Yield a set that has, once the block has ended, the names of the files that were opened in the block."""
    libc, opened = ctypes.CDLL(None, use_errno=True), set[str]()
    queue = libc.inotify_init1(os.O_NONBLOCK)
    try:
        names = {libc.inotify_add_watch(queue, bytes(file), IN_OPEN): file.name for file in files}
        assert -1 not in names, os.strerror(ctypes.get_errno())
        yield opened
        with open(queue, "rb", closefd=False) as stream:
            events = stream.read() or b""
        opened |= {names[event[0]] for event in EVENT.iter_unpack(events)}
    finally:
        os.close(queue)
