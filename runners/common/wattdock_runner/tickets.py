"""Number a pass's requests, so that each is served once: by one engine, or by several that take from one queue.

Knows no engine and no prompt.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTER = struct.Struct("=Q")


class Tickets(Protocol):
    """Where an engine that has room gets the numbers of its next requests.

    Attributes:
        taken: How many requests of the pass have been taken so far, by any engine.
    """

    @property
    def taken(self) -> int:
        """How many requests of the pass have been taken so far, by any engine."""
        ...

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers; `wanted` says how many, given how many are taken."""
        ...


class OwnTickets:
    """Tickets of a pass that one engine serves alone."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers; `wanted` says how many, given how many are taken."""
        first = self.taken
        self.taken = first + wanted(first)
        return range(first, self.taken)


class SharedTickets:
    """Tickets of a pass that several processes serve: one counter in memory that they share.

    Whoever is free takes the next ones; a lock of the kernel's keeps two from taking the same.

    Args:
        descriptor: Of the memory, as `open_counter` returns it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, COUNTER.size)

    @property
    def taken(self) -> int:
        """How many requests of the pass have been taken so far, by any engine."""
        return int(COUNTER.unpack_from(self._memory)[0])

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers; `wanted` says how many, given how many are taken."""
        # A record lock, which is a process's own; flock would be shared with the descriptor.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            first = self.taken
            last = first + wanted(first)
            COUNTER.pack_into(self._memory, 0, last)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        return range(first, last)

    def start_again(self) -> None:
        """Take nothing as taken, for a new pass."""
        COUNTER.pack_into(self._memory, 0, 0)


def open_counter() -> int:
    """Return the descriptor of memory for a counter, which child processes may inherit; it has no name on any disk."""
    descriptor = os.memfd_create("wattdock-tickets")
    os.ftruncate(descriptor, COUNTER.size)
    return descriptor
