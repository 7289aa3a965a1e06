"""Read which GPUs this host has, how they are linked, and what they are doing now.

Reads NVML once and opens no CUDA context. Chooses nothing and meters nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal

import pynvml

from wattdock.errors import PreflightError
from wattdock.host import nvml
from wattdock.host.gpu import Gpu, GpuActivity, GpuInventory, GpuProcess, Link
from wattdock.host.nvml import known, told
from wattdock.host.processes import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROCESS_KINDS: tuple[Literal["compute", "graphics", "mps"], ...] = ("compute", "graphics", "mps")
AFFINITY_WORDS = 16
WORD_BITS = 64
# Source: nvidia-smi topo -m, legend.
PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
# Source: nvml.h, NVML_NVLINK_VERSION_*.
NVLINK_VERSIONS = {
    getattr(pynvml, f"NVML_NVLINK_VERSION_{version.replace('.', '_')}"): version
    for version in ("1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")
}


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
    found: list[Gpu] = []
    devices: dict[str, nvml.Device] = {}
    activity: dict[str, GpuActivity] = {}
    unreadable: list[str] = []
    for index in range(count):
        try:
            device = nvml.device(index)
            info = _read(index, device)
            activity[info.uuid] = _activity(device)
        except nvml.NvmlError as error:
            unreadable.append(f"GPU {index}: {error}")
            continue
        found.append(info)
        devices[info.uuid] = device
    return GpuInventory(
        gpus=tuple(found),
        reason=None if count else "the NVIDIA driver lists no GPU",
        unreadable=tuple(unreadable),
        links=_links(devices),
        activity=activity,
    )


def _read(index: int, gpu: nvml.Device) -> Gpu:
    memory = known(nvml.memory, gpu)
    capability = known(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
    cuda = known(pynvml.nvmlSystemGetCudaDriverVersion)
    pci = known(pynvml.nvmlDeviceGetPciInfo, gpu)
    nvlinks, nvlink_version = _nvlinks(gpu)
    return Gpu(
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
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _watts(call: Callable[..., Any], gpu: nvml.Device) -> float | None:
    milliwatts = known(call, gpu)
    return None if milliwatts is None else float(milliwatts) / nvml.MW_PER_W


def _is_on(call: Callable[..., Any], gpu: nvml.Device) -> bool | None:
    """NVML answers some modes with one state, some with the current and the pending state."""
    state = known(call, gpu)
    if state is None:
        return None
    return bool(state[0] if isinstance(state, list | tuple) else state)


def _activity(gpu: nvml.Device) -> GpuActivity:
    limited = told(nvml.clocks_limited, gpu)
    return GpuActivity(
        power_w=told(nvml.power_usage_w, gpu),
        utilization_percent=told(nvml.gpu_utilization_percent, gpu),
        temperature_c=told(nvml.temperature_c, gpu),
        sm_clock_mhz=told(nvml.sm_clock_mhz, gpu),
        memory_clock_mhz=told(nvml.memory_clock_mhz, gpu),
        clocks_limited=None if limited is None else bool(limited),
        has_counter=told(nvml.counter_mj, gpu) is not None,
        processes=tuple(
            GpuProcess(pid, kind, memory_bytes, *owner_of(pid))
            for kind in PROCESS_KINDS
            for pid, memory_bytes in told(nvml.processes, gpu, kind) or ()
        ),
    )


def _nvlinks(gpu: nvml.Device) -> tuple[int | None, str | None]:
    """Return how many NVLinks of a GPU are active, and their version as text; 0 and None without NVLink."""
    active = _active_links(gpu)
    if not active:
        return 0, None
    version = _told(pynvml.nvmlDeviceGetNvLinkVersion, gpu, active[0])
    return len(active), None if version is None else NVLINK_VERSIONS.get(version, f"unknown ({version})")


def _links(devices: Mapping[str, nvml.Device]) -> tuple[Link, ...]:
    """Return the link of every pair of GPUs.

    Args:
        devices: NVML's handles by UUID, in NVML's order.
    """
    active = {uuid: _active_links(gpu) for uuid, gpu in devices.items()}
    return tuple(
        _read_link(a, b, (devices[a], active[a]), (devices[b], active[b]))
        for a, b in itertools.combinations(devices, 2)
    )


def _read_link(a: str, b: str, *ends: tuple[nvml.Device, list[int]]) -> Link:
    (first, of_first), (second, of_second) = ends
    level = _told(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    # Reading goes with it, and cannot be asked: pynvml's constant for it is a tuple, by a stray comma.
    writable = _told(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_WRITE)
    return Link(
        a=a,
        b=b,
        nvlinks=_nvlinks_between(first, second, of_first, of_second),
        path=PATHS.get(level) if level is not None else None,
        peer_access=None if writable is None else writable == pynvml.NVML_P2P_STATUS_OK,
    )


def _nvlinks_between(first: nvml.Device, second: nvml.Device, of_first: list[int], of_second: list[int]) -> int | None:
    """NVLinks that end at the other GPU; behind switches, where none does, as many as both GPUs have."""
    there = _told(pynvml.nvmlDeviceGetPciInfo, second)
    ends = [_told(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, first, link) for link in of_first]
    direct = sum(1 for end in ends if end is not None and there is not None and end.busId == there.busId)
    if direct:
        return direct
    shared: int = min(len(of_first), len(of_second))
    status = _told(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if status is None:
        return None if shared else 0
    return shared if status == pynvml.NVML_P2P_STATUS_OK else 0


def _active_links(gpu: nvml.Device) -> list[int]:
    active = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _told(pynvml.nvmlDeviceGetNvLinkState, gpu, link)
        active += [link] if state else []
    return active


def _told(call: Callable[..., Any], *arguments: object) -> Any:
    """Return NVML's answer, or None: a link that cannot be read, even of a lost GPU, does not fail the inventory."""
    try:
        return call(*arguments)
    except nvml.NvmlError:
        return None
