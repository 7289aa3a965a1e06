"""How far two sets of independent repeats lie apart on the logarithm's scale, by Welch. Pure.

On logarithms, because a ratio is what is asked for: its interval then holds for the first mean's spread too, and
swapping the two sides gives the inverse ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class LogRatio:
    """Logarithm of the second geometric mean over the first.

    Attributes:
        estimate: The logarithm itself.
        error: Its standard error; 0 where no repeat differs from another of its side.
        freedom: Degrees of freedom of that error; infinite where it is 0.
    """

    estimate: float
    error: float
    freedom: float

    @property
    def relative(self) -> float:
        """The ratio − 1."""
        return exp(self.estimate) - 1

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval of the estimate; 0.95 for 95 %."""
        from scipy.special import stdtrit

        half = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.error if self.error else 0.0
        return self.estimate - half, self.estimate + half

    def p_below(self, log_ratio: float) -> float:
        """Return the chance of an estimate this low or lower if the true logarithm were `log_ratio`."""
        return self._p_up_to(self.estimate - log_ratio)

    def p_above(self, log_ratio: float) -> float:
        """Return the chance of an estimate this high or higher if the true logarithm were `log_ratio`."""
        return self._p_up_to(log_ratio - self.estimate)

    def _p_up_to(self, gap: float) -> float:
        from scipy.special import stdtr

        return float(stdtr(self.freedom, gap / self.error)) if self.error else float(gap >= 0)


def welch(first: Sequence[float], second: Sequence[float]) -> LogRatio:
    """Compare two sets of restart values, such as joules per token; they need not spread alike.

    Raises:
        ValueError: One of them has fewer than two values, or one that is not above 0.

    Source: Welch's unequal-variances t-test (Biometrika 34, 1947), degrees of freedom after Satterthwaite.
    """
    if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
        raise ValueError(f"two repeats above 0 of each are needed to compare, not {len(first)} and {len(second)}")
    logs = [np.log(np.asarray(values, dtype=float)) for values in (first, second)]
    parts = [float(np.var(values, ddof=1)) / len(values) for values in logs]
    error = sqrt(sum(parts))
    freedom = inf
    if error:
        freedom = error**4 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    return LogRatio(float(logs[1].mean() - logs[0].mean()), error, freedom)
