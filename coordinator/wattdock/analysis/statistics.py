"""Spread over passes and restarts. Pure."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.derived_schema import Statistics
from wattdock.analysis.intervals import deviation_interval, mean_interval
from wattdock.analysis.quantities import ENERGY, SPEED, by_restart, ratio
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.energy_schema import EnergyResult, PassEnergy

# Modified z-score, 0.6745 × deviation ÷ MAD. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
OUTLIER_SCORE, MAD_TO_SCORE, MEAN_DEVIATION_TO_SCORE = 3.5, 0.6745, 1.253314
COVERS = (
    "repetitions of this experiment on these GPUs, this machine and this day; not other GPUs of the model, other "
    "prompts, nor the sensors' gain"
)


def statistics(passes: Sequence[PassEnergy]) -> Statistics | None:
    """Return the spread of joules per output token; of tokens per second where a pass has no energy.

    Per restart: the sum over its passes ÷ the sum of its tokens (or seconds); see `ratio`.
    """
    if not passes:
        return None
    quantity = ENERGY if all(one.total_j is not None and one.output_tokens for one in passes) else SPEED
    restarts = by_restart(passes)
    per_pass = [ratio([one], quantity) for one in passes]
    per_restart = [ratio(group, quantity) for group in restarts]
    between = _spread(per_restart)
    within, within_freedom = _within([[ratio([one], quantity) for one in group] for group in restarts])
    mean = float(np.mean(per_restart))
    interval = mean_interval(per_restart)
    return Statistics(
        quantity=quantity,
        per_pass=per_pass,
        per_restart=per_restart,
        mean=mean,
        standard_deviation_between_restarts=between,
        standard_deviation_between_passes=_spread(per_pass),
        standard_deviation_within_restarts=within,
        interval_between_restarts=deviation_interval(between, len(per_restart) - 1),
        interval_within_restarts=deviation_interval(within, within_freedom),
        ci95=interval,
        ci95_relative=interval[1] / mean - 1 if interval and mean else None,
        outliers=[
            f"restart {passes[i].restart + 1} pass {passes[i].pass_index + 1}: {per_pass[i]:.4g}"
            for i in _far(per_pass)
        ],
        covers=COVERS if interval else None,
        reason=None if interval else f"no interval from {pluralize(len(per_restart), 'restart')}; set repeats.restarts",
    )


def statistical_j(energy: EnergyResult) -> float | None:
    """Return the standard uncertainty of the total from the spread between restarts, J.

    None with fewer than two restarts, and where not every pass has joules per output token: how speed spreads says
    nothing about joules.
    """
    seen = statistics(energy.passes)
    if seen is None or energy.total_j is None or seen.standard_deviation_between_restarts is None:
        return None
    if seen.quantity != ENERGY or not seen.mean:
        return None
    return energy.total_j * seen.standard_deviation_between_restarts / seen.mean / sqrt(len(seen.per_restart))


def _within(groups: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """Standard deviation of passes around their own restart's mean, pooled, and its degrees of freedom."""
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(float(np.sum((np.array(group) - np.mean(group)) ** 2)) for group in groups)
    return (sqrt(squares / freedom) if freedom else None), freedom


def _far(values: Sequence[float]) -> list[int]:
    """Positions of the values that stand out by their modified z-score.

    Where more than half of the values are equal, by the mean absolute deviation instead of the median one.
    Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
    """
    distances = np.abs(np.array(values) - np.median(values))
    deviation = float(np.median(distances)) / MAD_TO_SCORE or MEAN_DEVIATION_TO_SCORE * float(np.mean(distances))
    return np.flatnonzero(distances > OUTLIER_SCORE * deviation).tolist() if deviation else []


def _spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
