"""Spread over restarts, confidence intervals, and tests of the difference between two sets of restarts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from math import exp, hypot, inf, log, sqrt
from operator import add, mul
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from wattdock.analysis.joules import NORMAL95
from wattdock.config import ExperimentConfig
from wattdock.text import SIGNIFICANT, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis.pass_energy import WindowFigure

ENERGY, SPEED, POWER = "energy_per_output_token_j", "output_tokens_per_s", "mean_power_w"
# Quantity → the two fields of a pass's counted part whose sums' ratio it is.
RATIOS = {
    ENERGY: ("total_j", "output_tokens"),
    SPEED: ("output_tokens", "duration_s"),
    POWER: ("total_j", "duration_s"),
}
CONFIDENCE = 0.95
# Fewest restarts with an interval.
LEAST_RESTARTS = ExperimentConfig().repeats.LEAST_FOR_INTERVAL
# Standard deviation of a figure between sessions, as a share: 0.06 % per °C of the GPU, and rooms 5 °C apart.
BETWEEN_SESSIONS = 0.003
# Student's t at 97.5 % for 1 to 9 degrees of freedom. Source: scipy.special.stdtrit, of which these are the values.
T_FACTORS = (
    *(12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146),
    *(2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205),
)


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float

    @classmethod
    def around(cls, value: float, half: float) -> Interval:
        """Return the interval of a value whose logarithm is known within ± `half`: value × exp(± `half`)."""
        return cls(value * exp(-half), value * exp(half))

    def __format__(self, form: str) -> str:
        """Return "[0.0521, 0.0539]", both ends in this format, or with four significant digits."""
        low, high = (significant(end, form or SIGNIFICANT) for end in self)
        return f"[{low}, {high}]"


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval from how restarts differ; None with too few of them."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Restarts:
    """One quantity of several restarts: the one figure of them all, its values, and how sure it is.

    Attributes:
        tops, bottoms: Of each restart what is divided, and by what: joules by tokens, tokens by seconds.
    """

    tops: tuple[float, ...] = ()
    bottoms: tuple[float, ...] = ()

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Restarts:
        """Return values that weigh alike, such as those of boards."""
        return cls(tuple(values), (1.0,) * len(values))

    @classmethod
    def of_groups(cls, groups: Sequence[Sequence[WindowFigure]], quantity: str) -> Restarts:
        """Return a value for each group of windows, of which none lacks the quantity."""

        def sums(name: str) -> tuple[float, ...]:
            return tuple(_sum(getattr(window, name) for window in group) for group in groups)

        top, bottom = RATIOS[quantity]
        return cls(sums(top), sums(bottom))

    def __len__(self) -> int:
        return len(self.tops)

    def __add__(self, other: Restarts) -> Restarts:
        return Restarts(self.tops + other.tops, self.bottoms + other.bottoms)

    @property
    def values(self) -> list[float]:
        """The quantity of each restart."""
        return [top / bottom for top, bottom in zip(self.tops, self.bottoms, strict=True)]

    @property
    def value(self) -> float:
        """The figure: a sum ÷ a sum, so that longer restarts weigh more."""
        return _sum(self.tops) / _sum(self.bottoms)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the values' logarithms; None from one value, or where one is not above 0."""
        logs = [log(value) for value in self.values if value > 0]
        return pooled_deviation([logs]) if len(logs) == len(self) > 1 else None

    @property
    def relative_error(self) -> float:
        """Standard error of the logarithm of `value`; 0 where `deviation` is None.

        Restarts scatter alike, however long they are: a ratio estimator's error is too small where one is much longer.
        """
        return (self.deviation or 0.0) * hypot(*self.bottoms) / _sum(self.bottoms)

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of `value` (Student's t, n−1, on the logarithm); None with under `LEAST_RESTARTS`.

        None also where a value is not above 0, and so has no logarithm.
        """
        return self.interval_beside(0.0)

    def interval_beside(self, known: float | None) -> Interval | None:
        """Return the interval with a relative standard uncertainty that restarts do not show; None where unknown."""
        if len(self) < LEAST_RESTARTS or known is None or self.deviation is None:
            return None
        return Interval.around(self.value, hypot(t_factor(len(self) - 1) * self.relative_error, NORMAL95 * known))

    def figure(self, known: float | None = 0.0) -> Figure:
        """Return the figure with its interval, see `interval_beside`."""
        return Figure(self.value, self.interval_beside(known))


def value_and_ends(figure: Figure | None) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval, None for what was not measured."""
    if figure is None:
        return None, None, None
    low, high = figure.interval or (None, None)
    return figure.value, low, high


def by_restart(windows: Sequence[WindowFigure]) -> list[list[WindowFigure]]:
    """Return each restart's windows, restarts in order."""
    groups: dict[int, list[WindowFigure]] = {}
    for window in windows:
        groups.setdefault(window.restart, []).append(window)
    return [groups[number] for number in sorted(groups)]


def _sum(values: Iterable[float]) -> float:
    """Add up from left to right: `sum` of Python 3.12 rounds differently from that of 3.11."""
    return reduce(add, values)


@cache
def t_factor(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors lie between a mean and an end of its interval, by Student's t."""
    # Importing scipy takes a tenth of what a command may take.
    if confidence == CONFIDENCE and freedom in range(1, len(T_FACTORS) + 1):
        return T_FACTORS[int(freedom) - 1]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


@dataclass(frozen=True)
class Difference:
    """How far the second figure lies from the first: their ratio − 1.

    Attributes:
        interval: Of 95 %, relative.
        p_value: Chance of a difference at least this large between repeats of the same experiment.
        log_ratio: Logarithm of the ratio.
        log_error: Standard error of `log_ratio`; 0 where all repeats of each side are equal.
        freedom: Degrees of freedom of the error; infinite where that is 0.
    """

    relative: float
    interval: Interval
    p_value: float
    log_ratio: float
    log_error: float
    freedom: float

    def p_not_above(self, relative: float) -> float:
        """Return the chance of an estimate this high or higher if the true difference were `relative`; one-sided."""
        return _p_up_to(log(1 + relative) - self.log_ratio, self.log_error, self.freedom)

    def p_not_below(self, relative: float) -> float:
        """Return the chance of an estimate this low or lower if the true difference were `relative`; one-sided."""
        return _p_up_to(self.log_ratio - log(1 + relative), self.log_error, self.freedom)


def difference(first: Restarts, second: Restarts, *, known: float = 0.0) -> Difference:
    """Compare two figures, such as joules per token; how their restarts spread may differ.

    Args:
        known: Standard uncertainty of the ratio's logarithm that the restarts do not show; taken as known exactly.

    Raises:
        ValueError: A side has fewer than two restarts, or a value that is not above 0.

    Source: Welch's unequal-variances t-test; the error of a logarithm is the relative error (delta method).
    """
    sides = (first, second)
    if min(map(len, sides)) < 2 or min(*first.values, *second.values) <= 0:
        raise ValueError(f"two repeats above 0 of each are needed to compare, not {len(first)} and {len(second)}")
    parts = [(side.relative_error, len(side) - 1) for side in sides]
    error = hypot(*(part for part, _ in parts))
    return of_logarithm(log(second.value / first.value), error, effective_freedom(error, parts), known)


def paired_difference(pairs: Sequence[tuple[float, float]], *, known: float = 0.0) -> Difference:
    """Compare two arms that were measured in turns, restart by restart; what both share in a restart cancels.

    Args:
        pairs: The first and the second arm's figure in each of two restarts or more, all above 0.
        known: As in `difference`.

    Source: Student's paired t-test (Biometrika 6, 1908), on the differences of logarithms.
    """
    logs = [log(second / first) for first, second in pairs]
    return of_logarithm(fmean(logs), stdev(logs) / sqrt(len(logs)), len(logs) - 1, known)


def effective_freedom(error: float, parts: Iterable[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a standard error: of `parts` with theirs, and others that are known exactly.

    Source: Welch, Biometrika 34 (1947) 28; Satterthwaite, Biometrics Bulletin 2 (1946) 110.
    """
    doubt = reduce(add, (part**4 / freedom for part, freedom in parts if part), 0.0)
    return error**4 / doubt if doubt else inf


def with_known(error: float, freedom: float, known: float) -> tuple[float, float]:
    """Return a standard error with a part that is known exactly, and its degrees of freedom.

    Source: effective degrees of freedom (Welch, Satterthwaite). From few restarts they narrow the interval where the
    known part is small, and it holds in 92 of 100 cases; never narrower than without that part, it holds in 94 to 96.
    """
    both = hypot(error, known)
    either = (error, freedom), (both, effective_freedom(both, [(error, freedom)]))
    return max(either, key=lambda each: t_factor(each[1]) * each[0])


def of_logarithm(estimate: float, error: float, freedom: float, known: float = 0.0) -> Difference:
    """Return the difference of this logarithm of a ratio, whose error has a `known` part that restarts do not show."""
    error, freedom = with_known(error, freedom, known)
    half = t_factor(freedom) * error
    interval = Interval(exp(estimate - half) - 1, exp(estimate + half) - 1)
    p_value = min(1.0, 2 * min(_p_up_to(estimate, error, freedom), _p_up_to(-estimate, error, freedom)))
    return Difference(exp(estimate) - 1, interval, p_value, estimate, error, freedom)


def _p_up_to(gap: float, error: float, freedom: float) -> float:
    """Return the chance that a t-distributed error of this size is at most `gap`."""
    from scipy.special import stdtr

    return float(stdtr(freedom, gap / error)) if error else float(gap >= 0)


@dataclass(frozen=True)
class ScoreDifference:
    """How the scores of the items that two results share differ: the second less the first.

    Attributes:
        interval: Of 95 %, over items.
        same_answers: Share of them with the same answer.
        fell: Whether the score fell by more than the margin; None where that cannot be told.
        least_margin: The smallest margin beyond which these items rule out a fall.
    """

    items: int
    difference: float
    interval: Interval
    same_answers: float
    fell: bool | None
    least_margin: float

    @classmethod
    def of(cls, differences: Sequence[float], same_answers: float, margin: float, room: float = 0.0) -> ScoreDifference:
        """Return what differences of items show.

        Args:
            room: By how much the first score could be higher without its limit of tokens: a fall from there is none
                that was ruled out. The second has its score under that limit, and falls with it.

        Source: paired differences, with two pairs of opposite differences added in half, as Agresti and Min do for
        2 × 2 tables (Statistics in Medicine 24 (2005) 729): where all items are equal, more items would not all be.
        """
        mean, count = fmean(differences), len(differences) + 2
        variance = (_sum(map(mul, differences, differences)) + 1) / count - (_sum(differences) / count) ** 2
        half = t_factor(count - 1) * sqrt(variance / count)
        interval = Interval(mean - half, mean + half)
        low = interval.low - room
        fell = True if interval.high < -margin else False if low > -margin else None
        return cls(len(differences), mean, interval, same_answers, fell, max(-low, 0.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the same order.

    Source: Holm, A simple sequentially rejective multiple test procedure (Scandinavian Journal of Statistics 6, 1979).
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = highest
    return adjusted


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation of values around their own group's mean, pooled; None with one value in each."""
    freedom = sum(len(group) - 1 for group in groups)
    squares = []
    for group in groups:
        mean = _sum(group) / len(group)
        distances = [value - mean for value in group]
        squares.append(_sum(map(mul, distances, distances)))
    return sqrt(_sum(squares) / freedom) if freedom else None
