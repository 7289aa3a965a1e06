"""Which GPUs this host has, and what does not change while they run.

Reads NVML once and opens no CUDA context. Chooses nothing and meters nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from wattdock.errors import PreflightError
from wattdock.host import nvml

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as NVML describes it; None where it does not say.

    Attributes:
        index: NVML's, which follows the PCI bus order.
        uuid: In NVML's form, "GPU-…".
        vram_used_bytes: At the time of reading.
        power_limit_w: The limit enforced now; `power_limit_default_w` is the board's own.
        ecc, mig, persistence: Whether the mode is on.
        compute_capability: "9.0" for Hopper.
        cuda_driver_version: Newest CUDA that the driver supports, "13.0".
    """

    index: int
    uuid: str
    name: str
    vram_total_bytes: int | None
    vram_used_bytes: int | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    sm_clock_max_mhz: int | None
    memory_clock_max_mhz: int | None
    ecc: bool | None
    mig: bool | None
    persistence: bool | None
    pci_bus_id: str | None
    compute_capability: str | None
    driver_version: str | None
    cuda_driver_version: str | None


@dataclass(frozen=True)
class GpuInventory:
    """Every GPU in NVML's order, or none and the reason for it; `unreadable` names those that did not answer."""

    gpus: tuple[GpuInfo, ...]
    reason: str | None = None
    unreadable: tuple[str, ...] = ()


def list_gpus() -> tuple[GpuInfo, ...]:
    """Return every GPU that answers, in NVML's order; empty on a machine without any.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    return inventory().gpus


def inventory() -> GpuInventory:
    """Return every GPU, or why there is none.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    try:
        reason = nvml.open_nvml()
    except nvml.NvmlError as error:
        raise PreflightError(f"NVML cannot be initialised: {error}; does nvidia-smi work on this host?") from error
    if reason is not None:
        return GpuInventory(gpus=(), reason=reason)
    try:
        return _read_all()
    finally:
        nvml.close_nvml()


def _read_all() -> GpuInventory:
    count = nvml.gpu_count()
    found: list[GpuInfo] = []
    unreadable: list[str] = []
    for index in range(count):
        try:
            found.append(_read(index))
        except nvml.NvmlError as error:
            unreadable.append(f"GPU {index}: {error}")
    return GpuInventory(
        gpus=tuple(found),
        reason=None if count else "the NVIDIA driver lists no GPU",
        unreadable=tuple(unreadable),
    )


def _read(index: int) -> GpuInfo:
    gpu = nvml.device(index)
    memory = _known(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    capability = _known(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
    cuda = _known(pynvml.nvmlSystemGetCudaDriverVersion)
    pci = _known(pynvml.nvmlDeviceGetPciInfo, gpu)
    return GpuInfo(
        index=index,
        uuid=nvml.uuid(gpu),
        name=str(pynvml.nvmlDeviceGetName(gpu)),
        vram_total_bytes=None if memory is None else int(memory.total),
        vram_used_bytes=None if memory is None else int(memory.used),
        power_limit_w=_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu),
        power_limit_default_w=_watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, gpu),
        sm_clock_max_mhz=_known(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        memory_clock_max_mhz=_known(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
        ecc=_is_on(pynvml.nvmlDeviceGetEccMode, gpu),
        mig=_is_on(pynvml.nvmlDeviceGetMigMode, gpu),
        persistence=_is_on(pynvml.nvmlDeviceGetPersistenceMode, gpu),
        pci_bus_id=None if pci is None else _text(pci.busId),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        driver_version=_known(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _known(call: Callable[..., Any], *arguments: object) -> Any:
    """What a call answers, or None where this GPU or driver has no answer."""
    try:
        return call(*arguments)
    except nvml.NvmlError as error:
        if nvml.code_of(error) in nvml.NOT_SUPPORTED:
            return None
        raise


def _watts(call: Callable[..., Any], gpu: nvml.Device) -> float | None:
    milliwatts = _known(call, gpu)
    return None if milliwatts is None else float(milliwatts) / nvml.MW_PER_W


def _is_on(call: Callable[..., Any], gpu: nvml.Device) -> bool | None:
    """Some modes are answered as one state, some as the current and the pending one."""
    state = _known(call, gpu)
    if state is None:
        return None
    return bool(state[0] if isinstance(state, list | tuple) else state)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
