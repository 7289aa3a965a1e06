"""Compare two ways of doing the same work on a machine whose speed drifts: paired blocks, and what they can resolve.

Pure statistics: runs nothing and knows neither engines nor meters. Rates are work per time, so more is better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, exp, log, sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal

from scipy.stats import t as student

if TYPE_CHECKING:
    from collections.abc import Sequence

Arm = Literal["A", "B"]
Verdict = Literal["holds", "fails", "unresolved"]

CONFIDENCE = 0.95
# The share of a quadruple's turns that count: those in which each arm agrees best with itself. Why, and why half:
# docs/decisions/0030-comparing-arms.md.
STEADY = 0.5
# How much of these is left out at each end: a host that stalls for a tenth of a second hits few of them, and a mean
# would be those.
TRIMMED = 0.2
# A drift that is linear cancels in each of them, one that is bent in the same way between the two. Either of them again
# and again puts each arm behind itself as often as behind the other: what a pass leaves to the next one disturbs both.
ORDERS: tuple[tuple[Arm, ...], ...] = (("A", "B", "B", "A"), ("B", "A", "A", "B"))


def order(number: int) -> tuple[Arm, ...]:
    """Return the arms of every four passes of quadruple `number`, from 0."""
    return ORDERS[number % 2]


@dataclass(frozen=True)
class TurnSeen:
    """What four passes of equal work, two of each arm, say.

    Attributes:
        log_ratio: Natural logarithm of A's rate over B's: what changes more slowly than the turn cancels.
        unrest: How far each arm is from itself: the sum of the distances between the logarithms of its two rates. A
            ratio between the arms cancels in it; what slows an arm now and then does not, be it the machine or the arm.
    """

    log_ratio: float
    unrest: float


def turn_seen(arms: Sequence[Arm], rates: Sequence[float]) -> TurnSeen:
    """Return what a turn says, from one rate per place in `arms`, two of each."""
    (a1, a2), (b1, b2) = ([log(rate) for of, rate in zip(arms, rates, strict=True) if of == arm] for arm in ("A", "B"))
    return TurnSeen((a1 + a2 - b1 - b2) / 2, abs(a1 - a2) + abs(b1 - b2))


def steady_mean(turns: Sequence[TurnSeen]) -> float:
    """Return the trimmed mean log ratio of the steadiest half of the turns, rounded up: of one, its own.

    It tells the ratio where neither arm was disturbed; a cost that comes and goes is for plain means to show.
    """
    steadiest = sorted(turns, key=lambda turn: turn.unrest)[: ceil(STEADY * len(turns))]
    return trimmed_mean([turn.log_ratio for turn in steadiest])


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the `TRIMMED` lowest and highest shares, each rounded down to whole values."""
    left_out = int(TRIMMED * len(values))
    return mean(sorted(values)[left_out : len(values) - left_out])


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


def judge(seen: Bounds, limit: float) -> Verdict:
    """Return whether the ratio is shown to be at least `limit`, shown to be below it, or neither.

    A ratio above 1 counts as 1, since A does all that B does and more: above lies chance. A lower bound above 1 is no
    chance: the arms differ in something else too, which may hide a cost, so that nothing is shown.
    """
    if seen.lower is not None and seen.lower > 1:
        return "unresolved"
    if seen.margin is not None and min(seen.ratio, 1.0) * (1 - seen.margin) >= limit:
        return "holds"
    if seen.upper is not None and seen.upper < limit:
        return "fails"
    return "unresolved"


@dataclass
class Claim:
    """A ratio that shall be at least `limit`, and what was seen of it so far.

    Attributes:
        what: What is compared, for people.
        planned: Quadruples that were decided on beforehand; stopping on a good figure would void the bound.
        log_ratios: One per quadruple so far.
        plain: The same from plain means over all turns, to be seen beside them.
    """

    what: str
    limit: float
    planned: int
    log_ratios: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    @property
    def seen(self) -> Bounds | None:
        """What the quadruples so far say; None before the first."""
        return bounds(self.log_ratios) if self.log_ratios else None

    @property
    def verdict(self) -> Verdict:
        """Unresolved until all planned quadruples are there.

        What is to hold must not be denied by plain means: neither their ratio below the limit, nor their bound above 1.
        What is to fail must not either: by their ratio at the limit or above. That their own bound lies on the same
        side is not asked for: a few stalls decide it.
        """
        seen = self.seen
        if seen is None or seen.n < self.planned:
            return "unresolved"
        verdict = judge(seen, self.limit)
        plain = bounds(self.plain) if self.plain else seen
        is_below = plain.ratio < self.limit
        denied = {"holds": is_below or (plain.lower or 0) > 1, "fails": not is_below}
        return "unresolved" if denied.get(verdict) else verdict
