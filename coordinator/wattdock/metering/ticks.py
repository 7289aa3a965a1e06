"""What an energy counter's recorded changes show: when each happened, gaps, resets, a frozen counter. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import MeterEvent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.metering.timeline import Series, Ticks

    Floats = NDArray[np.float64]

# A change is never closer to the one before it than this share of the period: 0.74 was the least on an H200 under load.
LEAST_INTERVAL_PERIODS = 0.5
# Between 1.26 periods, the longest interval seen on an H200 under load, and the 2 of a missed change.
GAP_PERIODS = 1.7
FROZEN_S = 5.0
# Below this a counter may stand still because the GPU is off the bus's power, not because it froze.
FROZEN_POWER_W = 1.0


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


def counter_events(ticks: Ticks, power: Series | None, *, start_ns: int, end_ns: int) -> tuple[MeterEvent, ...]:
    """Return gaps, resets and standstills of one GPU's counter, by time.

    Args:
        ticks: The counter's changes.
        power: Any power series in watts; without one a counter that stands still is not called frozen.
        start_ns: When the recording began.
        end_ns: When it ended.
    """
    events = [*_gaps(ticks), *_resets(ticks), *_standstills(ticks, power, start_ns=start_ns, end_ns=end_ns)]
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _gaps(ticks: Ticks) -> list[MeterEvent]:
    usual_s = ticks.period_s
    if usual_s is None:
        return []
    intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
    return [
        MeterEvent(
            at_ns=int(ticks.after_start_ns[index + 1]),
            kind="gap",
            message=f"{intervals_s[index]:.3f} s between two counter changes; usual {usual_s:.3f} s",
        )
        for index in np.flatnonzero(intervals_s > GAP_PERIODS * usual_s)
    ]


def _resets(ticks: Ticks) -> list[MeterEvent]:
    return [
        MeterEvent(
            at_ns=int(ticks.after_start_ns[index + 1]),
            kind="counter_reset",
            message=f"counter went from {ticks.energy_mj[index]} to {ticks.energy_mj[index + 1]} mJ;"
            " was the driver reloaded?",
        )
        for index in np.flatnonzero(np.diff(ticks.energy_mj) < 0)
    ]


def _standstills(ticks: Ticks, power: Series | None, *, start_ns: int, end_ns: int) -> list[MeterEvent]:
    if power is None:
        return []
    known_ns = np.concatenate(([start_ns], ticks.after_start_ns, [end_ns]))
    events = []
    for begin_ns, until_ns in itertools.pairwise(known_ns):
        inside = (power.at_ns >= begin_ns) & (power.at_ns <= until_ns)
        stood_s = (until_ns - begin_ns) / NS_PER_S
        if stood_s >= FROZEN_S and inside.any() and float(np.median(power.value[inside])) > FROZEN_POWER_W:
            mean_w = float(np.mean(power.value[inside]))
            message = f"counter did not change for {stood_s:.1f} s while the GPU drew {mean_w:.0f} W"
            at_ns = int(begin_ns + FROZEN_S * NS_PER_S)
            events.append(MeterEvent(at_ns=at_ns, kind="counter_frozen", message=message))
    return events
