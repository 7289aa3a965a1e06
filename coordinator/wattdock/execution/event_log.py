"""The events of a run in its study's folder, a line of JSON each, for who watches from elsewhere.

They go with the study's records. Who watches writes nothing, and takes a file for what anybody may have written.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from wattdock.errors import StoreError
from wattdock.execution.events import TokensSeen, as_line, from_line
from wattdock.execution.run_state import RunState
from wattdock.execution.study_folder import LOCK, RECORDS
from wattdock.files import STUDIES, lock_pids, open_data, open_regular
from wattdock.host import processes
from wattdock.text import from_json, json_text

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.execution.events import Event

EVENTS = "events.jsonl"
# Of the tokens of a pass, a line in this time.
BEAT_S = 0.9
# What is read of a file that was long when it was found; longer lines are no events.
TAIL_BYTES, LINE_BYTES = 16_000_000, 64_000
# Studies that are looked at, the latest first: names begin with their time.
MOST_STUDIES = 20


class EventLog:
    """Writes events to a new file at `path`; what cannot be written is left out, since nothing measured needs it."""

    def __init__(self, path: Path) -> None:
        self._file: Any = None
        self._last_beat_s = 0.0
        with suppress(OSError):
            path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(open_regular(path, flags, mode=0o644), "wb", buffering=0)

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if isinstance(event, TokensSeen):
            if time.monotonic() - self._last_beat_s < BEAT_S:
                return
            self._last_beat_s = time.monotonic()
        if self._file:
            with suppress(OSError):
                self._file.write(json_text(as_line(event), default=str).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


@dataclass
class WatchedRun:
    """A study's run, as its folder tells.

    Attributes:
        path: The study's folder.
        pid, user: Of the coordinator that holds the study's lock now; None where none does, or none is to be seen.
        state: What its events add up to; times are seconds since the epoch.
    """

    path: Path
    pid: int | None = None
    user: str | None = None
    state: RunState = field(default_factory=RunState)
    _asked_pid: int | None = None
    _inode: int = 0
    _offset: int = 0

    def look(self) -> None:
        """Find out who runs it, and read what was added.

        Raises:
            OSError: The folder cannot be read.
        """
        self.pid = next(iter(lock_pids((self.path / LOCK).stat())), None)
        self.user = processes.owner_of(self.pid)[0] if self.pid else None
        if not self.pid:
            return
        with suppress(FileNotFoundError), open_data(self.path / RECORDS / EVENTS, follow=False) as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._inode or now.st_size < self._offset:
                self._inode, self._offset, self.state = now.st_ino, max(0, now.st_size - TAIL_BYTES), RunState()
            file.seek(self._offset)
            while self._offset < now.st_size and (line := file.readline(LINE_BYTES)):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    # It is being written.
                    break
                self._offset += len(line)
                self._take(line)

    @property
    def is_ours(self) -> bool:
        """Whether the caller may stop it."""
        return self.user == processes.user_name()

    def stop(self, *, at_once: bool) -> bool:
        """Ask it to end, after the pass that is under way unless `at_once`; return whether it was ours and heard."""
        if not (self.pid and self.is_ours):
            return False
        # A second Ctrl-C would cut the pass off.
        if self._asked_pid == self.pid and not at_once:
            return True
        with suppress(OSError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The number may by now be another process's, which holds no such lock.
                if self.pid in lock_pids((self.path / LOCK).stat()):
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM if at_once else signal.SIGINT)
                    self._asked_pid = self.pid
                    return True
            finally:
                os.close(descriptor)
        return False

    def _take(self, line: bytes) -> None:
        # Part of a line, or another program's.
        with suppress(ValueError, KeyError, TypeError, StoreError):
            values = from_json(line)
            if event := from_line(values):
                self.state.on(event, datetime.fromisoformat(values["at_utc"]).timestamp())


class RunWatch:
    """The runs in a folder of results that have a coordinator now, whoever started them."""

    def __init__(self, output_dir: Path) -> None:
        self._studies, self._known = output_dir / STUDIES, dict[str, WatchedRun]()

    def look(self) -> list[WatchedRun]:
        """Return the runs that are under way, the latest first."""
        with suppress(OSError):
            names = sorted(os.listdir(self._studies), reverse=True)[:MOST_STUDIES]  # noqa: PTH208 (names, unopened)
            known = {name: self._known.get(name) or WatchedRun(self._studies / name) for name in names}
            self._known = {}
            for name, run in known.items():
                with suppress(OSError):
                    run.look()
                    self._known[name] = run
        return [run for run in self._known.values() if run.pid is not None]
