"""Idle baselines, and the energy above them. Pure."""

from __future__ import annotations

import functools
from collections import Counter
from math import hypot
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.conditions import over
from wattdock.analysis.joules import SpanJoules
from wattdock.analysis.procedure_schema import IdleBaseline
from wattdock.analysis.steadiness import idle_unsettled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from wattdock.config import IdleSpec
    from wattdock.metering import GpuTimeline, Span, SpanEnergy
    from wattdock.records import RestartRecord

IDLE_SPANS: dict[str, Literal["empty", "loaded_before", "loaded_after"]] = {
    "idle-empty": "empty",
    "idle-loaded-before": "loaded_before",
    "idle-loaded-after": "loaded_after",
}


def idle_baselines(
    restarts: Sequence[RestartRecord],
    used: Sequence[str],
    limits: IdleSpec,
    joules_in: SpanJoules | None = None,
) -> list[IdleBaseline]:
    """Return every GPU of the host in every idle span of every restart."""
    joules_in = joules_in or SpanJoules()
    return [
        _baseline(restart, span, gpu, limits, joules_in.of_gpu(gpu, span), is_used=gpu.uuid in used)
        for restart in restarts
        for span in restart.spans
        if span.name in IDLE_SPANS
        for gpu in restart.gpus.values()
    ]


def _baseline(
    restart: RestartRecord, span: Span, gpu: GpuTimeline, limits: IdleSpec, joules: SpanEnergy, *, is_used: bool
) -> IdleBaseline:
    unsettled = idle_unsettled({gpu.uuid: gpu}, span, [gpu.uuid], limits)
    mean = functools.partial(over, [(gpu, span)], summary=np.mean)
    return IdleBaseline(
        restart=restart.restart,
        gpu_uuid=gpu.uuid,
        state=IDLE_SPANS[span.name],
        used=is_used,
        duration_s=span.duration_s,
        mean_power_w=joules.mean_power_w,
        timing_w=None if joules.timing_j is None else joules.timing_j / span.duration_s,
        unsettled="; ".join(unsettled) or None,
        temperature_c=mean("temperature_c"),
        sm_clock_mhz=mean("sm_clock_mhz"),
        memory_clock_mhz=mean("memory_clock_mhz"),
        performance_state=mean("performance_state"),
        memory_used_bytes=mean("memory_used_bytes"),
        utilization_percent=mean("gpu_utilization_percent"),
    )


def idle_energy_j(
    restarts: Sequence[RestartRecord], baselines: Sequence[IdleBaseline], used: Sequence[str]
) -> tuple[float, float] | None:
    """Return what the GPUs used would have drawn idle and loaded during all passes, and its uncertainty, both in J.

    Per GPU the mean of its powers before and after the passes; its uncertainty is the root of squares of half their
    difference and of their timing, each summed linearly: an upper bound. None where one of them is unknown, or no GPU
    was used. A restart that was cut in two and went on with another runner has two of each, or the runner that was cut
    off lacks the one after, which no other runner's stands for.
    """
    seen: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for one in baselines:
        if one.mean_power_w is not None and one.timing_w is not None:
            seen.setdefault((one.restart, one.gpu_uuid, one.state), []).append((one.mean_power_w, one.timing_w))
    runners = Counter(one.restart for one in restarts if one.passes)
    idle_j, half_difference_j, timing_j = 0.0, 0.0, 0.0
    for restart in restarts:
        duration_s = sum(one.span.duration_s for one in restart.passes)
        for uuid in used:
            sides = [seen.get((restart.restart, uuid, f"loaded_{side}"), []) for side in ("before", "after")]
            if min(map(len, sides)) < max(1, runners[restart.restart]):
                return None
            before_w, after_w = (fmean(power_w for power_w, _ in side) for side in sides)
            idle_j += duration_s * (before_w + after_w) / 2
            half_difference_j += duration_s * abs(before_w - after_w) / 2
            timing_j += duration_s * fmean(fmean(timing_w for _, timing_w in side) for side in sides)
    return (idle_j, hypot(half_difference_j, timing_j)) if used and idle_j else None
