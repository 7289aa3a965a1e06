"""Joules of spans by the GPUs' counters. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.metering import EnergyCurve
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.metering import GpuTimeline, Span, SpanEnergy, Timeline

# Half the width of the 95 % interval of a normal distribution, in standard deviations.
NORMAL95 = 1.96


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
    reason: str | None = None

    @classmethod
    def of_all(cls, parts: Sequence[Joules]) -> Joules:
        """Return the joules of several spans together; unknown where one part is, with the first reason.

        Uncertainties add up linearly, as over the GPUs of one span: passes and the GPUs of one engine begin and end
        alike, and share the errors of the lag and of the course of power inside a tick. Where errors differ, it is an
        upper bound.
        """
        return cls(
            known_sum(part.total_j for part in parts),
            summed([part.per_gpu_j for part in parts]),
            known_sum(part.timing_j for part in parts),
            next((part.reason for part in parts if part.reason), None),
        )


def ratio(total_j: float | None, amount: float | None) -> float | None:
    """Return joules per unit of an amount (J per token, W); None where either is unknown or the amount is 0."""
    return total_j / amount if total_j is not None and amount else None


def summed(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the sums by name of a GPU or domain; None where a part is unknown."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: known_sum(part.get(name) for part in parts) for name in names}


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

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str], *, hbm: bool = False) -> Joules:
        """Return the energy of `span` on the GPUs `uuids`; with `hbm`, only the part that their memory used."""
        if self.reason is not None:
            return Joules(None, dict.fromkeys(uuids), reason=self.reason)
        if timeline is None or not uuids:
            return Joules(None, {}, reason=(timeline and timeline.reason) or "no GPU was used")
        metered = {uuid: timeline.gpus[uuid] for uuid in uuids if uuid in timeline.gpus}
        energy_by_gpu = {uuid: self.of_gpu(gpu, span, hbm=hbm) for uuid, gpu in metered.items()}
        reasons = [f"{uuid}: {energy.reason}" for uuid, energy in energy_by_gpu.items() if energy.energy_j is None]
        reasons += [timeline.reason or f"the meter did not see {uuid}" for uuid in uuids if uuid not in energy_by_gpu]
        per_gpu_j = {uuid: energy_by_gpu[uuid].energy_j if uuid in energy_by_gpu else None for uuid in uuids}
        if reasons:
            return Joules(None, per_gpu_j, reason="; ".join(dict.fromkeys(reasons)))
        timing_j = known_sum(energy.timing_j for energy in energy_by_gpu.values())
        return Joules(known_sum(per_gpu_j.values()), per_gpu_j, timing_j)

    def of_gpu(self, gpu: GpuTimeline, span: Span, *, hbm: bool = False) -> SpanEnergy:
        """Return the energy of `span` on one GPU, or on its memory."""
        if hbm:
            return self.curve(gpu).hbm_between(span.start_ns, span.end_ns)
        key = (id(gpu), span.start_ns, span.end_ns)
        if key not in self._energies:
            self._compute(gpu, [span])
        return self._energies[key]

    def compute(self, timeline: Timeline | None, spans: Sequence[Span]) -> None:
        """Compute the energy of many spans on every GPU together, much quicker than `of` would one by one."""
        for gpu in timeline.gpus.values() if timeline and not self.reason else ():
            self._compute(gpu, spans)

    def _compute(self, gpu: GpuTimeline, spans: Sequence[Span]) -> None:
        for span, energy in zip(spans, self.curve(gpu).measured(spans), strict=True):
            self._energies[id(gpu), span.start_ns, span.end_ns] = energy

    def curve(self, gpu: GpuTimeline) -> EnergyCurve:
        """Return the energy curve of one GPU."""
        if id(gpu) not in self._curves:
            self._curves[id(gpu)] = gpu, EnergyCurve(gpu)
        return self._curves[id(gpu)][1]
