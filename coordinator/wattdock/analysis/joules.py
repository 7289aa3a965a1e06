"""Joules of spans over several GPUs, from a timeline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.metering import EnergyCurve
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.metering import GpuTimeline, Span, SpanEnergy, Timeline


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

    Linear, as over the GPUs of one span: what begins and ends alike, as passes, rounds and the GPUs of one engine do,
    is off by the same lag and by the same course of power inside a tick. An upper bound where errors differ.
    """
    return known_sum(one.timing_j for one in spans)


class SpanJoules:
    """Energy of spans; a GPU's curve, and its energy in each span, is computed once however often it is asked for.

    Attributes:
        reason: Why no sum over GPUs is told of any span; None where sums are.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        # By identity; each timeline is held beside its curve, so that no other can take its place in memory.
        self._curves: dict[int, tuple[GpuTimeline, EnergyCurve]] = {}
        self._energies: dict[tuple[int, int, int], SpanEnergy] = {}

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str]) -> Joules:
        """Return the energy of `span` on the GPUs `uuids`."""
        if self.reason is not None:
            return Joules(None, dict.fromkeys(uuids), reason=self.reason)
        if timeline is None or not uuids:
            return Joules(None, {}, reason=(timeline and timeline.reason) or "no GPU was used")
        found = {uuid: self.of_gpu(timeline.gpus[uuid], span) for uuid in uuids if uuid in timeline.gpus}
        reasons = [f"{uuid}: {one.reason}" for uuid, one in found.items() if one.energy_j is None]
        reasons += [timeline.reason or f"the meter did not see {uuid}" for uuid in uuids if uuid not in found]
        per_gpu_j = {uuid: found[uuid].energy_j if uuid in found else None for uuid in uuids}
        sources = frozenset(one.source for one in found.values() if one.source)
        if reasons:
            return Joules(None, per_gpu_j, sources=sources, reason="; ".join(dict.fromkeys(reasons)))
        total_j = sum(value or 0.0 for value in per_gpu_j.values())
        return Joules(total_j, per_gpu_j, known_sum(one.timing_j for one in found.values()), sources)

    def of_gpu(self, gpu: GpuTimeline, span: Span) -> SpanEnergy:
        """Return the energy of `span` on one GPU."""
        key = (id(gpu), span.start_ns, span.end_ns)
        if key not in self._energies:
            if id(gpu) not in self._curves:
                self._curves[id(gpu)] = gpu, EnergyCurve(gpu)
            _, curve = self._curves[id(gpu)]
            self._energies[key] = curve.between(span.start_ns, span.end_ns)
        return self._energies[key]
