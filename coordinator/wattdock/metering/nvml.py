"""Read GPUs through NVML. Never opens a CUDA context, which alone would change what it measures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from wattdock.host import nvml
from wattdock.metering.source import GpuReader, PowerRead, Source
from wattdock.metering.timeline import HBM_POWER

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.metering.source import Meaning

CHEAP_READS: dict[str, Callable[[nvml.Device], float]] = {
    "temperature_c": nvml.temperature_c,
    "memory_temperature_c": nvml.memory_temperature_c,
    "sm_clock_mhz": nvml.sm_clock_mhz,
    "memory_clock_mhz": nvml.memory_clock_mhz,
    "memory_used_bytes": nvml.memory_used_bytes,
    "gpu_utilization_percent": nvml.gpu_utilization_percent,
    "performance_state": nvml.performance_state,
    "power_limit_w": nvml.power_limit_w,
    "clocks_limited": nvml.clocks_limited,
    HBM_POWER: nvml.hbm_power_w,
}
SLOW_READS: dict[str, Callable[[nvml.Device], float]] = {
    f"violation_{name}_ns": partial(nvml.violation_ns, policy=policy) for name, policy in nvml.VIOLATIONS.items()
}


class NvmlSource(Source):
    """The GPUs that NVML lists."""

    errors: tuple[type[Exception], ...] = (nvml.NvmlError,)

    def __init__(self) -> None:
        super().__init__(name="nvml")

    def open(self) -> str | None:
        """Initialise NVML; return why there is none, or None.

        Raises:
            NvmlError: A driver is there and cannot be talked to.
        """
        return nvml.open_nvml()

    def meaning(self, error: Exception) -> Meaning:
        """Return what an error of NVML says of a GPU."""
        return nvml_meaning(error)

    def count(self) -> int:
        """Return how many GPUs NVML lists."""
        return nvml.gpu_count()

    def reader(self, index: int) -> GpuReader:
        """Return what NVML reads of one GPU.

        Raises:
            NvmlError: It does not answer.
        """
        return nvml_reader(nvml.device(index))

    def close(self) -> None:
        """Close NVML."""
        nvml.close_nvml()


def nvml_reader(gpu: nvml.Device) -> GpuReader:
    """Return what can be read through one NVML handle."""
    return GpuReader(
        uuid=nvml.uuid(gpu),
        counter_mj=partial(nvml.counter_mj, gpu),
        samples=partial(nvml.power_samples, gpu),
        power=(
            PowerRead("power_w", "power_instant_w", partial(nvml.power_instant_w, gpu)),
            PowerRead("power_average_w", "power_average_field_w", partial(nvml.power_average_field_w, gpu)),
            PowerRead("power_average_w", "power_usage_w", partial(nvml.power_usage_w, gpu)),
        ),
        cheap={name: partial(read, gpu) for name, read in CHEAP_READS.items()},
        slow={name: partial(read, gpu) for name, read in SLOW_READS.items()},
        processes=partial(nvml.processes, gpu),
        errors=(nvml.NvmlError,),
        meaning=nvml_meaning,
    )


def nvml_meaning(error: BaseException) -> Meaning:
    """Return what an NVML error says of the GPU."""
    code = nvml.code_of(error)
    if code == nvml.GPU_LOST:
        return "gpu_lost"
    return "not_supported" if code in nvml.NOT_SUPPORTED else "read_error"


SOURCE = NvmlSource
