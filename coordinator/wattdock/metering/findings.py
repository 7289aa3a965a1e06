"""What a finished recording shows that limits its use: gaps, resets, a frozen counter.

Pure: arrays in, events out. Reads no hardware.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import MeterEvent

if TYPE_CHECKING:
    from wattdock.metering.timeline import Series, Ticks

# Between 1.26 periods, the longest interval seen on an H200 under load, and the 2 of a missed change.
GAP_PERIODS = 1.7
FROZEN_S = 5.0
# Below this a counter may stand still because the GPU is off the bus's power, not because it froze.
FROZEN_POWER_W = 1.0


def period_s(ticks: Ticks) -> float | None:
    """Return the median interval between counter changes in seconds; None with fewer than three changes."""
    if len(ticks.energy_mj) < 3:
        return None
    return float(np.median(np.diff(ticks.after_start_ns))) / NS_PER_S


def counter_events(ticks: Ticks, power: Series | None, *, start_ns: int, end_ns: int) -> tuple[MeterEvent, ...]:
    """Return gaps, resets and standstills of one GPU's counter, in order of time.

    Args:
        ticks: The counter's changes.
        power: Any power series in watts; without one a counter that stands still is not called frozen.
        start_ns: When the recording began.
        end_ns: When it ended.
    """
    events = [*_gaps(ticks), *_resets(ticks), *_standstills(ticks, power, start_ns=start_ns, end_ns=end_ns)]
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _gaps(ticks: Ticks) -> list[MeterEvent]:
    usual_s = period_s(ticks)
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
