"""Watch the runs of other processes by the events in their studies' folders.

A watcher writes nothing, and trusts no file: any user may have written it.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from wattdock.errors import StoreError
from wattdock.files import STUDIES, file_place, lock_pids
from wattdock.host import processes
from wattdock.opening import PROC
from wattdock.owned_folder import OwnedFolder
from wattdock.study.events import EVENTS, from_line
from wattdock.study.journal import LOCK, RECORDS
from wattdock.study.run_state import RunState
from wattdock.text import from_json

if TYPE_CHECKING:
    from pathlib import Path

# How many of a file's last bytes one look reads at most, and how long a line may be: no event is longer.
TAIL_BYTES, LINE_BYTES = 1_000_000, 8_000
# How many characters of a text in an event are kept: three times those of an experiment's label.
MOST_CHARACTERS = 300
# How many runs are watched, and how many of one other user, so that many runs of one user hide no other's.
MOST_RUNS, MOST_OF_USER = 20, 8


@dataclass
class WatchedRun:
    """A study's run, read from its folder.

    Attributes:
        path: The study's folder.
        pid, user: Of the coordinator that holds the study's lock now.
        is_ours: Whether folder, lock and coordinator are the caller's.
        state: What its events add up to; times are seconds since the epoch.
    """

    path: Path
    pid: int = 0
    user: str | None = None
    is_ours: bool = False
    state: RunState = field(default_factory=RunState)
    _inode: int = 0
    _offset: int = 0

    def look(self, pid: int) -> None:
        """Update the run's user and state.

        Args:
            pid: Process that holds the study's lock.

        Raises:
            OSError: The folder cannot be read.
        """
        if pid != self.pid:
            self.pid, self.user, self._inode = pid, processes.owner_of(pid)[0], 0
        # Another user's lock may name a process that has ended, and whose number another process has by now.
        with OwnedFolder.open(self.path) as folder:
            lock = folder.state(LOCK)
            self.is_ours = {lock and lock.st_uid, folder.owner, _user_of(pid)} == {os.geteuid()}
            self._read(folder)

    def _read(self, folder: OwnedFolder) -> None:
        """Read new events."""
        with suppress(FileNotFoundError), folder.file(f"{RECORDS}/{EVENTS}") as file:
            now = os.fstat(file.fileno())
            if now.st_ino != self._inode or now.st_size < self._offset:
                self._inode, self._offset, self.state = now.st_ino, 0, RunState()
            self._offset = max(self._offset, now.st_size - TAIL_BYTES)
            file.seek(self._offset)
            while self._offset < now.st_size and (line := file.readline(LINE_BYTES)):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    # The line is being written.
                    break
                self._offset += len(line)
                # Part of a line, or another program's.
                with suppress(ValueError, KeyError, TypeError, AttributeError, StoreError):
                    values = {
                        name: value[:MOST_CHARACTERS] if isinstance(value, str) else value
                        for name, value in from_json(line).items()
                    }
                    if event := from_line(values):
                        self.state.on(event, datetime.fromisoformat(values["at_utc"]).timestamp())


def _user_of(pid: int) -> int:
    return (PROC / str(pid)).stat().st_uid


class RunWatch:
    """The runs under way in a folder of results, of all users."""

    def __init__(self, output_dir: Path) -> None:
        self._studies, self._known = output_dir / STUDIES, dict[str, WatchedRun]()

    def look(self) -> list[WatchedRun]:
        """Return the runs under way, the caller's first, then the latest; a limited number of each other user."""
        known, self._known = self._known, {}
        of_user, running = Counter[int](), list[tuple[str, int, int]]()
        with suppress(OSError), OwnedFolder.open(self._studies) as studies:
            holders = lock_pids()
            for name in reversed(studies.names()) if holders else ():
                if (lock := studies.state(f"{name}/{LOCK}")) and (pids := holders.get(file_place(lock))):
                    with suppress(OSError):
                        running.append((name, pids[0], _user_of(pids[0])))
        for name, pid, uid in sorted(running, key=lambda run: run[2] != os.geteuid()):
            if len(self._known) < MOST_RUNS and (uid == os.geteuid() or of_user[uid] < MOST_OF_USER):
                with suppress(OSError):
                    run = known.get(name) or WatchedRun(self._studies / name)
                    run.look(pid)
                    self._known[name] = run
                    of_user[uid] += 1
        return list(self._known.values())
