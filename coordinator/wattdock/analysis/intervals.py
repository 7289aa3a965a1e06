"""95 % intervals of what a few independent repeats have in common. Pure."""

from __future__ import annotations

from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of independent values (Student's t, n−1); None with fewer than two.

    Of values that cannot be negative, as all here: what would lie below 0 is cut off. The true mean is never there,
    so the interval holds it as often as before.
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = float(np.mean(values))
    factor = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    half = factor * float(np.std(values, ddof=1)) / sqrt(len(values))
    return max(mean - half, 0.0), mean + half


def deviation_interval(deviation: float | None, freedom: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a standard deviation of normal values (chi-square); None without freedom."""
    if deviation is None or freedom < 1:
        return None
    from scipy.special import chdtri

    # chdtri takes the upper tail.
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = (deviation * sqrt(freedom / float(chdtri(freedom, tail))) for tail in tails)
    return low, high


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean whose ratios `difference` tells; of values above 0.

    Raises:
        ValueError: There is none, or one that is not above 0.
    """
    if not values or min(values) <= 0:
        raise ValueError(f"values above 0 are needed for a geometric mean, not {list(values)}")
    return exp(fmean(map(log, values)))


def geometric_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the geometric mean of independent values; None with fewer than two.

    Student's t on logarithms, as `difference` is: it never reaches 0.

    Raises:
        ValueError: One of them is not above 0.
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = geometric_mean(values)
    factor = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    reach = exp(factor * stdev(map(log, values)) / sqrt(len(values)))
    return mean / reach, mean * reach
