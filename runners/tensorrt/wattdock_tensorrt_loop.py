"""One event loop for the life of an engine, on a thread of its own.

TensorRT-LLM hands responses to the loop that a request was made on, and takes a loop that has stopped for an error,
so this one runs from before the first request until after the last.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_runner.clock import now_ns

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class EngineLoop:
    """A running asyncio loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the loop; harmless twice."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class TurnInstant:
    """One instant for all that the loop does in one turn.

    The tokens of one engine step come together, and are handled one after another in one turn. They were there when
    the turn began, so the later ones must not look later.
    """

    def __init__(self) -> None:
        self._ns: int | None = None

    def now(self) -> int:
        """Return when this turn of the loop first asked, CLOCK_MONOTONIC nanoseconds."""
        if self._ns is None:
            self._ns = now_ns()
            asyncio.get_running_loop().call_soon(self._forget)
        return self._ns

    def _forget(self) -> None:
        self._ns = None
