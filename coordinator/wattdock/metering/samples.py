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
# A larger change of the offset means that the clock was set: adjustments between two reads are smaller.
STEP_NS = 5_000_000
# Samples further apart say no more than the counter, which changes every 100 ms.
WIDEST_NS = 50_000_000
# The newest sample is 1 to 20 ms old on an H200; an age beyond this means that samples have other time stamps.
OLDEST_NS = NS_PER_S
# Least number of samples from which their distance is taken.
MANY = 5
# Readings of both clocks, of which the quickest counts: a thread may be held up between them.
READINGS = 3


class DriverSamples:
    """Reads a driver's buffer of power samples, each time those that came since.

    Attributes:
        doubt: Why samples are not used; None where the first buffer read was sound.
        latest_ns: The instant of the newest sample returned; of the start before the first one.
    """

    def __init__(self, read: Callable[[], list[tuple[int, float]]] | None, clock: Clock) -> None:
        self.doubt: str | None = "the driver has not answered"
        self._read = read
        self._clock = clock
        self.latest_ns = clock.now_ns()
        self._latest: tuple[int, float] | None = None
        self._offset_ns: int | None = None

    def read(self) -> list[tuple[int, float]]:
        """Return new samples since the start, each with its instant and watts; a sample read twice is returned once.

        None is returned where the time of day was set since the last read: samples may be stamped before or after it.
        """
        assert self._read is not None
        offset_ns, stamped = self._wall_offset_ns(), self._read()
        if self._offset_ns is None:
            self.doubt = self._doubt(stamped, offset_ns)
        is_set = self._offset_ns is not None and abs(offset_ns - self._offset_ns) > STEP_NS
        self._offset_ns, newest_ns = offset_ns, self._clock.now_ns()
        places = (place for place in range(len(stamped), 0, -1) if stamped[place - 1] == self._latest)
        new = [] if is_set else stamped[next(places, 0) :]
        self._latest = stamped[-1] if stamped else self._latest
        rows = []
        for at_us, watts in new:
            at_ns = at_us * NS_PER_US - offset_ns
            if self.latest_ns < at_ns <= newest_ns:
                rows.append((at_ns, watts))
                self.latest_ns = at_ns
        return rows

    def _wall_offset_ns(self) -> int:
        """Return the time of day less CLOCK_MONOTONIC, from the quickest of a few readings."""
        readings = []
        for _ in range(READINGS):
            before_ns, wall_ns, after_ns = self._clock.now_ns(), self._clock.wall_ns(), self._clock.now_ns()
            readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
        return min(readings)[1]

    def _doubt(self, stamped: list[tuple[int, float]], offset_ns: int) -> str | None:
        """Return why the driver's buffer is of no use, from what it holds at the start; None where it is."""
        if len(stamped) < MANY:
            return f"the buffer holds {len(stamped)}"
        age_ns = self._clock.now_ns() - (stamped[-1][0] * NS_PER_US - offset_ns)
        if abs(age_ns) > OLDEST_NS:
            return f"the newest is stamped {age_ns / NS_PER_S:.1f} s before now"
        apart_ns = median(later[0] - earlier[0] for earlier, later in pairwise(stamped)) * NS_PER_US
        return f"they are {apart_ns / 1e6:.0f} ms apart" if apart_ns > WIDEST_NS else None
