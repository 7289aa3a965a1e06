"""Joules of spans: from the GPUs' counters, from a second meter, from the host's counters. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from wattdock.metering import EnergyCurve, MeterEvent, Span
from wattdock.values import Stored, all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.metering import GpuTimeline, SpanEnergy, Timeline
    from wattdock.records import PassRecord, RestartRecord

MJ_PER_J = 1_000
HOST_STATEMENT = (
    "CPU packages and memory as RAPL's counters see them, of the whole host and not of the runner alone; never part of "
    "total_j nor of any joules per token, whose boundary is the GPU boards."
)


DIFFERENT_GPUS = "restarts used different GPUs"


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
    start_ns: int
    end_ns: int
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


class HostEnergy(Stored):
    """Uncertainty and meaning of `host_j`.

    Attributes:
        timing_j: Standard uncertainty from sampling, by domain; null where `host_j` is.
        events: Reads that failed.
    """

    source: Literal["rapl"] = "rapl"
    statement: str = HOST_STATEMENT
    timing_j: dict[str, float | None]
    events: list[MeterEvent] = Field(default_factory=list)


@dataclass(frozen=True)
class Joules:
    """Energy of one span over some GPUs.

    Attributes:
        total_j: Sum; None where a GPU's energy is unknown, or there is no GPU.
        per_gpu_j: By UUID.
        timing_j: Standard uncertainty of the sum; None where that is.
        reason: Why the sum is None.
    """

    total_j: float | None
    per_gpu_j: dict[str, float | None]
    timing_j: float | None = None
    sources: frozenset[str] = frozenset()
    reason: str | None = None


def combined_timing_j(spans: Sequence[Joules]) -> float | None:
    """Return the standard uncertainty of several spans' joules together; None where one of them is unknown.

    The sum is linear, as it is over the GPUs of one span: passes and the GPUs of one engine begin and end
    alike, and share the errors of the lag and of the course of power inside a tick. Where errors differ, it is an upper
    bound.
    """
    return known_sum(span.timing_j for span in spans)


class SpanJoules:
    """Energy of spans; each GPU's energy curve, and its energy in each span, is computed only once.

    Attributes:
        reason: Why no span's energy can be summed over GPUs; None where it can.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        # By id(); the timeline beside its curve stays alive, so that no other object can get the same id.
        self._curves: dict[int, tuple[GpuTimeline, EnergyCurve]] = {}
        self._energies: dict[tuple[int, int, int], SpanEnergy] = {}

    @classmethod
    def of_restarts(cls, restarts: Sequence[RestartRecord]) -> SpanJoules:
        """Return the energy of these restarts' spans, without sums where their passes used different GPUs.

        An engine that places a model by itself may take other GPUs in another restart.
        """
        placements = {
            frozenset(restart.environment.gpu_uuids) for restart in restarts if restart.passes and restart.environment
        }
        return cls(DIFFERENT_GPUS if len(placements) > 1 else None)

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str], *, hbm: bool = False) -> Joules:
        """Return the energy of `span` on the GPUs `uuids`; with `hbm`, only the part that their memory used."""
        if self.reason is not None:
            return Joules(None, dict.fromkeys(uuids), reason=self.reason)
        if timeline is None or not uuids:
            return Joules(None, {}, reason=(timeline and timeline.reason) or "no GPU was used")
        of_gpu = self._hbm_of_gpu if hbm else self.of_gpu
        energy_by_gpu = {uuid: of_gpu(timeline.gpus[uuid], span) for uuid in uuids if uuid in timeline.gpus}
        reasons = [f"{uuid}: {energy.reason}" for uuid, energy in energy_by_gpu.items() if energy.energy_j is None]
        reasons += [timeline.reason or f"the meter did not see {uuid}" for uuid in uuids if uuid not in energy_by_gpu]
        per_gpu_j = {uuid: energy_by_gpu[uuid].energy_j if uuid in energy_by_gpu else None for uuid in uuids}
        sources = frozenset(energy.source for energy in energy_by_gpu.values() if energy.source)
        if reasons:
            return Joules(None, per_gpu_j, sources=sources, reason="; ".join(dict.fromkeys(reasons)))
        timing_j = known_sum(energy.timing_j for energy in energy_by_gpu.values())
        return Joules(known_sum(per_gpu_j.values()), per_gpu_j, timing_j, sources)

    def in_blocks(self, timeline: Timeline | None, edges_ns: Sequence[int], uuids: Sequence[str]) -> list[Joules]:
        """Return the energy of each block between two edges on the GPUs `uuids`."""
        return [self.of(timeline, Span("block", *edges), uuids) for edges in pairwise(edges_ns)]

    def of_gpu(self, gpu: GpuTimeline, span: Span) -> SpanEnergy:
        """Return the energy of `span` on one GPU."""
        key = (id(gpu), span.start_ns, span.end_ns)
        if key not in self._energies:
            self._energies[key] = self.curve(gpu).measured(span)
        return self._energies[key]

    def _hbm_of_gpu(self, gpu: GpuTimeline, span: Span) -> SpanEnergy:
        return self.curve(gpu).hbm_between(span.start_ns, span.end_ns)

    def plain_difference_j(self, gpus: Sequence[GpuTimeline], span: Span) -> float | None:
        """Return what two readings of GPUs' counters at a span's ends differ by, joules; None where one is missing."""
        total_mj = known_sum(self.curve(gpu).changes.difference_mj(span) for gpu in gpus)
        return None if total_mj is None else total_mj / MJ_PER_J

    def step_j(self, gpu: GpuTimeline, at_ns: int) -> float:
        """Return how far one reading of a counter at about `at_ns` may be from its course there, joules."""
        return self.curve(gpu).changes.step_j(at_ns)

    def curve(self, gpu: GpuTimeline) -> EnergyCurve:
        """Return the energy curve of one GPU."""
        if id(gpu) not in self._curves:
            self._curves[id(gpu)] = gpu, EnergyCurve(gpu)
        return self._curves[id(gpu)][1]


def cross_check(restarts: Sequence[RestartRecord], used: Sequence[str], joules_in: SpanJoules) -> CrossCheck | None:
    """Return how a second meter's windows compare with our figures of them; None without such windows.

    Args:
        restarts: Their timelines hold the windows; a pass belongs to the one that it lies in.
        used: UUIDs of the GPUs that the differences are over.
    """
    windows = [
        check
        for restart in restarts
        for measured in restart.passes
        if (check := _window_check(restart, measured, used, joules_in))
    ]
    if not windows:
        return None
    shares = ((check.difference_share, check.difference_j) for check in windows if check.difference_share is not None)
    worst_share, worst_j = max(shares, key=lambda pair: abs(pair[0]), default=(None, None))
    return CrossCheck(
        source=next(restart.timeline.meter for restart in restarts if restart.timeline),
        windows=windows,
        worst_difference_j=worst_j,
        worst_difference_share=worst_share,
    )


def _window_check(
    restart: RestartRecord, measured: PassRecord, used: Sequence[str], joules_in: SpanJoules
) -> WindowCheck | None:
    timeline = restart.timeline
    window = timeline.window_around(measured.span) if timeline else None
    if timeline is None or window is None:
        return None
    span = window.span
    energies = {uuid: joules_in.of_gpu(gpu, span) for uuid, gpu in timeline.gpus.items()}
    meter_j = {uuid: energy.energy_j for uuid, energy in energies.items()}
    reason = window.reason or next(
        (energy.reason for uuid, energy in energies.items() if uuid in used and energy.reason), None
    )
    if reason is None and not (used and set(used) <= meter_j.keys() & window.energy_j.keys()):
        reason = "a GPU that was used is unknown to one of the meters"
    difference_j = share = bound_j = None
    ours_j = None if reason else known_sum(meter_j[uuid] for uuid in used)
    if ours_j is not None:
        difference_j = sum(window.energy_j[uuid] for uuid in used) - ours_j
        share = difference_j / ours_j if ours_j else None
        ends_ns = (span.start_ns, span.end_ns)
        bound_j = sum(joules_in.step_j(timeline.gpus[uuid], at_ns) for uuid in used for at_ns in ends_ns)
    return WindowCheck(
        restart=restart.restart,
        pass_index=measured.index,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        second_meter_j=dict(window.energy_j),
        meter_j=meter_j,
        difference_j=difference_j,
        difference_share=share,
        bound_j=bound_j,
        reason=reason,
    )


def host_joules(timeline: Timeline | None, span: Span) -> dict[str, tuple[float, float] | None]:
    """Return joules of CPU packages and memory in a span, with their standard uncertainty, by domain."""
    return timeline.host.joules(span) if timeline and timeline.host else {}


def host_energy(restarts: Sequence[RestartRecord]) -> tuple[dict[str, float | None], HostEnergy | None]:
    """Return joules of CPU packages and memory over all measured passes by domain, and what goes with them."""
    hosts = [restart.timeline.host for restart in restarts if restart.timeline and restart.timeline.host]
    if not hosts:
        return {}, None
    passes = [host_joules(restart.timeline, measured.span) for restart in restarts for measured in restart.passes]
    host_j: dict[str, float | None] = {}
    timing_j: dict[str, float | None] = {}
    for name in dict.fromkeys(name for host in hosts for name in host.energy_j):
        parts = all_known(measured.get(name) for measured in passes)
        host_j[name] = sum(energy for energy, _ in parts) if parts else None
        # Each pass is off alike: a straight line cuts the same corners.
        timing_j[name] = sum(timing for _, timing in parts) if parts else None
    return host_j, HostEnergy(timing_j=timing_j, events=[event for host in hosts for event in host.events])


# Half the width of the 95 % interval of a normal distribution, in standard deviations.
NORMAL95 = 1.96
