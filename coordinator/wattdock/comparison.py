"""Whether two sets of independent repeats differ, and by how much. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
TEST = "Welch's t-test on logarithms of restart values"


@dataclass(frozen=True)
class Difference:
    """How far the second mean lies from the first, as a ratio of geometric means − 1.

    Attributes:
        low, high: 95 % interval, relative.
        p_value: Chance of a difference at least this large between repeats of one thing.
        log_ratio, error, freedom: The same on the logarithmic scale: estimate, standard error, degrees of freedom.
    """

    relative: float
    low: float
    high: float
    p_value: float
    log_ratio: float
    error: float
    freedom: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out no difference at all."""
        return self.low > 0 or self.high < 0

    def p_not_above(self, relative: float) -> float:
        """Return the chance of an estimate this high or higher if the true difference were `relative`; one-sided."""
        from scipy.special import stdtr

        gap = self.log_ratio - log(1 + relative)
        return float(stdtr(self.freedom, -gap / self.error)) if self.error else float(gap <= 0)

    def p_not_below(self, relative: float) -> float:
        """Return the chance of an estimate this low or lower if the true difference were `relative`; one-sided."""
        from scipy.special import stdtr

        gap = self.log_ratio - log(1 + relative)
        return float(stdtr(self.freedom, gap / self.error)) if self.error else float(gap >= 0)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two sets of restart values, such as joules per token.

    On logarithms, because a ratio is what is asked for: its interval then holds for the first mean's spread too, and
    swapping the two sides gives the inverse ratio.

    Raises:
        ValueError: One of them has fewer than two values, or one that is not above 0.

    Source: Welch's unequal-variances t-test (Biometrika 34, 1947), degrees of freedom after Satterthwaite.
    """
    from scipy.special import stdtr, stdtrit

    if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
        raise ValueError(f"two repeats above 0 of each are needed to compare, not {len(first)} and {len(second)}")
    logs = [np.log(np.asarray(values, dtype=float)) for values in (first, second)]
    gap = float(logs[1].mean() - logs[0].mean())
    parts = [float(np.var(values, ddof=1)) / len(values) for values in logs]
    error = sqrt(sum(parts))
    if not error:
        relative = exp(gap) - 1
        return Difference(relative, relative, relative, float(gap == 0), gap, 0.0, float("inf"))
    freedom = error**4 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p_value = 2 * float(stdtr(freedom, -abs(gap) / error))
    return Difference(exp(gap) - 1, exp(gap - half) - 1, exp(gap + half) - 1, p_value, gap, error, freedom)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean whose ratios `difference` tells; of values above 0.

    Raises:
        ValueError: There is none, or one that is not above 0.
    """
    if not values or min(values) <= 0:
        raise ValueError(f"values above 0 are needed for a geometric mean, not {list(values)}")
    return exp(float(np.mean(np.log(values))))


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
