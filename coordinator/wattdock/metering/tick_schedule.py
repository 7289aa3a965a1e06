"""When to read a counter next, so that few reads bracket each of its changes closely.

Pure bookkeeping over instants: reads nothing and sleeps never. All instants are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median, median_low

LEARN_NS = 1_000_000_000
LEARN_SPACING_NS = 5_000_000
SEARCH_SPACING_NS = 20_000_000
SPARSE_SPACING_NS = 12_000_000
MIN_SPACING_NS = 1_000_000
MIN_GUARD_NS = 8_000_000
# Share of the time spent in reads once the period is known; leaves room below 25 % for slow outliers.
BUSY_TARGET = 0.18
# Widest guard, as a share of the period: the guards of neighbouring changes must not meet.
MAX_GUARD_PERIODS = 0.4
# Sparse reads begin this much before the prediction: on an H200 changes came up to 0.26 periods early when load began.
EARLY_PERIODS = 0.28
# Pause, in lengths of a read, where changes come faster than reads can follow.
FOLLOW_SPACING_COSTS = 4
# Least distance of sparse reads, in lengths of a read, which grows while others read the GPU too.
SPARSE_SPACING_COSTS = 3
# Share of the time spent in reads where only some changes are looked for.
SPARSE_BUSY_TARGET = 0.01
# Longest pause between two changes that are looked for: shorter than FROZEN_S.
LONGEST_PAUSE_NS = 3_000_000_000
MEMORY_TICKS = 32
MIN_INTERVALS = 4
# Intervals needed before changes are skipped: with fewer, twice the period could pass for the period.
LEARNED_INTERVALS = 8


class TickSchedule:
    """Predicts a counter's next change and says when to read.

    The first second polls every 5 ms to learn the period. After that, reads begin a guard before the predicted change
    and follow each other closely until it is seen; a change that does not come is looked for sparsely until the next
    one is due. The guard follows the deviations seen; a change that came before its guard doubles it.

    Attributes:
        period_ns: Mean of the usual intervals between recent changes, 0 while unknown.
        every_ns: Once the period is known, changes are looked for so far apart or, where reads take long, further, and
            when `want_next` is called.
    """

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._changed_ns: int | None = None
        self._intervals_ns: deque[int] = deque(maxlen=MEMORY_TICKS)
        self._deviations_ns: deque[float] = deque(maxlen=MEMORY_TICKS)
        self._costs_ns: deque[int] = deque([MIN_SPACING_NS], maxlen=MEMORY_TICKS)
        self.period_ns = 0.0
        self.every_ns = 0
        self._wants_next = False
        self._spent_ns = 0
        self._pause_ns = 0.0

    @property
    def skips(self) -> bool:
        """Whether changes pass without being looked for."""
        return self.every_ns > 0 and len(self._intervals_ns) >= LEARNED_INTERVALS

    def want_next(self) -> None:
        """Ask for the next change."""
        self._wants_next = True

    @property
    def guard_ns(self) -> float:
        """How long before a predicted change reading begins."""
        worst_ns = max(self._deviations_ns, default=0.0)
        return min(max(MIN_GUARD_NS, 1.2 * worst_ns), MAX_GUARD_PERIODS * self.period_ns)

    def note_cost(self, cost_ns: int) -> None:
        """Record how long a read took."""
        self._costs_ns.append(cost_ns)
        self._spent_ns += cost_ns

    def note_change(self, before_ns: int, after_ns: int) -> None:
        """Record a change seen between two instants."""
        expected_ns, changed_ns = self._expected_ns(after_ns), (before_ns + after_ns) // 2
        if expected_ns is not None:
            if after_ns - before_ns >= MAX_GUARD_PERIODS * self.period_ns:
                changed_ns = int(min(max(expected_ns, before_ns), after_ns))
            if after_ns - before_ns > MAX_GUARD_PERIODS * self.period_ns:
                # Not bracketed: it came before the guard, or after a gap; only the first shows a guard that is short.
                deviation_ns = 1.7 * self.guard_ns if after_ns < expected_ns else 0.0
            else:
                deviation_ns = max(0.0, expected_ns - before_ns)
            self._deviations_ns.append(deviation_ns)
        if self._changed_ns is not None:
            interval_ns = changed_ns - self._changed_ns
            if self.skips:
                interval_ns = round(interval_ns / max(1, round(interval_ns / self.period_ns)))
            self._intervals_ns.append(interval_ns)
        if len(self._intervals_ns) >= MIN_INTERVALS:
            # Instants are known to within a read, so intervals are lumpy: their median is biased, their mean is not. Of
            # two middles, such as after a stop, the mean may be like no interval at all.
            middle_ns = median_low(self._intervals_ns)
            self.period_ns = fmean(usual_ns for usual_ns in self._intervals_ns if 0.5 <= usual_ns / middle_ns <= 1.5)
        self._changed_ns = changed_ns
        self._wants_next = False
        self._pause_ns = min(max(self.every_ns, self._spent_ns / SPARSE_BUSY_TARGET), LONGEST_PAUSE_NS)
        self._spent_ns = 0

    def next_read_ns(self, now_ns: int) -> int:
        """Return when to begin the next read."""
        expected_ns = self._expected_ns(now_ns)
        if expected_ns is None:
            learning = now_ns < self._start_ns + LEARN_NS
            return now_ns + (LEARN_SPACING_NS if learning else SEARCH_SPACING_NS)
        if self._reads_allowed() <= 0:
            return int(now_ns + FOLLOW_SPACING_COSTS * self._cost_ns())
        opens_ns, closes_ns = expected_ns - self.guard_ns, expected_ns + self.guard_ns
        if self.skips and now_ns < opens_ns:
            return int(opens_ns)
        looks_ns = min(opens_ns, expected_ns - EARLY_PERIODS * self.period_ns)
        if looks_ns <= now_ns < opens_ns:
            return int(min(opens_ns, now_ns + self._sparse_ns()))
        if now_ns < looks_ns:
            late = self._changed_ns is not None and expected_ns - self._changed_ns > 1.5 * self.period_ns
            return int(min(looks_ns, now_ns + self._sparse_ns())) if late else int(looks_ns)
        if now_ns > closes_ns:
            return int(now_ns + self._sparse_ns())
        # Inside the guard; never longer than where reads cannot follow at all.
        pause_ns = self.guard_ns / self._reads_allowed() - self._cost_ns()
        return int(now_ns + max(MIN_SPACING_NS, min(pause_ns, FOLLOW_SPACING_COSTS * self._cost_ns())))

    def _expected_ns(self, now_ns: int) -> float | None:
        """Return the predicted change nearest to now, not before the first one after the last change."""
        if self._changed_ns is None or not self.period_ns:
            return None
        first = 1 if self._wants_next or not self.skips else max(1, round(self._pause_ns / self.period_ns))
        return self._changed_ns + self.period_ns * max(first, round((now_ns - self._changed_ns) / self.period_ns))

    def _cost_ns(self) -> float:
        return float(median(self._costs_ns))

    def _reads_allowed(self) -> float:
        """How many reads for each change looked for, one at the change apart, stay near the busy target."""
        if self.skips:
            return max(1.0, SPARSE_BUSY_TARGET * self.every_ns / self._cost_ns() - 1)
        return BUSY_TARGET * self.period_ns / self._cost_ns() - 1

    def _sparse_ns(self) -> float:
        """Pause between reads that look for a change outside the guard."""
        return max(SPARSE_SPACING_NS, SPARSE_SPACING_COSTS * self._cost_ns())
