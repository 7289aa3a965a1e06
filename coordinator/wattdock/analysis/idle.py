"""Power of GPUs without work, and summaries of their series. Pure."""

from __future__ import annotations

from math import hypot
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

from wattdock.metering import Span
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis.measured import Measured
    from wattdock.metering import GpuTimeline

IDLE_SPANS: dict[str, Literal["empty", "loaded"]] = {"idle-empty": "empty", "idle-loaded": "loaded"}


class IdleBaseline(Stored):
    """One GPU without work, over one idle span, by its energy counter.

    Attributes:
        state: "empty" for a few seconds before the runner started; "loaded" once its model was loaded, with context and
            weights.
        used: The GPU held a part of the model.
        uncertainty_w: Standard uncertainty of the mean: its timing, and half the difference of the span's halves.
    """

    restart: int
    gpu_uuid: str
    state: Literal["empty", "loaded"]
    used: bool
    duration_s: float
    mean_power_w: float | None
    uncertainty_w: float | None
    memory_used_bytes: float | None
    utilization_percent: float | None = None


def idle_baselines(measured: Measured) -> list[IdleBaseline]:
    """Return every GPU of the host in every idle span of every restart."""
    return [
        _baseline(measured, restart.restart, span, gpu)
        for restart in measured.restarts
        for span in restart.spans
        if span.name in IDLE_SPANS
        for gpu in restart.gpus.values()
    ]


def _baseline(measured: Measured, restart: int, span: Span, gpu: GpuTimeline) -> IdleBaseline:
    joules, middle_ns = measured.energy.of_gpu(gpu, span), (span.start_ns + span.end_ns) // 2
    halves = (Span(span.name, span.start_ns, middle_ns), Span(span.name, middle_ns, span.end_ns))
    first_w, second_w = (measured.energy.of_gpu(gpu, half).mean_power_w for half in halves)
    uncertainty_w = None
    if joules.timing_j is not None and first_w is not None and second_w is not None:
        uncertainty_w = hypot(joules.timing_j / span.duration_s, (first_w - second_w) / 2)
    return IdleBaseline(
        restart=restart,
        gpu_uuid=gpu.uuid,
        state=IDLE_SPANS[span.name],
        used=gpu.uuid in measured.used,
        duration_s=span.duration_s,
        mean_power_w=joules.mean_power_w,
        uncertainty_w=uncertainty_w,
        utilization_percent=over([(gpu, span)], "gpu_utilization_percent", np.mean),
        memory_used_bytes=over([(gpu, span)], "memory_used_bytes", np.mean),
    )


def idle_energy_j(
    measured: Measured, baselines: Sequence[IdleBaseline], spans: Sequence[Span]
) -> tuple[float, float] | None:
    """Return the energy that the GPUs used would have drawn idle and loaded, and its uncertainty, in J.

    For a command of the user's own, idle is what its GPUs drew before it. None where the idle power of a GPU in a
    restart is unknown, or no GPU was used. A restart that was interrupted and resumed has the mean of its runners' idle
    powers.

    Args:
        spans: In which part of each pass.
    """
    powers: dict[tuple[int, str], list[IdleBaseline]] = {}
    state = "empty" if measured.config.command else "loaded"
    for baseline in baselines:
        if baseline.state == state and baseline.mean_power_w is not None:
            powers.setdefault((baseline.restart, baseline.gpu_uuid), []).append(baseline)
    idle_j = uncertainty_j = 0.0
    for (restart, _), span in zip(measured.passes, spans, strict=True):
        for uuid in measured.used:
            if not (loaded := powers.get((restart.restart, uuid))):
                return None
            idle_j += span.duration_s * fmean(baseline.mean_power_w or 0.0 for baseline in loaded)
            uncertainty_j += span.duration_s * fmean(baseline.uncertainty_w or 0.0 for baseline in loaded)
    return (idle_j, uncertainty_j) if measured.used and idle_j else None


def over(parts: Sequence[tuple[GpuTimeline | None, Span]], name: str, summary: Callable[..., float]) -> float | None:
    """Summarise one series' samples in some spans; None without any."""
    found = (gpu.series[name].inside([span]).value for gpu, span in parts if gpu and name in gpu.series)
    values = np.concatenate([[], *found])
    return float(summary(values)) if len(values) else None
