"""What a GPU's readings themselves say against them: gaps, resets and standstills. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import MJ_PER_J, POWER_SERIES, SAMPLES, MeterEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.metering.timeline import EventKind, Series, Ticks

# Between 1.26 periods, the longest interval seen on an H200 under load, and the 2 of a missed change.
GAP_PERIODS = 1.7
# Twice the longest distance of an H200's power samples.
SAMPLE_GAP_S = 0.1
# The counter is read alone then. Of a GPU that nobody uses, samples are read once a second.
SAMPLES_CEASED_S = 2.0
FROZEN_S = 5.0
# Below this a counter may stand still because the GPU is off the bus's power, not because it froze.
FROZEN_POWER_W = 1.0


def timeline_events(
    ticks: Ticks, series: Mapping[str, Series], *, start_ns: int, end_ns: int, end_mj: int
) -> tuple[MeterEvent, ...]:
    """Return gaps, resets and standstills of one GPU's counter, and gaps between its power samples, by time.

    Args:
        ticks: The counter's changes.
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
    # Where there are samples, only some changes are looked for.
    events += _sample_gaps(series[SAMPLES], start_ns, end_ns) if SAMPLES in series else _gaps(ticks)
    return tuple(sorted(events, key=lambda event: event.at_ns))


def _sample_gaps(samples: Series, start_ns: int, end_ns: int) -> Iterator[MeterEvent]:
    at_ns = np.concatenate(([start_ns], samples.at_ns, [end_ns]))
    intervals_s = np.diff(at_ns) / NS_PER_S
    # The newest ones may not have been asked for yet.
    intervals_s[-1] -= SAMPLES_CEASED_S - SAMPLE_GAP_S
    for index in np.flatnonzero(intervals_s > SAMPLE_GAP_S):
        first_ns, last_ns = int(at_ns[index]), int(at_ns[index + 1])
        missing_s = (last_ns - first_ns) / NS_PER_S
        kind: EventKind = "samples_ceased" if missing_s > SAMPLES_CEASED_S else "sample_gap"
        yield MeterEvent(first_ns, kind, last_ns, {"missing_s": missing_s})


def _gaps(ticks: Ticks) -> Iterator[MeterEvent]:
    usual_s = ticks.period_s or 0.0
    intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
    for index in np.flatnonzero(intervals_s > GAP_PERIODS * usual_s) if usual_s else ():
        values = {"interval_s": float(intervals_s[index]), "usual_s": usual_s}
        yield MeterEvent(int(ticks.after_start_ns[index + 1]), "gap", values=values)


def _standstills(
    ticks: Ticks, powers: list[Series], *, start_ns: int, end_ns: int, end_mj: int
) -> Iterator[MeterEvent]:
    # From the end of the first read of a value to the last: a counter that answers late, or not, does not stand still.
    first_ns = np.concatenate(([start_ns], ticks.after_end_ns))
    last_ns = np.concatenate((ticks.before_start_ns, [end_ns]))
    ends_ns = np.concatenate((ticks.after_end_ns, [end_ns]))
    # One that was not looked for, or did not answer, went on meanwhile; the next value, or the last one read, tells.
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
