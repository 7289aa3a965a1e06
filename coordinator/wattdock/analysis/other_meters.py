"""Joules by a second meter of the GPUs, held against those of their counters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from wattdock.analysis.joules import ratio
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.metering import GpuTimeline
    from wattdock.records import PassRecord, RestartRecord


# A reading this close to a change may show either value: the length of a call plus the counter's lag.
EDGE_NS = 20_000_000


class WindowCheck(Stored):
    """One window as both meters measured it.

    The window is longer than its pass: it begins before the request is sent and ends after the results have arrived.

    Attributes:
        second_meter_j, meter_j: Joules by UUID, of every GPU of the host.
        difference_j: The second meter's joules less the first's, over the GPUs used; null where either is unknown.
        difference_share: `difference_j` ÷ the first meter's joules.
        bound_j: What a difference of two counter readings can be off by: a counter step at each end, of each GPU.
        reason: Why `difference_j` is null, where it is.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    second_meter_j: dict[str, float]
    meter_j: dict[str, float | None]
    difference_j: float | None
    difference_share: float | None
    bound_j: float | None
    reason: str | None = None


class CrossCheck(Stored):
    """A second meter's joules of the measured passes, compared with the first meter's.

    Attributes:
        source: "zeus": the joules of ZeusMonitor's windows.
        worst_difference_j, worst_difference_share: Of the window whose share is largest, with its sign.
    """

    source: str
    windows: list[WindowCheck]
    worst_difference_j: float | None
    worst_difference_share: float | None


def cross_check(measured: Measured) -> CrossCheck | None:
    """Return how a second meter's windows compare with our figures of them; None without such windows.

    The restarts' timelines hold the windows; a pass belongs to the window that it lies in.
    """
    windows = [check for of_pass in measured.passes if (check := _window_check(measured, *of_pass))]
    if not windows:
        return None
    shares = ((check.difference_share, check.difference_j) for check in windows if check.difference_share is not None)
    worst_share, worst_j = max(shares, key=lambda pair: abs(pair[0]), default=(None, None))
    return CrossCheck(
        source=next(restart.timeline.meter for restart in measured.restarts if restart.timeline),
        windows=windows,
        worst_difference_j=worst_j,
        worst_difference_share=worst_share,
    )


def _window_check(measured: Measured, restart: RestartRecord, run_pass: PassRecord) -> WindowCheck | None:
    timeline, used = restart.timeline, measured.used
    window = timeline.window_around(run_pass.span) if timeline else None
    if timeline is None or window is None:
        return None
    span, ours = window.span, measured.energy_of(restart, window.span)
    reason = window.reason or ours.reason
    if not reason and not window.energy_j.keys() >= {*used}:
        reason = "a GPU that was used is unknown to the second meter"
    difference_j = share = bound_j = None
    if not reason and ours.total_j is not None:
        difference_j = sum(window.energy_j[uuid] for uuid in used) - ours.total_j
        share = ratio(difference_j, ours.total_j)
        bound_j = known_sum(
            measured.energy.of_gpu(timeline.gpus[uuid], _step_around(timeline.gpus[uuid], at_ns)).energy_j
            for uuid in used
            for at_ns in (span.start_ns, span.end_ns)
        )
    return WindowCheck(
        restart=restart.restart,
        pass_index=run_pass.index,
        second_meter_j=dict(window.energy_j),
        meter_j={uuid: measured.energy.of_gpu(gpu, span).energy_j for uuid, gpu in timeline.gpus.items()},
        difference_j=difference_j,
        difference_share=share,
        bound_j=bound_j,
        reason=reason,
    )


def _step_around(gpu: GpuTimeline, at_ns: int) -> Span:
    """Return how far from an instant a reading of the counter may be of: since the change before, or the next one."""
    return Span("step", at_ns - round((gpu.period_s or 0.0) * NS_PER_S) - EDGE_NS, at_ns + EDGE_NS)
