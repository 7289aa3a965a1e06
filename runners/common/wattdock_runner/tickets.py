"""The queue of a pass's requests, which several engines may share."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Tickets:
    """Numbers of the requests of a pass, for an engine that serves the pass alone and takes some when it has room.

    Attributes:
        taken: Number of requests taken so far, by any engine.
    """

    taken = 0

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers; `wanted` says how many, given how many are taken."""
        first = self.taken
        self.taken = first + wanted(first)
        return range(first, self.taken)


class SharedTickets(Tickets):
    """Tickets of a pass that several processes serve: a number in shared memory behind a lock of the kernel.

    Args:
        descriptor: The file descriptor of the memory.
        numbers: The memory, whose first number counts.
    """

    def __init__(self, descriptor: int, numbers: memoryview[int]) -> None:
        self._descriptor, self._numbers = descriptor, numbers

    @property
    def taken(self) -> int:
        """Number of requests taken so far, by any engine."""
        return self._numbers[0]

    @taken.setter
    def taken(self, count: int) -> None:
        self._numbers[0] = count

    def take(self, wanted: Callable[[int], int]) -> range:
        """Return the next numbers, which no other process gets."""
        # A record lock belongs to its process; flock would be shared with the descriptor.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            return super().take(wanted)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
