"""Compare two ways of doing the same work on a machine whose speed drifts: paired blocks, and what they can resolve.

Pure statistics: runs nothing and knows neither engines nor meters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal

from scipy.stats import t as student

if TYPE_CHECKING:
    from collections.abc import Sequence

Arm = Literal["A", "B"]
Verdict = Literal["holds", "fails", "unresolved"]

CONFIDENCE = 0.95
# A linear drift cancels in each order, a quadratic one between the two. Each arm follows itself as often as the other
# arm, so that the carry-over of a pass falls on both.
ORDERS: tuple[tuple[Arm, ...], ...] = (("A", "B", "B", "A"), ("B", "A", "A", "B"))


def order(number: int) -> tuple[Arm, ...]:
    """Return the arms of every four passes of quadruple `number`; -1 is the one before the first."""
    return ORDERS[number % 2]


def log_ratio(passes: Sequence[tuple[Arm, float]]) -> float:
    """Return the natural logarithm of A's rate over B's, from the times of passes of equal work, as many of each arm.

    Times are summed first, so that a pause counts for as long as it lasts, however rare it is.
    """
    took = {arm: sum(time for of, time in passes if of == arm) for arm in ORDERS[0]}
    return log(took["B"] / took["A"])


def carryover_log_ratio(passes: Sequence[tuple[Arm, float]]) -> float:
    """Return the carry-over of a pass: the log ratio of the passes after a pass of A to those after a pass of B.

    Args:
        passes: In the order they were run in; at least two turns of an `order`.
    """
    after = {arm: mean(time for (before, _), (_, time) in pairwise(passes) if before == arm) for arm in ORDERS[0]}
    return log(after["B"] / after["A"])


@dataclass(frozen=True)
class Bounds:
    """What n independent log ratios say about the ratio behind them.

    Attributes:
        ratio: Geometric mean.
        lower, upper: One-sided bounds, each at `CONFIDENCE` by itself; None where n < 2.
        margin: How far below the ratio the lower bound lies, as a share. A cost smaller than this cannot be told from
            none, and a limit nearer to 1 than this cannot be shown; None where n < 2.
    """

    n: int
    ratio: float
    lower: float | None
    upper: float | None
    margin: float | None


def bounds(log_ratios: Sequence[float]) -> Bounds:
    """Return mean and bounds by Student's t over quadruples.

    Source: for independent normal values, mean ± t(0.95, n − 1)·s/√n are one-sided 95 % bounds of their mean.
    """
    n, middle = len(log_ratios), mean(log_ratios)
    if n < 2:
        return Bounds(n, exp(middle), None, None, None)
    half = float(student.ppf(CONFIDENCE, n - 1)) * stdev(log_ratios) / sqrt(n)
    return Bounds(n, exp(middle), exp(middle - half), exp(middle + half), 1 - exp(-half))


def judge(estimate: Bounds, limit: float) -> Verdict:
    """Return whether the ratio is shown to be at least `limit`, shown to be below it, or neither.

    A ratio above 1 counts as 1: A does everything that B does and more, so it can be faster by chance only. A lower
    bound above 1 is not chance: the arms differ in something else, too, which may hide a cost.
    """
    if estimate.lower is not None and estimate.lower > 1:
        return "unresolved"
    if estimate.margin is not None and min(estimate.ratio, 1.0) * (1 - estimate.margin) >= limit:
        return "holds"
    if estimate.upper is not None and estimate.upper < limit:
        return "fails"
    return "unresolved"


@dataclass
class Claim:
    """A ratio that must be at least `limit`, and its measurements so far.

    Attributes:
        what: What is compared, for people.
        planned: Quadruples decided on beforehand; stopping at a good figure would void the bound.
        log_ratios: One per quadruple so far.
        void: Why the measurement is invalid; None if it is valid.
    """

    what: str
    limit: float
    planned: int
    log_ratios: list[float] = field(default_factory=list)
    void: str | None = None

    @property
    def estimate(self) -> Bounds | None:
        """The ratio and its bounds from the quadruples so far; None before the first."""
        return bounds(self.log_ratios) if self.log_ratios else None

    @property
    def verdict(self) -> Verdict:
        """Unresolved until all planned quadruples are there."""
        estimate = self.estimate
        complete = estimate and estimate.n == self.planned and not self.void
        return judge(estimate, self.limit) if estimate and complete else "unresolved"
