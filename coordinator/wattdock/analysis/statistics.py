"""Spread over restarts, confidence intervals, and tests of the difference between two sets of restarts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from math import exp, inf, log, sqrt
from operator import add, attrgetter, mul
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field

from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis.energy import PassEnergy
    from wattdock.analysis.result import ExperimentResult

ENERGY, SPEED, POWER = "energy_per_output_token_j", "output_tokens_per_s", "mean_power_w"
# Quantity → the fields, of what counts of a pass, whose sums it is the ratio of.
RATIOS = {
    ENERGY: ("total_j", "output_tokens"),
    SPEED: ("output_tokens", "duration_s"),
    POWER: ("total_j", "duration_s"),
}
CONFIDENCE = 0.95
# Student's t at 97.5 % for 1 to 9 degrees of freedom. Source: scipy.special.stdtrit, of which these are the values.
T_FACTORS = (
    *(12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146),
    *(2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205),
)
TEST = "Welch's t-test on logarithms of restart values"
# Modified z-score, 0.6745 × deviation ÷ MAD. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
OUTLIER_SCORE, MAD_TO_SCORE, MEAN_DEVIATION_TO_SCORE = 3.5, 0.6745, 1.253314
COVERS = (
    "repetitions of this experiment on these GPUs, this machine and this day; not other GPUs of the model, other "
    "prompts, nor the sensors' gain"
)


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Return "[0.0521, 0.0539]", both ends in this format."""
        return f"[{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True)
class Figure:
    """A figure and its 95 % interval.

    Attributes:
        interval: None without one.
        covers: What the interval covers: timing alone where there was one restart only.
    """

    value: float
    interval: Interval | None = None
    covers: Literal["restarts", "timing"] = "restarts"


class Statistics(Stored):
    """Spread of joules per output token, or of tokens per second where there is no energy.

    Attributes:
        quantity: The figure described.
        per_restart: One value per restart: sum over its passes ÷ sum of its tokens.
        standard_deviation_within_restarts: Of passes around their restart's mean, pooled.
        ci95: Of the mean, from restart means, R−1 degrees of freedom; null with the reason.
        ci95_relative: (Upper end − mean) ÷ mean; the lower end may be cut off at 0.
        outliers: Passes far from the others; reported, never dropped.
        covers: What the interval holds for.
    """

    quantity: Literal["energy_per_output_token_j", "output_tokens_per_s"]
    per_pass: list[float]
    per_restart: list[float]
    mean: float
    standard_deviation_between_restarts: float | None
    standard_deviation_within_restarts: float | None = None
    ci95: Interval | None = None
    ci95_relative: float | None = None
    outliers: list[str] = Field(default_factory=list)
    covers: str | None = None
    reason: str | None = None


def restart_values(result: ExperimentResult, quantity: str) -> list[float]:
    """Return a quantity of each restart, in order; empty where a pass lacks it, or a restart has no output token.

    Args:
        quantity: A key of `RATIOS`.
    """
    passes = result.energy.passes if result.energy else []
    restarts = by_restart(passes)
    lacking = "total_j" in RATIOS[quantity] and any(measured.counted.total_j is None for measured in passes)
    if lacking or not all(any(measured.counted.output_tokens for measured in restart) for restart in restarts):
        return []
    return [ratio(restart, quantity) for restart in restarts]


def energy_figure(result: ExperimentResult) -> Figure | None:
    """Return the mean joules per output token over restarts; the interval of a single restart covers timing.

    None where energy was not measured.
    """
    energy = result.energy
    if energy is None or energy.total_j is None or energy.energy_per_output_token_j is None:
        return None
    if figure := _over_restarts(result, ENERGY):
        return figure
    mean_j, timing_j = energy.energy_per_output_token_j, energy.uncertainty.timing95_j
    if timing_j is None or not energy.total_j:
        return Figure(mean_j)
    half = timing_j / energy.total_j * mean_j
    return Figure(mean_j, Interval(max(mean_j - half, 0.0), mean_j + half), "timing")


def speed_figure(result: ExperimentResult) -> Figure | None:
    """Return the mean output tokens per second over restarts; None where nothing was measured."""
    if result.performance is None or result.performance.output_tokens_per_s is None:
        return None
    return _over_restarts(result, SPEED) or Figure(result.performance.output_tokens_per_s)


def _over_restarts(result: ExperimentResult, quantity: str) -> Figure | None:
    """Return the mean over restarts; None for a single restart."""
    values = restart_values(result, quantity)
    interval = mean_interval(values)
    return Figure(_mean(values), interval) if interval else None


def value_and_ends(figure: Figure | None) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval, None for what was not measured."""
    if figure is None:
        return None, None, None
    low, high = figure.interval or (None, None)
    return figure.value, low, high


def by_restart(passes: Sequence[PassEnergy]) -> list[list[PassEnergy]]:
    """Return each restart's passes, restarts in order."""
    groups: dict[int, list[PassEnergy]] = {}
    for measured in passes:
        groups.setdefault(measured.restart, []).append(measured)
    return [groups[number] for number in sorted(groups)]


def ratio(passes: Sequence[PassEnergy], quantity: str) -> float:
    """Return a quantity over several passes: a sum ÷ a sum, so that long passes weigh more.

    Args:
        quantity: A key of `RATIOS`; no pass lacks either of its fields.
    """
    numerator, denominator = RATIOS[quantity]
    counted = [measured.counted for measured in passes]
    return _sum(map(attrgetter(numerator), counted)) / _sum(map(attrgetter(denominator), counted))


def _sum(values: Iterable[float]) -> float:
    """Add up from left to right: `sum` of Python 3.12 rounds differently from that of 3.11."""
    return reduce(add, values)


def _mean(values: Sequence[float]) -> float:
    return _sum(values) / len(values)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the mean of independent values (Student's t, n−1); None with fewer than two.

    The interval is cut off at 0: these quantities cannot be negative, so that its coverage stays the same.
    """
    if len(values) < 2:
        return None
    mean, spread = _mean(values), _standard_deviation(values)
    half = t_factor(len(values) - 1) * spread / sqrt(len(values))
    return Interval(max(mean - half, 0.0), mean + half)


def _standard_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two values or more, with n−1 in the denominator."""
    mean = _mean(values)
    deviations = [value - mean for value in values]
    return sqrt(_sum(map(mul, deviations, deviations)) / (len(values) - 1))


@cache
def t_factor(freedom: float) -> float:
    """Return how many standard errors lie between a mean and an end of its interval, by Student's t."""
    # Importing scipy takes a tenth of what a command may take.
    if freedom in range(1, len(T_FACTORS) + 1):
        return T_FACTORS[int(freedom) - 1]
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; `difference` compares two of them.

    Raises:
        ValueError: There are no values, or one of them is not above 0.
    """
    if not values or min(values) <= 0:
        raise ValueError(f"values above 0 are needed for a geometric mean, not {list(values)}")
    return exp(fmean(map(log, values)))


def geometric_interval(values: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the geometric mean of independent values; None with fewer than two.

    Student's t on logarithms, as in `difference`: the interval never reaches 0.

    Raises:
        ValueError: A value is not above 0.
    """
    if len(values) < 2:
        return None
    mean, spread = geometric_mean(values), _standard_deviation(list(map(log, values)))
    reach = exp(t_factor(len(values) - 1) * spread / sqrt(len(values)))
    return Interval(mean / reach, mean * reach)


@dataclass(frozen=True)
class Difference:
    """How far the second mean lies from the first, as a ratio of geometric means − 1.

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

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval.low > 0 or self.interval.high < 0

    def p_not_above(self, relative: float) -> float:
        """Return the chance of an estimate this high or higher if the true difference were `relative`; one-sided."""
        return _p_up_to(log(1 + relative) - self.log_ratio, self.log_error, self.freedom)

    def p_not_below(self, relative: float) -> float:
        """Return the chance of an estimate this low or lower if the true difference were `relative`; one-sided."""
        return _p_up_to(self.log_ratio - log(1 + relative), self.log_error, self.freedom)


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two sets of restart values, such as joules per token; their variances may differ.

    Raises:
        ValueError: A set has fewer than two values, or a value that is not above 0.

    Source: Welch's unequal-variances t-test (Biometrika 34, 1947), degrees of freedom after Satterthwaite.
    """
    if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
        raise ValueError(f"two repeats above 0 of each are needed to compare, not {len(first)} and {len(second)}")
    logs = [np.log(np.asarray(values, dtype=float)) for values in (first, second)]
    parts = [float(np.var(values, ddof=1)) / len(values) for values in logs]
    estimate, error = float(logs[1].mean() - logs[0].mean()), sqrt(sum(parts))
    freedom, half = inf, 0.0
    if error:
        freedom = error**4 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
        half = t_factor(freedom) * error
    interval = Interval(exp(estimate - half) - 1, exp(estimate + half) - 1)
    p_value = min(1.0, 2 * min(_p_up_to(estimate, error, freedom), _p_up_to(-estimate, error, freedom)))
    return Difference(exp(estimate) - 1, interval, p_value, estimate, error, freedom)


def _p_up_to(gap: float, error: float, freedom: float) -> float:
    """Return the chance that a t-distributed error of this size is at most `gap`."""
    from scipy.special import stdtr

    return float(stdtr(freedom, gap / error)) if error else float(gap >= 0)


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


def statistics(passes: Sequence[PassEnergy]) -> Statistics | None:
    """Return the spread of joules per output token; of tokens per second where a pass has no energy.

    Per restart: the sum over its passes ÷ the sum of its tokens (or seconds); see `ratio`.
    """
    if not passes:
        return None
    counted = [measured.counted for measured in passes]
    quantity = ENERGY if all(part.total_j is not None and part.output_tokens for part in counted) else SPEED
    restarts = by_restart(passes)
    per_pass = [ratio([measured], quantity) for measured in passes]
    per_restart = [ratio(group, quantity) for group in restarts]
    mean = _mean(per_restart)
    interval = mean_interval(per_restart)
    return Statistics(
        quantity=quantity,
        per_pass=per_pass,
        per_restart=per_restart,
        mean=mean,
        standard_deviation_between_restarts=_standard_deviation(per_restart) if len(per_restart) > 1 else None,
        standard_deviation_within_restarts=pooled_deviation(
            [[ratio([measured], quantity) for measured in group] for group in restarts]
        ),
        ci95=interval,
        ci95_relative=interval[1] / mean - 1 if interval and mean else None,
        outliers=[
            f"restart {passes[i].restart + 1} pass {passes[i].pass_index + 1}: {per_pass[i]:.4g}"
            for i in _outlier_positions(per_pass)
        ],
        covers=COVERS if interval else None,
        reason=None if interval else f"no interval from {pluralize(len(per_restart), 'restart')}; set repeats.restarts",
    )


def statistical_j(total_j: float | None, passes: Sequence[PassEnergy]) -> float | None:
    """Return the standard uncertainty of the passes' total from the spread between restarts, J.

    None with fewer than two restarts, and where a pass has no joules per output token: the spread of speed says
    nothing about joules.
    """
    spread = statistics(passes)
    if spread is None or total_j is None or spread.standard_deviation_between_restarts is None:
        return None
    if spread.quantity != ENERGY or not spread.mean:
        return None
    return total_j * spread.standard_deviation_between_restarts / spread.mean / sqrt(len(spread.per_restart))


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation of values around their own group's mean, pooled; None with one value in each."""
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.sum((np.array(group) - np.mean(group)) ** 2)) for group in groups)
    return sqrt(squares / freedom) if freedom else None


def _outlier_positions(values: Sequence[float]) -> list[int]:
    """Positions of the values that stand out by their modified z-score.

    Where more than half of the values are equal, by the mean absolute deviation instead of the median one.
    Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
    """
    distances = np.abs(np.array(values) - np.median(values))
    deviation = float(np.median(distances)) / MAD_TO_SCORE or MEAN_DEVIATION_TO_SCORE * float(np.mean(distances))
    return np.flatnonzero(distances > OUTLIER_SCORE * deviation).tolist() if deviation else []
