"""Whether two sets of independent repeats are as good as equal: within a margin that was set beforehand. Pure.

Not finding a difference does not show that there is none; this asks the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log1p, sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

ALPHA = 0.05
METHOD = "two one-sided Welch t-tests (TOST) on restart means of the logarithm, 90 % interval"
Verdict = Literal["equivalent", "not equivalent", "undecided"]


@dataclass(frozen=True)
class Equivalence:
    """How far the second geometric mean lies from the first, and what that says.

    Attributes:
        relative: Their ratio − 1.
        low, high: 90 % interval of it; None with fewer than two repeats of either.
        verdict: "equivalent" where the interval lies inside the margin, "not equivalent" where it lies outside.
        reason: Why it is undecided, where it is.
    """

    relative: float
    low: float | None
    high: float | None
    verdict: Verdict
    reason: str | None = None


def equivalence(first: Sequence[float], second: Sequence[float], *, margin: float) -> Equivalence:
    """Compare positive restart values, such as joules per token.

    Args:
        margin: 0.05 for 5 %: the ratio of the means must lie between 1 ÷ 1.05 and 1.05, so that it does not matter
            which of the two comes first.

    Raises:
        ValueError: One of them is empty or holds a value that is not positive.

    Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657; Welch 1947 for unequal variances.
    """
    if not first or not second or min(*first, *second) <= 0:
        raise ValueError(f"positive repeats of both are needed, not {list(first)} and {list(second)}")
    logs = [np.log(values) for values in (first, second)]
    gap = float(np.mean(logs[1]) - np.mean(logs[0]))
    if min(len(first), len(second)) < 2:
        counts = f"{len(first)} and {len(second)}"
        return Equivalence(exp(gap) - 1, None, None, "undecided", f"no interval from {counts} restarts; 2 of each")
    half = _half_width([float(np.var(one, ddof=1)) / len(one) for one in logs], [len(one) for one in logs])
    low, high, limit = gap - half, gap + half, log1p(margin)
    verdict: Verdict = "equivalent" if -limit < low and high < limit else "undecided"
    if low > limit or high < -limit:
        verdict = "not equivalent"
    reason = "the interval reaches over the margin; more restarts make it narrower" if verdict == "undecided" else None
    return Equivalence(exp(gap) - 1, exp(low) - 1, exp(high) - 1, verdict, reason)


def _half_width(parts: Sequence[float], counts: Sequence[int]) -> float:
    """Half of the 90 % interval of a difference of means with these squared standard errors."""
    from scipy.special import stdtrit

    error = sqrt(sum(parts))
    if not error:
        return 0.0
    freedom = error**4 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return float(stdtrit(freedom, 1 - ALPHA)) * error
