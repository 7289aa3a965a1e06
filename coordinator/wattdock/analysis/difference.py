"""Whether two sets of independent repeats differ, and by how much. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

from wattdock.analysis.intervals import CONFIDENCE
from wattdock.analysis.welch import LogRatio, welch

if TYPE_CHECKING:
    from collections.abc import Sequence

TEST = "Welch's t-test on logarithms of restart values"


@dataclass(frozen=True)
class Difference:
    """How far the second mean lies from the first, as a ratio of geometric means − 1.

    Attributes:
        low, high: 95 % interval, relative.
        p_value: Chance of a difference at least this large between repeats of one thing.
        log_ratio: What all of that follows from.
    """

    relative: float
    low: float
    high: float
    p_value: float
    log_ratio: LogRatio

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out no difference at all."""
        return self.low > 0 or self.high < 0

    def p_not_above(self, relative: float) -> float:
        """Return the chance of an estimate this high or higher if the true difference were `relative`; one-sided."""
        return self.log_ratio.p_above(log(1 + relative))

    def p_not_below(self, relative: float) -> float:
        """Return the chance of an estimate this low or lower if the true difference were `relative`; one-sided."""
        return self.log_ratio.p_below(log(1 + relative))


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two sets of restart values, such as joules per token.

    Raises:
        ValueError: One of them has fewer than two values, or one that is not above 0.
    """
    found = welch(first, second)
    low, high = (exp(end) - 1 for end in found.interval(CONFIDENCE))
    p_value = min(1.0, 2 * min(found.p_below(0), found.p_above(0)))
    return Difference(found.relative, low, high, p_value, found)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for how many there are, in the order given.

    Source: Holm, A simple sequentially rejective multiple test procedure (Scandinavian Journal of Statistics 6, 1979).
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = highest
    return adjusted
