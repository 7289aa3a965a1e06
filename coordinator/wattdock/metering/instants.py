"""When a counter changed and in what steps it counts, as far as its recorded brackets tell.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.metering.timeline import Ticks

    Floats = NDArray[np.float64]

# A change is never closer to the one before it than this share of the period: 0.74 was the least on an H200 under load.
LEAST_INTERVAL_PERIODS = 0.5


def tick_instants(ticks: Ticks, base_ns: int) -> tuple[Floats, Floats, float]:
    """Return counter changes' estimated instants, s since `base_ns`, their standard uncertainties and the period, s.

    A change lies uniformly between two sampling instants, each of them uniform inside its call. Where other changes
    were missed before it, or where the last one is too close, the bracket's far end is cut off.
    """
    before_s = ((ticks.before_start_ns - base_ns) + (ticks.before_end_ns - base_ns)) / 2 / NS_PER_S
    after_s = ((ticks.after_start_ns - base_ns) + (ticks.after_end_ns - base_ns)) / 2 / NS_PER_S
    middle_s = (before_s + after_s) / 2
    period_s = float(np.median(np.diff(after_s))) if len(after_s) > 1 else 0.0
    spread_before_s = (ticks.before_end_ns - ticks.before_start_ns) / NS_PER_S
    spread_after_s = (ticks.after_end_ns - ticks.after_start_ns) / NS_PER_S
    if period_s:
        nearest_s = np.concatenate(([-np.inf], middle_s[:-1] + LEAST_INTERVAL_PERIODS * period_s))
        earliest_s = np.minimum(np.maximum(nearest_s, after_s - period_s), after_s)
        cut = earliest_s > before_s
        before_s = np.where(cut, earliest_s, before_s)
        spread_before_s = np.where(cut, 0.0, spread_before_s)
    variance_s2 = (after_s - before_s) ** 2 / 12 + (spread_before_s**2 + spread_after_s**2) / 36
    return (before_s + after_s) / 2, np.sqrt(variance_s2), period_s


def resolution_mj(ticks: Ticks) -> float:
    """Return the counter's step in millijoules: the largest number that divides all of its values.

    Values, not differences: differences of a steady load can all be equal.
    """
    return float(np.gcd.reduce(ticks.energy_mj)) if len(ticks.energy_mj) else 0.0
