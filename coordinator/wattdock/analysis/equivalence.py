"""Whether two sets of independent repeats are as good as equal: within a margin that was set beforehand. Pure.

Not finding a difference does not show that there is none; this asks the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, log1p
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from wattdock.analysis.welch import welch

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

    Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657.
    """
    if not first or not second or min(*first, *second) <= 0:
        raise ValueError(f"positive repeats of both are needed, not {list(first)} and {list(second)}")
    if min(len(first), len(second)) < 2:
        relative = exp(fmean(map(log, second)) - fmean(map(log, first))) - 1
        counts = f"{len(first)} and {len(second)}"
        return Equivalence(relative, None, None, "undecided", f"no interval from {counts} restarts; 2 of each")
    found = welch(first, second)
    # Two one-sided tests at 5 % are passed where the 90 % interval lies inside.
    low, high = found.interval(1 - 2 * ALPHA)
    limit = log1p(margin)
    verdict: Verdict = "equivalent" if -limit < low and high < limit else "undecided"
    if low > limit or high < -limit:
        verdict = "not equivalent"
    reason = "the interval reaches over the margin; more restarts make it narrower" if verdict == "undecided" else None
    return Equivalence(found.relative, exp(low) - 1, exp(high) - 1, verdict, reason)
