"""Signals that ask to end interrupt the work only where it may be interrupted; elsewhere they are remembered.

Results are analysed and stored outside those places, so no signal can cost them. After a first Ctrl-C or a
SIGUSR1, which schedulers send before a time limit, the pass that is being measured ends; after a second one, SIGTERM or
SIGHUP it is cut off.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from wattdock.study import events

if TYPE_CHECKING:
    from collections.abc import Iterator


AFTER_PASS = (signal.SIGINT, signal.SIGUSR1)
SIGNALS = (*AFTER_PASS, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles the signals inside its context; does nothing outside the main thread, which alone can.

    Attributes:
        urgent: Whether a signal came that does not wait for the end of a pass.
    """

    def __init__(self, emit: events.Emit = lambda _: None) -> None:
        self._emit = emit
        self.urgent = self._requested = self._announced = False
        self._interruptible = self._finishing_pass = False
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old_handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt inside; one that came earlier raises it at once.

        For work that cannot call `check`, such as a download, and that an exception at any point cannot harm.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        try:
            self._interruptible = True
            self.check()
            yield
        finally:
            self._interruptible = False

    def check(self) -> None:
        """Raise for a signal that came.

        Loops that wait call this, so that no signal handler raises in the middle of gRPC's code.

        Raises:
            KeyboardInterrupt: A signal came.
        """
        if self._requested and (self.urgent or not self._finishing_pass):
            raise KeyboardInterrupt
        if self._requested and not self._announced:
            self._announced = True
            self._emit(events.StopAsked())

    @contextmanager
    def finishing_pass(self) -> Iterator[None]:
        """Let a first Ctrl-C or SIGUSR1 wait for the end of the block; a second one, SIGTERM and SIGHUP do not wait."""
        try:
            self._finishing_pass = True
            yield
        finally:
            self._finishing_pass = False

    def _handle(self, number: int, _: object) -> None:
        self.urgent = self._requested or number not in AFTER_PASS
        self._requested = True
        if self._interruptible:
            raise KeyboardInterrupt
