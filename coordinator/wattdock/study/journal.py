"""A study's journal: a line of JSON for each thing that happened to it, and what the lines say of each experiment."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattdock.clock import Clock
from wattdock.errors import Cause, StoreError, os_errors_as
from wattdock.files import JOURNAL, MAX_JOURNAL_BYTES, RESULT, STORED, locked, sync
from wattdock.opening import open_regular, read_bounded
from wattdock.owned_folder import OwnedFolder
from wattdock.store import StoredResult, load_result
from wattdock.text import from_json, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORDS, LOCK, JOURNAL_SCHEMA = "records", ".lock", 1
# What the lines of a journal record.
STUDY, RESUMED, RETRIED, ENDED = "study", "resumed", "retried", "ended"
# Keys that the line of an event must have, and the types of their values.
REQUIRED_KEYS: dict[str, dict[str, type]] = {
    STUDY: {
        **dict.fromkeys(("study_id", "name", "digest", "order"), str),
        "seed": int,
        "machine": dict,
        "experiments": dict,
    },
    RETRIED: {"experiment": str},
    STORED: dict.fromkeys(("experiment", "status", "folder"), str),
}

OK, FAILED, UNFINISHED = "ok", "failed", "interrupted"

Line = dict[str, Any]


class Journal:
    """An open journal.jsonl; `lines` are all its lines, and `histories` what they say of each experiment.

    A user who can read a file can lock it, so the lock is a file of its own beside the journal.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the journal at `path`; cut off an incomplete last line, which a killed coordinator leaves.

        Raises:
            StoreError: Another coordinator has the journal open, or a line is malformed.
            OSError: The journal cannot be read or made.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(path.with_name(LOCK)))
            except BlockingIOError as error:
                running = f"another wattdock is running this study, {error.strerror}"
                raise StoreError(f"{path}: {running}", "wait for it or stop it", cause=Cause.IN_USE) from error
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            # Unbuffered: a buffer would write a failed line again when the file is closed.
            self._file = stack.enter_context(
                os.fdopen(open_regular(path, flags, owned=True, mode=0o644), "a+b", buffering=0)
            )
            self._file.seek(0)
            content = self._file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._file.truncate(len(whole))
            self.lines = parse(whole, path)
            self.histories = histories(self.lines)
            sync(path.parent)
            self._closing = stack.pop_all()

    def append(self, event: str, **values: Any) -> None:
        """Add a line.

        Raises:
            OSError: There is no room; the journal is unchanged.
        """
        line = {"event": event, "at_utc": Clock().now_utc(), **values}
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
        _add(line, self.histories)

    def close(self) -> None:
        """Close and unlock the journal."""
        self._closing.close()


def parse(content: bytes, path: Path) -> list[Line]:
    """Return the journal's lines.

    Raises:
        StoreError: A line is no JSON object, or lacks a key of its event; names it.
    """
    lines = []
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = from_json(text)
            if not isinstance(line, dict) or not isinstance(line.get("event"), str):
                raise ValueError("no event")
            required = REQUIRED_KEYS.get(line["event"], {})
            if missing := [key for key, kind in required.items() if not isinstance(line.get(key), kind)]:
                raise ValueError(f"{line['event']!r} without {', '.join(sorted(missing))}")
        except ValueError as error:
            raise StoreError(f"{path}:{number}: invalid journal line ({error})", "restore it or start anew") from error
        lines.append(line)
    return lines


def read_journal(path: Path) -> tuple[list[Line], tuple[os.stat_result, os.stat_result]]:
    """Return the complete lines of the journal in a study's folder, and the states of that folder and that journal.

    Another process may have the journal open.

    Raises:
        StoreError: The journal cannot be read.
    """
    place = path / JOURNAL
    with (
        os_errors_as(StoreError, str(place), "see that it can be read"),
        OwnedFolder.open(path) as folder,
        folder.file(JOURNAL) as file,
    ):
        states = os.fstat(folder.descriptor), os.fstat(file.fileno())
        content = read_bounded(file, place, MAX_JOURNAL_BYTES)
    return parse(content[: content.rfind(b"\n") + 1], place), states


@dataclass
class History:
    """An experiment's results by folder, and its status: "interrupted" without any, or while it is tried again."""

    folders: list[str] = field(default_factory=list)
    status: str = UNFINISHED

    def result(self, experiment_id: str, output_dir: Path) -> StoredResult:
        """Return the last result, which is in `output_dir`.

        Raises:
            StoreError: It is gone, or is another experiment's.
        """
        path = output_dir / self.folders[-1]
        if (path / RESULT).exists() and (result := load_result(path)).experiment_id == experiment_id:
            return StoredResult(path, result)
        raise StoreError(f"{path} is gone, where this study stored a result", "put it back, or run without --resume")

    def is_done(self, *, retry_failed: bool) -> bool:
        """Whether nothing of the experiment is left to measure."""
        return self.status == OK or (self.status == FAILED and not retry_failed)


def histories(lines: Iterable[Line]) -> defaultdict[str, History]:
    """Return what a journal says of each experiment that it names, by experiment id."""
    by_id: defaultdict[str, History] = defaultdict(History)
    for line in lines:
        _add(line, by_id)
    return by_id


def _add(line: Line, by_id: defaultdict[str, History]) -> None:
    if line["event"] == STORED:
        by_id[line["experiment"]].folders.append(line["folder"])
        by_id[line["experiment"]].status = line["status"]
    elif line["event"] == RETRIED:
        by_id[line["experiment"]].status = UNFINISHED
