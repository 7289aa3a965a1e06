"""Whether two sets of independent repeats differ, and by how much. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """How far the second mean lies from the first, relative to the first.

    Attributes:
        low, high: 95 % interval, relative.
        p_value: Chance of a difference at least this large between repeats of one thing.
    """

    relative: float
    low: float
    high: float
    p_value: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out no difference at all."""
        return self.low > 0 or self.high < 0


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two sets of restart values, such as joules per token.

    Raises:
        ValueError: One of them has fewer than two values, or the first has a mean of 0.

    Source: Welch's unequal-variances t-test (Biometrika 34, 1947), degrees of freedom after Satterthwaite.
    """
    from scipy.special import stdtr, stdtrit

    if min(len(first), len(second)) < 2 or not np.mean(first):
        raise ValueError(f"two repeats of each are needed to compare, not {len(first)} and {len(second)}")
    means = [float(np.mean(values)) for values in (first, second)]
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    error = sqrt(sum(parts))
    if not error:
        relative = means[1] / means[0] - 1
        return Difference(relative, relative, relative, float(relative == 0))
    freedom = error**4 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    gap = means[1] - means[0]
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p_value = 2 * float(stdtr(freedom, -abs(gap) / error))
    return Difference(gap / means[0], (gap - half) / means[0], (gap + half) / means[0], p_value)
