"""What a measurement over several GPUs says of their split: sums and shares. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.idle import over
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wattdock.analysis.energy import EnergyResult
    from wattdock.analysis.measured import Measured
    from wattdock.analysis.performance import Performance


class MultiGPUMetrics(Stored):
    """Distribution of energy over the GPUs used, with the boundary of `energy.per_gpu_j`.

    Attributes:
        per_gpu_mean_power_w: Over the measured passes, by the energy counter.
        per_gpu_mean_utilization_percent: Mean of NVML's samples in the passes: the share of time in which any kernel
            ran, not how much of the GPU it used. Null where the driver does not tell.
        per_gpu_max_memory_used_bytes: Largest of NVML's samples of memory in use, by all processes.
        load_imbalance: Largest ÷ mean energy over the GPUs used; 1 is even.
    """

    gpu_count: int
    per_gpu_mean_power_w: dict[str, float]
    per_gpu_mean_utilization_percent: dict[str, float | None]
    per_gpu_max_memory_used_bytes: dict[str, float | None]
    load_imbalance: float


def multi_gpu(measured: Measured, energy: EnergyResult, performance: Performance | None) -> MultiGPUMetrics | None:
    """Return the GPUs' shares of all measured passes; None where energy is unknown, or no GPU was used."""
    per_gpu_j = {uuid: value for uuid, value in energy.per_gpu_j.items() if value is not None}
    if energy.total_j is None or performance is None or not per_gpu_j or not performance.output_tokens:
        return None
    mean_j = energy.total_j / len(per_gpu_j)
    return MultiGPUMetrics(
        gpu_count=len(per_gpu_j),
        per_gpu_mean_power_w={uuid: value / performance.duration_s for uuid, value in per_gpu_j.items()},
        per_gpu_mean_utilization_percent=_over_passes(measured, per_gpu_j, "gpu_utilization_percent", np.mean),
        per_gpu_max_memory_used_bytes=_over_passes(measured, per_gpu_j, "memory_used_bytes", np.max),
        load_imbalance=max(per_gpu_j.values()) / mean_j if mean_j else 1.0,
    )


def _over_passes(
    measured: Measured, uuids: Iterable[str], name: str, summary: Callable[..., float]
) -> dict[str, float | None]:
    """Summarise one series inside the measured passes, by GPU; None where the driver does not tell."""
    parts = [(restart.gpus, run_pass.span) for restart, run_pass in measured.passes]
    return {uuid: over([(gpus.get(uuid), span) for gpus, span in parts], name, summary) for uuid in uuids}
