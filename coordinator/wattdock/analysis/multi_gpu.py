"""How energy, power, utilisation and memory were shared out among the GPUs used. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.conditions import over
from wattdock.analysis.energy_schema import MultiGPUMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock.analysis.energy_schema import EnergyResult
    from wattdock.analysis.result_schema import Performance
    from wattdock.records import RestartRecord


def multi_gpu(
    energy: EnergyResult, performance: Performance | None, restarts: Sequence[RestartRecord] = ()
) -> MultiGPUMetrics | None:
    """Return what each GPU used took of all measured passes; None where it is unknown or no GPU was used."""
    per_gpu_j = {uuid: value for uuid, value in energy.per_gpu_j.items() if value is not None}
    if energy.total_j is None or performance is None or not per_gpu_j or not performance.output_tokens:
        return None
    mean_j = energy.total_j / len(per_gpu_j)
    allocated = energy.allocation_j
    return MultiGPUMetrics(
        gpu_count=len(per_gpu_j),
        per_gpu_energy_j=per_gpu_j,
        per_gpu_mean_power_w={uuid: value / performance.duration_s for uuid, value in per_gpu_j.items()},
        per_gpu_mean_utilization_percent=_over_passes(restarts, per_gpu_j, "gpu_utilization_percent", np.mean),
        per_gpu_max_memory_used_bytes=_over_passes(restarts, per_gpu_j, "memory_used_bytes", np.max),
        load_imbalance=max(per_gpu_j.values()) / mean_j if mean_j else 1.0,
        energy_per_output_token_j=energy.total_j / performance.output_tokens,
        energy_per_output_token_allocated_j=None if allocated is None else allocated / performance.output_tokens,
    )


def _over_passes(
    restarts: Sequence[RestartRecord], uuids: Iterable[str], name: str, summary: Callable[..., float]
) -> dict[str, float | None]:
    """Summarise the samples of one series inside the measured passes; None for a GPU that does not tell."""
    parts = [(one.gpus, measured.span) for one in restarts for measured in one.passes]
    return {uuid: over([(gpus.get(uuid), span) for gpus, span in parts], name, summary) for uuid in uuids}
