"""What a GPU's readings themselves say against them: gaps, resets and standstills. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import MJ_PER_J, POWER_SERIES, SAMPLES, MeterEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.metering.timeline import EventKind, Series, Ticks

# Periods between two changes from which a change was missed: 1.26 was the longest interval on an H200 under load, and a
# missed change makes 2.
GAP_PERIODS = 1.7
# Longest distance of two power samples without a gap: twice the longest seen on an H200.
SAMPLE_GAP_S = 0.1
# From here on the counter alone gives energy. Longer than the second between two reads of an unused GPU's samples.
SAMPLES_CEASED_S = 2.0
FROZEN_S = 5.0
# Least power of a GPU whose counter should move.
FROZEN_POWER_W = 1.0


def timeline_events(
    ticks: Ticks, series: Mapping[str, Series], *, start_ns: int, end_ns: int, end_mj: int
) -> tuple[MeterEvent, ...]:
    """Return gaps, resets and standstills of one GPU's counter, and gaps between its power samples, by time.

    Args:
        series: With power in watts; without it a counter that stands still is not called frozen.
        start_ns: When the counter was read for the first time.
        end_ns: When it was read for the last time.
        end_mj: What it showed then.
    """
    powers = [series[name] for name in POWER_SERIES if name in series]
    events = list(_standstills(ticks, powers, start_ns=start_ns, end_ns=end_ns, end_mj=end_mj))
    for index in np.flatnonzero(np.diff(ticks.energy_mj) < 0):
        values = {"before_mj": float(ticks.energy_mj[index]), "after_mj": float(ticks.energy_mj[index + 1])}
        events.append(MeterEvent(int(ticks.after_start_ns[index + 1]), "counter_reset", values=values))
    if SAMPLES in series:
        at_ns = np.concatenate(([start_ns], series[SAMPLES].at_ns, [end_ns]))
        intervals_s = np.diff(at_ns) / NS_PER_S
        # The newest samples may not have been read yet.
        intervals_s[-1] -= SAMPLES_CEASED_S - SAMPLE_GAP_S
        for index in np.flatnonzero(intervals_s > SAMPLE_GAP_S):
            missing_s = (int(at_ns[index + 1]) - int(at_ns[index])) / NS_PER_S
            kind: EventKind = "samples_ceased" if missing_s > SAMPLES_CEASED_S else "sample_gap"
            events.append(MeterEvent(int(at_ns[index]), kind, int(at_ns[index + 1]), {"missing_s": missing_s}))
    elif usual_s := ticks.period_s:
        # With samples, the sampler looks for some changes only, and longer intervals are no gaps.
        intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
        for index in np.flatnonzero(intervals_s > GAP_PERIODS * usual_s):
            values = {"interval_s": float(intervals_s[index]), "usual_s": usual_s}
            events.append(MeterEvent(int(ticks.after_start_ns[index + 1]), "gap", values=values))
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _standstills(
    ticks: Ticks, powers: list[Series], *, start_ns: int, end_ns: int, end_mj: int
) -> Iterator[MeterEvent]:
    """Yield an event for each stretch in which the counter stood still although the GPU drew power."""
    # From the end of the first read of a value to its last read: a counter that answers late does not stand still.
    first_ns = np.concatenate(([start_ns], ticks.after_end_ns))
    last_ns = np.concatenate((ticks.before_start_ns, [end_ns]))
    ends_ns = np.concatenate((ticks.after_end_ns, [end_ns]))
    # A counter that nobody read went on meanwhile, as its next value, or the last one read, shows.
    energy_mj = [*ticks.energy_mj, end_mj]
    grown_j = np.diff([energy_mj[0], *energy_mj]) / MJ_PER_J
    # Power is looked up for the few long intervals only: a session has tens of thousands of short ones.
    for index in np.flatnonzero(last_ns - first_ns >= FROZEN_S * NS_PER_S):
        begin_ns, until_ns = int(first_ns[index]), int(last_ns[index])
        stood_s = (until_ns - begin_ns) / NS_PER_S
        readings_w = (power.value[(power.at_ns >= begin_ns) & (power.at_ns <= until_ns)] for power in powers)
        mean_w = next((float(np.mean(power_w)) for power_w in readings_w if len(power_w)), 0.0)
        if mean_w > FROZEN_POWER_W and grown_j[index] < mean_w * stood_s / 2:
            values = {"stood_s": stood_s, "mean_w": mean_w}
            yield MeterEvent(begin_ns, "counter_frozen", int(ends_ns[index]), values)
