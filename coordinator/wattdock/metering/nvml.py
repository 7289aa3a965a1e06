"""Read GPUs through NVML. Never opens a CUDA context, which alone would change what it measures."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S
from wattdock.host import nvml
from wattdock.metering.source import GpuReader, PowerRead, Source
from wattdock.metering.timeline import HBM_POWER, MJ_PER_J

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.clock import Clock
    from wattdock.metering.source import Meaning
    from wattdock.values import EnergyBoundary

CHEAP_READS: dict[str, Callable[[nvml.Device], float]] = {
    "temperature_c": nvml.temperature_c,
    "memory_temperature_c": nvml.memory_temperature_c,
    "sm_clock_mhz": nvml.sm_clock_mhz,
    "memory_clock_mhz": nvml.memory_clock_mhz,
    "memory_used_bytes": nvml.memory_used_bytes,
    "gpu_utilization_percent": nvml.gpu_utilization_percent,
    "power_limit_w": nvml.power_limit_w,
    "clocks_limited": nvml.clocks_limited,
    HBM_POWER: nvml.hbm_power_w,
}
SLOW_READS: dict[str, Callable[[nvml.Device], float]] = {
    f"violation_{name}_ns": partial(nvml.violation_ns, policy=policy) for name, policy in nvml.VIOLATIONS.items()
}
# How often a superchip's two powers are read to find what its counter covers, and how far apart, s. Over 2 s a counter
# that changes every 0.1 s is off by 5 % at most, so CPU and memory must draw 10 % of the module's power.
BOUNDARY_READS, BOUNDARY_READ_S = 40, 0.05
# A module's power that exceeds its GPU's by less is that of a driver that ignores the scope.
LEAST_MODULE_RATIO = 1.05


def nvml_meaning(error: BaseException) -> Meaning:
    """Return what an NVML error says of the GPU; another library may have wrapped it in its own."""
    code = nvml.code_of(error.__cause__ or error)
    if code == nvml.GPU_LOST:
        return "gpu_lost"
    return "not_supported" if code in nvml.NOT_SUPPORTED else "read_error"


class NvmlSource(Source):
    """The GPUs that NVML lists."""

    name = "nvml"
    errors: tuple[type[Exception], ...] = (nvml.NvmlError,)
    meaning = staticmethod(nvml_meaning)
    # An NvmlError where a driver is there and cannot be talked to.
    open = staticmethod(nvml.open_nvml)
    count = staticmethod(nvml.gpu_count)
    close = staticmethod(nvml.close_nvml)

    def reader(self, index: int, clock: Clock) -> GpuReader:
        """Return what NVML reads of one GPU, after 2 s where the GPU is a superchip's.

        Raises:
            NvmlError: It does not answer.
        """
        return nvml_reader(nvml.device(index), clock)


def nvml_reader(gpu: nvml.Device, clock: Clock) -> GpuReader:
    """Return what can be read through one NVML handle: counter and powers of one boundary."""
    boundary = counter_boundary(gpu, clock)
    scope = nvml.MODULE if boundary == "module" else nvml.GPU
    power = [
        PowerRead("power_w", "power_instant_w", partial(nvml.power_instant_w, gpu, scope)),
        PowerRead("power_average_w", "power_average_field_w", partial(nvml.power_average_field_w, gpu, scope)),
    ]
    if boundary == "gpu_boards":
        power.append(PowerRead("power_average_w", "power_usage_w", partial(nvml.power_usage_w, gpu)))
    return GpuReader(
        uuid=nvml.uuid(gpu),
        counter_mj=partial(nvml.counter_mj, gpu),
        samples=partial(nvml.power_samples, gpu, scope),
        power=tuple(power),
        cheap={name: partial(read, gpu) for name, read in CHEAP_READS.items()},
        slow={name: partial(read, gpu) for name, read in SLOW_READS.items()},
        processes=partial(nvml.processes, gpu),
        errors=(nvml.NvmlError,),
        meaning=nvml_meaning,
        boundary=boundary,
    )


def counter_boundary(gpu: nvml.Device, clock: Clock) -> EnergyBoundary:
    """Return what a GPU's energy counter covers.

    NVML does not tell, and gives one counter for every scope. Only a superchip has power of its module, so only there
    the counter's mean power over 2 s is held against the power of the GPU and of the module; the nearer one decides.

    Raises:
        NvmlError: One of the two cannot be read though the driver has it.

    Source: ml-energy/zeus, pull requests 172 (a GH200's counter covers the module) and 242 (some drivers do not have
    the power of the GPU alone).
    """
    if not _has_power(gpu, nvml.MODULE):
        return "gpu_boards"
    if not _has_power(gpu, nvml.GPU):
        return "module"
    counted: list[tuple[int, int]] = []
    powers_w: dict[int, list[float]] = {nvml.GPU: [], nvml.MODULE: []}
    for _ in range(BOUNDARY_READS):
        clock.sleep(BOUNDARY_READ_S)
        if (counter_mj := nvml.optional(nvml.counter_mj, gpu)) is not None:
            counted.append((clock.now_ns(), counter_mj))
        for scope, readings in powers_w.items():
            if (power_w := nvml.optional(nvml.power_instant_w, gpu, scope)) is not None:
                readings.append(power_w)
    if len(counted) < 2:
        return "gpu_boards"
    gpu_w, module_w = (fmean(readings or [nvml.power_instant_w(gpu, scope)]) for scope, readings in powers_w.items())
    (start_ns, start_mj), *_, (end_ns, end_mj) = counted
    counter_w = (end_mj - start_mj) / MJ_PER_J / (end_ns - start_ns) * NS_PER_S
    is_module = module_w > LEAST_MODULE_RATIO * gpu_w and counter_w > (gpu_w + module_w) / 2
    return "module" if is_module else "gpu_boards"


def _has_power(gpu: nvml.Device, scope: int) -> bool:
    """Whether a driver has the power of a scope, though reading it may fail now."""
    try:
        nvml.power_instant_w(gpu, scope)
    except nvml.NvmlError as error:
        return nvml_meaning(error) != "not_supported"
    return True


SOURCE = NvmlSource
