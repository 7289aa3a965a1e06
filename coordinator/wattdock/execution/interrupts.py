"""Ctrl-C, SIGTERM and SIGHUP reach the work only where it may be interrupted; everywhere else they wait.

What was measured is merged and stored outside those places, so no signal can cost it. A first Ctrl-C lets a pass that
is being measured end; a second one, like SIGTERM and SIGHUP, does not.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from wattdock.execution.events import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.execution.events import Emit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles the signals while it is entered; only the main thread can, elsewhere they stay as they were."""

    def __init__(self, emit: Emit = lambda _: None) -> None:
        self._emit = emit
        self._seen = False
        self._urgent = False
        self._allowed = False
        self._patient = False
        self._announced = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt inside; one that came earlier raises it at once.

        For work that cannot look for itself, such as a download, and that an exception anywhere inside cannot harm.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        try:
            self._allowed = True
            self.check()
            yield
        finally:
            self._allowed = False

    def check(self) -> None:
        """Raise for a signal that came; for loops that wait.

        So gRPC's own code is never left half way by an exception from a signal handler.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        if self._seen and (self._urgent or not self._patient):
            raise KeyboardInterrupt
        if self._seen and not self._announced:
            self._announced = True
            self._emit(Note("interrupted: stops after this pass; Ctrl-C again stops now"))

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Let a first Ctrl-C wait for the end of the block; a second one, SIGTERM and SIGHUP do not."""
        try:
            self._patient = True
            yield
        finally:
            self._patient = False

    def _handle(self, number: int, _: object) -> None:
        self._urgent = self._seen or number != signal.SIGINT
        self._seen = True
        if self._allowed:
            raise KeyboardInterrupt
