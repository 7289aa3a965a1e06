"""Events of a run as lines of JSON in its study's folder, for readers elsewhere."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from wattdock.opening import open_regular
from wattdock.study.events import TokensSeen, as_line
from wattdock.text import json_text

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.study.events import Emit, Event


EVENTS = "events.jsonl"

# Shortest time between two lines about the tokens of a pass: more would fill the file, and readers look once a second.
BEAT_S = 0.9


class EventLog:
    """Writes events to a new file at `path`, and passes them on; a context manager that closes the file.

    What cannot be written is left out, since nothing measured needs it.
    """

    def __init__(self, path: Path, emit: Emit) -> None:
        self._file: Any = None
        self._emit = emit
        self._last_beat_s = 0.0
        with suppress(OSError):
            path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(open_regular(path, flags, mode=0o644), "wb", buffering=0)

    def __call__(self, event: Event) -> None:
        """Write an event and pass it on."""
        is_beat, now_s = isinstance(event, TokensSeen), time.monotonic()
        if self._file and not (is_beat and now_s - self._last_beat_s < BEAT_S):
            self._last_beat_s = now_s if is_beat else self._last_beat_s
            with suppress(OSError):
                self._file.write(json_text(as_line(event), default=str).encode() + b"\n")
        self._emit(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()
