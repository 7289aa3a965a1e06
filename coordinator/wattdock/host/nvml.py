"""NVML's calls as plain functions with units in their names.

Decides nothing: callers see `NvmlError` and choose. No NVML call opens a CUDA context.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal

import pynvml

if TYPE_CHECKING:
    from collections.abc import Callable

Device = Any
ProcessKind = Literal["compute", "graphics", "mps"]

# Parts of which NVML tells power: the GPU with its memory; on a superchip the module, CPU and its memory included.
GPU, MODULE = pynvml.NVML_POWER_SCOPE_GPU, pynvml.NVML_POWER_SCOPE_MODULE
GPU_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
# What to do about NVML_ERROR_LIB_RM_VERSION_MISMATCH.
DRIVER_REPLACED = "the driver was updated under its loaded kernel module: restart the machine, or reload the module"
# Errors by which drivers of different ages say that this GPU or this driver lacks something.
NOT_SUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
    }
)
VIOLATIONS = {
    "power": pynvml.NVML_PERF_POLICY_POWER,
    "thermal": pynvml.NVML_PERF_POLICY_THERMAL,
    "board_limit": pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    "reliability": pynvml.NVML_PERF_POLICY_RELIABILITY,
}
PROCESS_LISTS: dict[ProcessKind, str] = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
MW_PER_W = 1_000
# Largest reading that an array of signed 64 bits holds; a board of 1 kW would reach it in 292,000 years.
LARGEST_MJ = 2**63 - 1
NvmlError: type[Exception] = pynvml.NVMLError
# Names of workload power profiles by their bit in NVML's masks: bit 1 is "max-q".
# Source: nvml.h, nvmlPowerProfileType_t, whose last member counts the others; nvidia-smi names bits in the same way.
_PROFILE = "NVML_POWER_PROFILE_"
_PROFILE_NAMES = {
    bit: name.removeprefix(_PROFILE).lower().replace("_", "-")
    for name, bit in vars(pynvml).items()
    if name.startswith(_PROFILE) and "OPERATION" not in name and bit < pynvml.NVML_POWER_PROFILE_MAX
}
# Layout of nvmlSample_t: microseconds, and a union of eight bytes that holds milliwatts here.
_SAMPLE = Struct("=QI4x")
_UNION_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def code_of(error: BaseException) -> int:
    """Return NVML's number for an `NvmlError`."""
    return int(getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN))


def optional(call: Callable[..., Any], *arguments: object) -> Any:
    """Return the answer of an NVML call, or None where it fails: for figures that a measurement can do without."""
    try:
        return call(*arguments)
    except NvmlError:
        return None


def open_nvml() -> str | None:
    """Initialise NVML; return why there is none on this machine, or None when it is ready (then `close_nvml` is due).

    Raises:
        NvmlError: A driver is there and answers with an error.
    """
    try:
        pynvml.nvmlInit()
    except NvmlError as error:
        if code_of(error) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return "no NVIDIA driver: libnvidia-ml.so.1 was not found"
        if code_of(error) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return "libnvidia-ml.so.1 is there, but no NVIDIA driver is loaded"
        raise
    return None


def close_nvml() -> None:
    """Undo `open_nvml`; an error of the driver is ignored, since everything was read before."""
    optional(pynvml.nvmlShutdown)


def gpu_count() -> int:
    """Return how many GPUs NVML lists.

    Raises:
        NvmlError: The driver does not tell.
    """
    return int(pynvml.nvmlDeviceGetCount())


def device(index: int) -> Device:
    """Return NVML's handle of a GPU by its index."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def uuid(gpu: Device) -> str:
    """Return "GPU-…"."""
    return str(pynvml.nvmlDeviceGetUUID(gpu))


def counter_mj(gpu: Device) -> int:
    """Return energy since the driver was loaded, in millijoules.

    Source: NVML API, nvmlDeviceGetTotalEnergyConsumption.

    Raises:
        NvmlError: It cannot be read, or holds what no counter of millijoules reaches, as all ones do.
    """
    return plausible_mj(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu))


def plausible_mj(value: int) -> int:
    """Return a counter's reading, in millijoules.

    Raises:
        NvmlError: No counter of millijoules gets there.
    """
    if value > LARGEST_MJ:
        raise NvmlError(pynvml.NVML_ERROR_UNKNOWN)
    return int(value)


def field(gpu: Device, field_id: int, scope: int = GPU) -> float:
    """Return one of NVML's numbered fields, in NVML's own unit; `scope` is the part whose power a field tells.

    Raises:
        NvmlError: With the field's own status.
    """
    value = pynvml.nvmlDeviceGetFieldValues(gpu, [(field_id, scope)])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise NvmlError(value.nvmlReturn)
    return float(getattr(value.value, _UNION_MEMBER[value.valueType]))


def power_instant_w(gpu: Device, scope: int = GPU) -> float:
    """Return instant power of `GPU` or `MODULE` in watts."""
    return field(gpu, pynvml.NVML_FI_DEV_POWER_INSTANT, scope) / MW_PER_W


def power_average_field_w(gpu: Device, scope: int = GPU) -> float:
    """Return power of `GPU` or `MODULE`, averaged by the driver, in watts."""
    return field(gpu, pynvml.NVML_FI_DEV_POWER_AVERAGE, scope) / MW_PER_W


def hbm_power_w(gpu: Device) -> float:
    """Return power of the memory, which is a part of the board's, averaged by the driver, in watts.

    Source: NVML API, NVML_FI_DEV_POWER_AVERAGE with NVML_POWER_SCOPE_MEMORY.
    """
    return field(gpu, pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_POWER_SCOPE_MEMORY) / MW_PER_W


def power_usage_w(gpu: Device) -> float:
    """Return board power in watts; a one-second average on recent GPUs.

    Source: NVML API, nvmlDeviceGetPowerUsage.
    """
    return float(pynvml.nvmlDeviceGetPowerUsage(gpu)) / MW_PER_W


def power_samples(gpu: Device, scope: int = GPU) -> list[tuple[int, float]]:
    """Return the driver's buffered samples of power, the oldest first: time of day in microseconds, watts.

    Source: NVML API, nvmlDeviceGetSamples with NVML_TOTAL_POWER_SAMPLES (each is the mean of about the 20 ms before it)
    or NVML_MODULE_POWER_SAMPLES.
    """
    kind = pynvml.NVML_MODULE_POWER_SAMPLES if scope == MODULE else pynvml.NVML_TOTAL_POWER_SAMPLES
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(gpu, kind, 0)
    except NvmlError as error:
        if code_of(error) == pynvml.NVML_ERROR_NOT_FOUND:
            return []
        raise
    # An attribute of pynvml's structures costs more than a read of the whole buffer.
    return [(at_us, milliwatts / MW_PER_W) for at_us, milliwatts in _SAMPLE.iter_unpack(b"".join(samples))]


def temperature_c(gpu: Device) -> float:
    """Return the GPU's own temperature in degrees Celsius."""
    return float(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))


def memory_temperature_c(gpu: Device) -> float:
    """Return the memory's temperature in degrees Celsius."""
    return field(gpu, pynvml.NVML_FI_DEV_MEMORY_TEMP)


def sm_clock_mhz(gpu: Device) -> float:
    """Return the SM clock in MHz."""
    return float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))


def memory_clock_mhz(gpu: Device) -> float:
    """Return the memory clock in MHz."""
    return float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM))


def violation_ns(gpu: Device, policy: int) -> float:
    """Return for how long, since the driver was loaded, clocks were held down by one policy, in nanoseconds.

    Source: NVML API, nvmlDeviceGetViolationStatus.
    """
    return float(pynvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime)


@dataclass(frozen=True)
class Memory:
    """A GPU's memory; `reserved_bytes` is the driver's own."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int


def memory(gpu: Device) -> Memory:
    """Return a GPU's memory.

    Source: NVML API, nvmlDeviceGetMemoryInfo_v2 (total = reserved + used + free).
    """
    sizes = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    return Memory(int(sizes.total), int(sizes.used), int(sizes.reserved))


def memory_used_bytes(gpu: Device) -> float:
    """Return memory in use in bytes."""
    return float(memory(gpu).used_bytes)


def power_limit_w(gpu: Device) -> float:
    """Return the power limit that is enforced, in watts."""
    return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) / MW_PER_W


def power_limit_default_w(gpu: Device) -> float:
    """Return the board's own power limit, in watts."""
    return float(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu)) / MW_PER_W


def power_profiles(gpu: Device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the workload power profiles that were requested, and of those in force.

    Source: NVML API, nvmlDeviceWorkloadPowerProfileGetCurrentProfiles.
    """
    current = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(gpu, byref(current))
    return _profile_names(current.requestedProfilesMask), _profile_names(current.enforcedProfilesMask)


def _profile_names(mask: Any) -> tuple[str, ...]:
    """Return the names of the bits that are set; a bit that is newer than pynvml is "profile 26"."""
    bits = (bit for bit in range(pynvml.NVML_WORKLOAD_POWER_MAX_PROFILES) if mask.mask[bit // 32] >> bit % 32 & 1)
    return tuple(_PROFILE_NAMES.get(bit, f"profile {bit}") for bit in bits)


def clocks_limited(gpu: Device) -> float:
    """Return 1 where a setting (application or locked clocks) holds clocks down now, else 0; idle may not show it.

    Source: NVML API, nvmlClocksEventReasonApplicationsClocksSetting.
    """
    # The call's newer name is unknown to drivers before 535.
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
    return float(bool(reasons & pynvml.nvmlClocksEventReasonApplicationsClocksSetting))


def gpu_utilization_percent(gpu: Device) -> float:
    """Return the share of NVML's last sampling period during which a kernel ran, in percent."""
    return float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)


def processes(gpu: Device, kind: ProcessKind) -> tuple[tuple[int, int | None], ...]:
    """Return (process id, bytes or None) of each process of one kind.

    Raises:
        NvmlError: The list cannot be read.
    """
    # Without a version in its name, pynvml's call raises no NvmlError where the driver lacks the newest version.
    listed = getattr(pynvml, f"nvmlDeviceGet{PROCESS_LISTS[kind]}RunningProcesses_v3")(gpu)
    return tuple((int(process.pid), process.usedGpuMemory) for process in listed)
