"""A line through values over time with its uncertainty, and whether a change is shown to be small. Pure."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.analysis.joules import NORMAL95
from wattdock.analysis.statistics import t_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Largest relative change of a quantity per relative change of a term: prompts make up a part of its joules. Without the
# bound, a term that hardly varies, but does so along with time, would leave the trend unknown.
PROPORTIONAL = 1.0
# Fewest degrees of freedom of a line's scatter: three values leave one.
MIN_FREEDOM = 0.9
# Relative uncertainty of values without any scatter, which no meter resolves.
MIN_SCATTER = 1e-9
ROUNDS = 10
# Fewest values whose ranks give an interval of 95 %: of 120 permutations of five, 2 are in order.
MIN_RANKED = 5


class Change(NamedTuple):
    """A relative change and half the width of its 95 % interval."""

    relative: float
    half95: float

    def __str__(self) -> str:
        """Return "+0.31 % ± 0.12 %"."""
        return f"{100 * self.relative:+.2f} % ± {100 * self.half95:.2f} %"

    def is_within(self, limit: float) -> bool | None:
        """Whether the 95 % interval lies within ± `limit` (True), outside of it (False), or neither (None)."""
        if abs(self.relative) + self.half95 <= limit:
            return True
        return False if abs(self.relative) - self.half95 > limit else None

    def duration_factor(self, limit: float) -> float:
        """Return how many times as long one must measure to decide: the interval is then half as wide as the limits.

        A steady state is then shown to be one in 19 of 20 cases, and a change of twice the limit in 39 of 40.
        """
        return (2 * self.half95 / limit) ** 2


def slope(
    at: NDArray[np.float64], values: NDArray[np.float64], terms: Sequence[NDArray[np.float64]] = ()
) -> Change | None:
    """Return the slope of a line, relative to the values' mean, per unit of `at`.

    None with too few values, and where terms go together.

    Least squares; the relative change with that of each term is taken to be 0 ± `PROPORTIONAL` before anything is seen.

    Args:
        at: Instants, shape (n,), n ≥ 3.
        terms: What else the values depend on, each of shape (n,) and not negative.
    """
    relative = [term / term.mean() - 1 for term in terms if term.mean()]
    unit = float(np.ptp(at))
    matrix = np.column_stack([(at - at.mean()) / unit, np.ones_like(at), *relative])
    deviations = values / values.mean() - 1
    known = np.diag([0.0, 0.0, *(PROPORTIONAL**-2 for _ in relative)])
    squares, variance = matrix.T @ matrix, float(np.var(deviations)) + MIN_SCATTER**2
    # How far the terms are known depends on the scatter, and the scatter on what the terms explain.
    for _ in range(ROUNDS):
        try:
            covariance = np.linalg.inv(squares / variance + known)
        except np.linalg.LinAlgError:
            return None
        fitted = covariance @ matrix.T @ deviations / variance
        freedom = len(at) - float(np.trace(covariance @ squares)) / variance
        if freedom < MIN_FREEDOM:
            return None
        variance = float(np.sum((deviations - matrix @ fitted) ** 2)) / freedom + MIN_SCATTER**2
    return Change(float(fitted[0]) / unit, t_factor(freedom) * sqrt(float(covariance[0, 0])) / unit)


def median_slope(at: NDArray[np.float64], values: NDArray[np.float64]) -> Change | None:
    """Return the median of the slopes between any two values, relative to their median, per unit of `at`.

    Few values that lie far off hardly move it or its interval. Source: P. K. Sen, "Estimates of the regression
    coefficient based on Kendall's tau", 1968; the wider side of its interval is given for both.

    Args:
        at: Distinct instants, shape (n,).

    Returns:
        None with fewer than five values, whose ranks give no interval of 95 %, or where their median is 0.
    """
    middle = float(np.median(values)) if len(values) >= MIN_RANKED else 0.0
    if not middle:
        return None
    first, second = np.triu_indices(len(at), 1)
    slopes = np.sort((values[second] - values[first]) / (at[second] - at[first])) / middle
    scatter = sqrt(len(at) * (len(at) - 1) * (2 * len(at) + 5) / 18)
    lowest = max(0, round((len(slopes) - NORMAL95 * scatter) / 2) - 1)
    slope_middle = float(np.median(slopes))
    half95 = max(slope_middle - slopes[lowest], slopes[-1 - lowest] - slope_middle)
    return Change(slope_middle, max(float(half95), MIN_SCATTER))


def pooled(changes: Sequence[Change]) -> Change:
    """Return the mean of changes of equal things, each weighted by what is known of it."""
    weights = np.array([change.half95**-2 for change in changes])
    mean = float(np.average([change.relative for change in changes], weights=weights))
    return Change(mean, 1 / sqrt(float(weights.sum())))
