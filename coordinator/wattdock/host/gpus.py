"""Which GPUs this host has, how they are linked, and what they are doing now.

Reads NVML once and opens no CUDA context. Chooses nothing and meters nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pynvml

from wattdock.errors import PreflightError
from wattdock.host import nvml
from wattdock.host.activity import read_activity
from wattdock.host.nvml import known, told
from wattdock.host.topology import read_links, read_nvlinks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wattdock.host.activity import GpuActivity
    from wattdock.host.topology import Link

AFFINITY_WORDS = 16
WORD_BITS = 64


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as NVML describes it; None where it does not say.

    Attributes:
        index: NVML's, which follows the PCI bus order.
        uuid: In NVML's form, "GPU-…".
        vram_used_bytes: At the time of reading; what the driver keeps for itself stands apart where it says so.
        vram_reserved_bytes: What the driver keeps for itself; None where it counts that as used.
        power_limit_w: The limit enforced now; `power_limit_default_w` is the board's own.
        ecc, mig, persistence: Whether the mode is on.
        compute_capability: "9.0" for Hopper.
        cuda_driver_version: Newest CUDA that the driver supports, "13.0".
        mig_slices: UUIDs of its MIG devices.
        pcie_generation, pcie_width: Of the link as it is now; an idle GPU lowers its generation.
        numa_node: Of the host memory nearest to it.
        cpus: CPUs nearest to it, "0-15,32".
        nvlinks: Active NVLinks, to GPUs or switches; 0 without NVLink.
        nvlink_version: "4.0" on Hopper.
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
    mig_slices: tuple[str, ...] = ()
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nvlinks: int | None = None
    nvlink_version: str | None = None
    nvml_version: str | None = None
    vram_reserved_bytes: int | None = None

    @property
    def vram_free_bytes(self) -> int | None:
        """VRAM that a process can have."""
        if self.vram_total_bytes is None or self.vram_used_bytes is None:
            return None
        return self.vram_total_bytes - self.vram_used_bytes - (self.vram_reserved_bytes or 0)


@dataclass(frozen=True)
class GpuInventory:
    """Every GPU in NVML's order, or none and the reason for it; `unreadable` names those that did not answer.

    Attributes:
        links: One for each pair of GPUs.
        activity: What each GPU was doing, by UUID.
    """

    gpus: tuple[GpuInfo, ...]
    reason: str | None = None
    unreadable: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    activity: Mapping[str, GpuActivity] = field(default_factory=dict)


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
    devices: dict[str, nvml.Device] = {}
    activity: dict[str, GpuActivity] = {}
    unreadable: list[str] = []
    for index in range(count):
        try:
            device = nvml.device(index)
            info = _read(index, device)
            activity[info.uuid] = read_activity(device)
        except nvml.NvmlError as error:
            unreadable.append(f"GPU {index}: {error}")
            continue
        found.append(info)
        devices[info.uuid] = device
    return GpuInventory(
        gpus=tuple(found),
        reason=None if count else "the NVIDIA driver lists no GPU",
        unreadable=tuple(unreadable),
        links=read_links(devices),
        activity=activity,
    )


def _read(index: int, gpu: nvml.Device) -> GpuInfo:
    memory = known(nvml.memory, gpu)
    capability = known(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
    cuda = known(pynvml.nvmlSystemGetCudaDriverVersion)
    pci = known(pynvml.nvmlDeviceGetPciInfo, gpu)
    nvlinks, nvlink_version = read_nvlinks(gpu)
    return GpuInfo(
        index=index,
        uuid=nvml.uuid(gpu),
        name=str(pynvml.nvmlDeviceGetName(gpu)),
        vram_total_bytes=None if memory is None else memory.total_bytes,
        vram_used_bytes=None if memory is None else memory.used_bytes,
        power_limit_w=_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu),
        power_limit_default_w=_watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, gpu),
        sm_clock_max_mhz=told(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        memory_clock_max_mhz=told(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
        ecc=_is_on(pynvml.nvmlDeviceGetEccMode, gpu),
        mig=_is_on(pynvml.nvmlDeviceGetMigMode, gpu),
        persistence=_is_on(pynvml.nvmlDeviceGetPersistenceMode, gpu),
        pci_bus_id=None if pci is None else nvml.text(pci.busId),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        driver_version=known(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        mig_slices=_mig_slices(gpu),
        pcie_generation=told(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu),
        pcie_generation_max=told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu),
        pcie_width=told(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu),
        pcie_width_max=told(pynvml.nvmlDeviceGetMaxPcieLinkWidth, gpu),
        numa_node=_numa_node(gpu),
        cpus=_cpus(gpu),
        nvlinks=nvlinks,
        nvlink_version=nvlink_version,
        nvml_version=told(pynvml.nvmlSystemGetNVMLVersion),
        vram_reserved_bytes=None if memory is None else memory.reserved_bytes,
    )


def _mig_slices(gpu: nvml.Device) -> tuple[str, ...]:
    """UUIDs of the MIG devices that exist; NVML counts places, of which some are empty."""
    slices = []
    for place in range(told(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        try:
            slices.append(nvml.uuid(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)))
        except nvml.NvmlError as error:
            if nvml.code_of(error) != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return tuple(slices)


def _numa_node(gpu: nvml.Device) -> int | None:
    nodes = told(pynvml.nvmlDeviceGetMemoryAffinity, gpu, AFFINITY_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    return None if nodes is None else next(iter(_bits(nodes)), None)


def _cpus(gpu: nvml.Device) -> str | None:
    words = told(pynvml.nvmlDeviceGetCpuAffinity, gpu, AFFINITY_WORDS)
    return None if words is None else ranges(_bits(words))


def _bits(words: Any) -> list[int]:
    return [WORD_BITS * place + bit for place, word in enumerate(words) for bit in range(WORD_BITS) if word >> bit & 1]


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers as the kernel writes CPU lists: "0-3,8"."""
    starts = [one for one in numbers if one - 1 not in numbers]
    ends = [one for one in numbers if one + 1 not in numbers]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _watts(call: Callable[..., Any], gpu: nvml.Device) -> float | None:
    milliwatts = known(call, gpu)
    return None if milliwatts is None else float(milliwatts) / nvml.MW_PER_W


def _is_on(call: Callable[..., Any], gpu: nvml.Device) -> bool | None:
    """Some modes are answered as one state, some as the current and the pending one."""
    state = known(call, gpu)
    if state is None:
        return None
    return bool(state[0] if isinstance(state, list | tuple) else state)
