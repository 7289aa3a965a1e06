"""What stands beside a result's energy: a second meter's windows, and the host's own counters. Pure."""

from __future__ import annotations

from math import hypot, sqrt
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.energy_schema import CrossCheck, HostEnergy, WindowCheck
from wattdock.clock import NS_PER_S
from wattdock.metering import MAX_GAP_S, MJ_PER_J, Span
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.joules import SpanJoules
    from wattdock.metering import Series, Ticks, Timeline, Window
    from wattdock.records import PassRecord, RestartRecord

# A counter read within this time of a change may have seen either side of it: the call's length and the counter's lag.
EDGE_NS = 20_000_000


def cross_check(restarts: Sequence[RestartRecord], used: Sequence[str], joules_in: SpanJoules) -> CrossCheck | None:
    """Return how a second meter's windows compare with our figures of them; None without such windows.

    Args:
        restarts: Their timelines hold the windows; a pass belongs to the one that it lies in.
        used: UUIDs of the GPUs that the differences are over.
    """
    windows = [
        (_window_check(one.restart, measured, one.timeline, window, used, joules_in), window.source)
        for one in restarts
        if one.timeline
        for measured in one.passes
        for window in one.timeline.windows
        if window.holds(measured.span.start_ns, measured.span.end_ns)
    ]
    if not windows:
        return None
    checks = [check for check, _ in windows]
    known = [one for one in checks if one.difference_share is not None]
    worst = max(known, key=lambda one: abs(one.difference_share or 0.0), default=None)
    return CrossCheck(
        source=windows[0][1],
        windows=checks,
        worst_difference_j=worst and worst.difference_j,
        worst_difference_share=worst and worst.difference_share,
    )


def _window_check(
    restart: int,
    measured: PassRecord,
    timeline: Timeline,
    window: Window,
    used: Sequence[str],
    joules_in: SpanJoules,
) -> WindowCheck:
    span = Span(window.key, window.start_ns, window.end_ns)
    found = {uuid: joules_in.of_gpu(gpu, span) for uuid, gpu in timeline.gpus.items()}
    own_j = {uuid: one.energy_j for uuid, one in found.items()}
    reason = window.reason or next((one.reason for uuid, one in found.items() if uuid in used and one.reason), None)
    if reason is None and not (used and set(used) <= own_j.keys() & window.energy_j.keys()):
        reason = "a GPU that was used is unknown to one of the meters"
    difference_j = share = bound_j = None
    if reason is None:
        ours_j = sum(own_j[uuid] or 0.0 for uuid in used)
        difference_j = sum(window.energy_j[uuid] for uuid in used) - ours_j
        share = difference_j / ours_j if ours_j else None
        edges = (window.start_ns, window.end_ns)
        bound_j = sum(counter_step_j(timeline.gpus[uuid].ticks, at_ns) for uuid in used for at_ns in edges)
    return WindowCheck(
        restart=restart,
        pass_index=measured.index,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        other_j=dict(window.energy_j),
        own_j=own_j,
        difference_j=difference_j,
        difference_share=share,
        bound_j=bound_j,
        reason=reason,
    )


def counter_step_j(ticks: Ticks, at_ns: int) -> float:
    """Return how far one reading of a counter about `at_ns` may be from its course there, joules.

    A reading shows the value since the last change, or the next value where a change is near.
    """
    if not len(ticks.energy_mj):
        return 0.0
    before = int(np.searchsorted(ticks.after_end_ns, at_ns - EDGE_NS, side="right")) - 1
    after = int(np.searchsorted(ticks.before_start_ns, at_ns + EDGE_NS, side="left"))
    first, last = np.clip([before, after], 0, len(ticks.energy_mj) - 1)
    return float(ticks.energy_mj[last] - ticks.energy_mj[first]) / MJ_PER_J


def host_joules(timeline: Timeline | None, span: Span) -> dict[str, tuple[float, float] | None]:
    """Return joules of CPU packages and memory in a span, with their standard uncertainty, by domain."""
    host = timeline.host if timeline else None
    return {name: series_joules(series, span) for name, series in (host.energy_j if host else {}).items()}


def host_energy(restarts: Sequence[RestartRecord]) -> tuple[dict[str, float | None], HostEnergy | None]:
    """Return joules of CPU packages and memory over all measured passes by domain, and what goes with them."""
    hosts = [one.timeline.host for one in restarts if one.timeline and one.timeline.host]
    if not hosts:
        return {}, None
    passes = [host_joules(one.timeline, measured.span) for one in restarts for measured in one.passes]
    host_j: dict[str, float | None] = {}
    timing_j: dict[str, float | None] = {}
    for name in dict.fromkeys(name for host in hosts for name in host.energy_j):
        parts = all_known(one.get(name) for one in passes)
        host_j[name] = sum(energy for energy, _ in parts) if parts else None
        # Each pass is off alike: a straight line cuts the same corners.
        timing_j[name] = sum(timing for _, timing in parts) if parts else None
    return host_j, HostEnergy(timing_j=timing_j, events=[event.message for host in hosts for event in host.events])


def series_joules(energy_j: Series, span: Span) -> tuple[float, float] | None:
    """Return joules of a span from a cumulative series, linear between samples, and their standard uncertainty.

    None where samples do not surround the span, or were missing in it for longer than a second. How energy was spread
    inside the interval at each end is unknown: uniform over what the interval holds.
    """
    first = int(np.searchsorted(energy_j.at_ns, span.start_ns, side="right")) - 1
    last = int(np.searchsorted(energy_j.at_ns, span.end_ns, side="left"))
    if first < 0 or last >= len(energy_j.at_ns):
        return None
    if float(np.diff(energy_j.at_ns[first : last + 1]).max(initial=0)) > MAX_GAP_S * NS_PER_S:
        return None
    start_j, end_j = np.interp([span.start_ns, span.end_ns], energy_j.at_ns, energy_j.value)
    at_start_j, at_end_j = (float(energy_j.value[k + 1] - energy_j.value[k]) for k in (first, last - 1))
    return float(end_j - start_j), hypot(at_start_j, at_end_j) / sqrt(12)
