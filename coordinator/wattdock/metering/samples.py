"""The driver's own power samples, brought from the time of day to CLOCK_MONOTONIC."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.clock import Clock

NS_PER_US = 1_000
# Above what adjusting a clock does between two reads, below what would move a sample by a part of its width.
STEP_NS = 5_000_000
# Samples further apart tell no course that the counter, which changes every 100 ms, does not tell.
WIDEST_NS = 50_000_000
# The newest sample is 1 to 20 ms old on an H200; one much older or younger is not stamped with the time of day.
OLDEST_NS = NS_PER_S
MANY = 5


class DriverSamples:
    """Reads a driver's buffer of power samples, each time those that came since.

    Attributes:
        doubt: Why samples are not used, from the first buffer read; None where they fit.
    """

    def __init__(self, read: Callable[[int], list[tuple[int, float]]] | None, clock: Clock) -> None:
        self.doubt: str | None = None
        self._read = read
        self._clock = clock
        self._begin_ns = self._latest_ns = clock.now_ns()
        self._seen_us = 0
        self._offset_ns: int | None = None

    def read(self) -> tuple[list[tuple[int, float]], float | None]:
        """Return new samples since the start, each with its instant and watts, and by how much the clock was set, s.

        A sample read twice is returned once. Where the clock was set, either time of day is tried.
        """
        assert self._read is not None
        before_ns = self._clock.now_ns()
        wall_ns = self._clock.wall_ns()
        now_ns = self._clock.now_ns()
        previous_ns, self._offset_ns = self._offset_ns, wall_ns - (before_ns + now_ns) // 2
        offsets_ns: tuple[int, ...] = (self._offset_ns,)
        stepped_s: float | None = None
        if previous_ns is not None and abs(self._offset_ns - previous_ns) > STEP_NS:
            offsets_ns, stepped_s = (self._offset_ns, previous_ns), (self._offset_ns - previous_ns) / NS_PER_S
            # What was stamped after the clock was set back looks older than what was seen.
            self._seen_us = 0
        stamped = self._read(self._seen_us)
        if previous_ns is None:
            self.doubt = self._doubt(stamped, now_ns)
        newest_ns = self._clock.now_ns()
        rows = []
        for at_us, watts in stamped:
            instants_ns = (at_us * NS_PER_US - offset_ns for offset_ns in offsets_ns)
            at_ns = next((at_ns for at_ns in instants_ns if self._latest_ns < at_ns <= newest_ns), None)
            if at_ns is not None:
                rows.append((at_ns, watts))
                self._latest_ns = at_ns
        if stamped:
            self._seen_us = stamped[-1][0]
        return rows, stepped_s

    def _doubt(self, stamped: list[tuple[int, float]], now_ns: int) -> str | None:
        """Return why the driver's buffer is of no use, from what it holds at the start; None where it is."""
        assert self._offset_ns is not None
        if len(stamped) < MANY:
            return f"the buffer holds {len(stamped)}"
        age_ns = now_ns - (stamped[-1][0] * NS_PER_US - self._offset_ns)
        if abs(age_ns) > OLDEST_NS:
            return f"the newest is stamped {age_ns / NS_PER_S:.1f} s before now"
        apart_ns = median(later[0] - earlier[0] for earlier, later in pairwise(stamped)) * NS_PER_US
        return f"they are {apart_ns / 1e6:.0f} ms apart" if apart_ns > WIDEST_NS else None
