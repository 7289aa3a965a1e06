"""What a measurement over several GPUs says of their split: sums and shares. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.values import Stored

if TYPE_CHECKING:
    from wattdock.analysis.energy import EnergyResult
    from wattdock.analysis.performance import Performance


class MultiGPUMetrics(Stored):
    """Distribution of energy over the GPUs used, with the boundary of `energy.per_gpu_j`.

    Attributes:
        load_imbalance: Largest ÷ mean energy over the GPUs used; 1 is even.
    """

    gpu_count: int
    load_imbalance: float


def multi_gpu(energy: EnergyResult, performance: Performance | None) -> MultiGPUMetrics | None:
    """Return the GPUs' shares of all measured passes; None where energy is unknown, or no GPU was used."""
    per_gpu_j = {uuid: value for uuid, value in energy.per_gpu_j.items() if value is not None}
    if energy.total_j is None or performance is None or not per_gpu_j or not performance.output_tokens:
        return None
    mean_j = energy.total_j / len(per_gpu_j)
    return MultiGPUMetrics(
        gpu_count=len(per_gpu_j),
        load_imbalance=max(per_gpu_j.values()) / mean_j if mean_j else 1.0,
    )
