"""Keep of a timeline what lies around some spans. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from wattdock.metering.timeline import GpuTimeline, Series, Ticks, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# A counter may tick so seldom that an interval holds none: energy at an instant needs a few ticks on either side.
NEIGHBOURS = 4

Intervals = tuple[tuple[int, int], ...]


def excerpt(timeline: Timeline, intervals: Sequence[tuple[int, int]]) -> Timeline:
    """Return the part of `timeline` inside any of `intervals`, (start, end) in nanoseconds.

    Counter changes next to an interval are kept too, and so is every event; windows where they lie inside one.
    """
    wanted = tuple(intervals)
    gpus = {uuid: _gpu(gpu, wanted) for uuid, gpu in timeline.gpus.items()}
    windows = tuple(one for one in timeline.windows if any(s <= one.start_ns and one.end_ns <= e for s, e in wanted))
    host = timeline.host
    if host is not None:
        energy_j = {name: _series(one, wanted) for name, one in host.energy_j.items()}
        host = dataclasses.replace(host, energy_j=energy_j)
    return dataclasses.replace(timeline, gpus=gpus, windows=windows, host=host)


def _gpu(gpu: GpuTimeline, intervals: Intervals) -> GpuTimeline:
    keep = _widened(_inside(gpu.ticks.after_end_ns, intervals))
    ticks = Ticks(**{one.name: getattr(gpu.ticks, one.name)[keep] for one in dataclasses.fields(Ticks)})
    series = {name: _series(one, intervals) for name, one in gpu.series.items()}
    processes = tuple(one for one in gpu.processes if any(start <= one.at_ns <= end for start, end in intervals))
    return dataclasses.replace(gpu, ticks=ticks, series=series, processes=processes)


def _series(series: Series, intervals: Intervals) -> Series:
    keep = _inside(series.at_ns, intervals)
    return Series(series.at_ns[keep], series.value[keep])


def _inside(at_ns: NDArray[np.int64], intervals: Intervals) -> NDArray[np.bool_]:
    inside = np.zeros(len(at_ns), dtype=bool)
    for start_ns, end_ns in intervals:
        inside |= (at_ns >= start_ns) & (at_ns <= end_ns)
    return inside


def _widened(keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
    widened = keep.copy()
    for distance in range(1, NEIGHBOURS + 1):
        widened[distance:] |= keep[:-distance]
        widened[:-distance] |= keep[distance:]
    return widened
