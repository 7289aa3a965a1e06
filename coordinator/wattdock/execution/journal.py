"""The lines of a study's life, each durable as soon as it is written.

Knows lines only: what they mean is for `folder`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wattdock.errors import StoreError
from wattdock.files import sync
from wattdock.text import json_text

if TYPE_CHECKING:
    from pathlib import Path

Line = dict[str, Any]
# What a line of each event must say to be of use; others may say anything.
NEEDED = {
    "study": {"study_id", "name", "digest", "order", "seed", "machine", "experiments"},
    "pass": {"experiment", "restart", "pass"},
    "retried": {"experiment"},
    "stored": {"experiment", "status", "folder"},
}


class Journal:
    """An open journal.jsonl; only one process has it open at a time.

    Attributes:
        lines: Everything in it, in order.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the journal at `path`; an unfinished last line, which a killed coordinator leaves, is cut off.

        Raises:
            StoreError: Another coordinator has it open, or a line makes no sense.
            OSError: It cannot be read or made.
        """
        # Without a buffer: what could not be written must not be tried again later, when the file is closed.
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise StoreError(f"{path}: another wattdock is running this study; wait for it or stop it") from error
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        self.lines = parse(whole, path)
        sync(path.parent)

    def append(self, event: str, **facts: Any) -> None:
        """Add a line.

        Raises:
            OSError: There is no room; the journal is as it was.
        """
        line = {"event": event, "at_utc": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
        end = self._file.seek(0, os.SEEK_END)
        try:
            text = json_text(line).encode() + b"\n"
            if self._file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)
            raise
        self.lines.append(line)

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()


def parse(content: bytes, path: Path) -> list[Line]:
    """Return the journal's lines.

    Raises:
        StoreError: One of them is no JSON, or lacks what its event needs; names it.
    """
    lines = []
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            lines.append(_checked(json.loads(text)))
        except ValueError as error:
            raise StoreError(f"{path}:{number}: is no journal line ({error}); restore it or start anew") from error
    return lines


def _checked(line: Any) -> Line:
    if not isinstance(line, dict) or not isinstance(line.get("event"), str):
        raise ValueError("it names no event")
    if missing := NEEDED.get(line["event"], set()) - line.keys():
        raise ValueError(f"{line['event']!r} without {', '.join(sorted(missing))}")
    return line


def read_journal(path: Path) -> list[Line]:
    """Return the whole lines of a journal that may be open elsewhere.

    Raises:
        StoreError: It cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; see that it can be read") from error
    return parse(content[: content.rfind(b"\n") + 1], path)
