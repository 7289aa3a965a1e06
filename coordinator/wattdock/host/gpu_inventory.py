"""This host's GPUs at one instant: read from NVML, without a CUDA context. Meters nothing."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pynvml

from wattdock.errors import Cause, PreflightError
from wattdock.host import nvml
from wattdock.host.gpu import Gpu, GpuActivity, GpuProcess, Link
from wattdock.host.nvml import optional
from wattdock.host.processes import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

# Labels of links that lead through a CPU.
THROUGH_THE_CPU = frozenset({"SYS", "NODE", "PHB"})
# More VRAM in use than this, without a listed process, means a process that this machine does not show, as inside of a
# container; a driver keeps some hundred megabytes for itself.
HIDDEN_USE_BYTES = 2_000_000_000
# Kinds of processes that occupy a GPU; graphics alone does not.
OCCUPYING = ("compute", "mps")
# Source: nvidia-smi topo -m, legend.
PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True)
class GpuInventory:
    """Every GPU of the host at one instant.

    Attributes:
        gpus: In NVML's order.
        reason: Why there is none, where that is so.
        unreadable: GPUs that did not answer, each with the error.
        links: One for each pair of GPUs.
        activity: What each GPU was doing, by UUID.
    """

    gpus: tuple[Gpu, ...]
    reason: str | None = None
    unreadable: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    activity: Mapping[str, GpuActivity] = field(default_factory=dict)

    @classmethod
    def here(cls) -> GpuInventory:
        """Return every GPU of this host, or why there is none.

        Raises:
            PreflightError: An NVIDIA driver is there and cannot be talked to.
        """
        try:
            if (reason := nvml.open_nvml()) is not None:
                return cls(gpus=(), reason=reason)
            try:
                return _read_inventory()
            finally:
                nvml.close_nvml()
        except nvml.NvmlError as error:
            replaced = nvml.code_of(error) == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            remedy = nvml.DRIVER_REPLACED if replaced else "does nvidia-smi work on this host?"
            raise PreflightError(f"NVML cannot be read: {error}", remedy, cause=Cause.NO_DRIVER) from error

    def visible(self, variable: str | None) -> tuple[Gpu, ...]:
        """Return the GPUs that CUDA shows for a value of CUDA_VISIBLE_DEVICES, in the order of their indices.

        The list ends at the first word that names no GPU here, or several; a GPU named twice hides all.

        Source: CUDA programming guide, "CUDA Environment Variables"; PyTorch 2, torch/cuda/__init__.py,
            `_parse_visible_devices`: an index is the number that a word begins with.
        """
        if variable is None:
            return self.gpus
        shown: list[Gpu] = []
        for word in map(str.strip, variable.split(",")):
            index = re.match(r"\+?(\d+)", word)
            if index:
                named = [gpu for gpu in self.gpus if gpu.index == int(index[1])]
            else:
                named = [gpu for gpu in self.gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
            if len(named) != 1:
                break
            if named[0] in shown:
                return ()
            shown += named
        return tuple(sorted(shown, key=lambda gpu: gpu.index))

    def without(self, pids: Collection[int]) -> GpuInventory:
        """Return the inventory as if these processes were not there; memory in use beside them is unknown then."""
        own = {uuid for uuid, used in self.activity.items() if any(process.pid in pids for process in used.processes)}
        activity = {
            uuid: replace(used, processes=tuple(process for process in used.processes if process.pid not in pids))
            for uuid, used in self.activity.items()
        }
        gpus = (gpu.model_copy(update={"vram_used_bytes": None}) if gpu.uuid in own else gpu for gpu in self.gpus)
        return replace(self, gpus=tuple(gpus), activity=activity)

    def why_occupied(self, gpu: Gpu) -> str | None:
        """Return who uses a GPU now, as far as this machine shows it; None where it is free."""
        activity = self.activity.get(gpu.uuid)
        busy = [process for process in activity.processes if process.kind in OCCUPYING] if activity else []
        if busy:
            return ", ".join(map(str, busy)) + (" runs on it" if len(busy) == 1 else " run on it")
        if (gpu.vram_used_bytes or 0) > HIDDEN_USE_BYTES:
            return f"{gpu.vram_used_bytes or 0:,} bytes of it are in use by a process that this machine does not show"
        return None

    def links_among(self, uuids: Collection[str]) -> tuple[Link, ...]:
        """Return the links between these GPUs."""
        return tuple(link for link in self.links if link.a in uuids and link.b in uuids)

    def warnings(self, group: Sequence[Gpu]) -> tuple[str, ...]:
        """Return why a model should not be split over these GPUs."""
        index = {gpu.uuid: gpu.index for gpu in group}
        slow = [
            f"GPUs {index[link.a]} and {index[link.b]} are linked through a CPU ({link.label}), not NVLink: "
            "a model split over them pays for it"
            for link in self.links_among(index.keys())
            if link.label in THROUGH_THE_CPU
        ]
        names = sorted({gpu.name for gpu in group})
        mixed = [f"the GPUs chosen are of {len(names)} models: {', '.join(names)}"] if len(names) > 1 else []
        return (*slow, *mixed)


def _read_inventory() -> GpuInventory:
    count = nvml.gpu_count()
    gpus: list[Gpu] = []
    devices: list[nvml.Device] = []
    activity: dict[str, GpuActivity] = {}
    unreadable: list[str] = []
    for index in range(count):
        try:
            device = nvml.device(index)
            gpu = _read_gpu(index, device)
        except nvml.NvmlError as error:
            unreadable.append(f"GPU {index}: {error}")
            continue
        gpus.append(gpu)
        devices.append(device)
        activity[gpu.uuid] = _read_activity(device)
    pairs = itertools.combinations(zip(gpus, devices, strict=True), 2)
    return GpuInventory(
        gpus=tuple(gpus),
        reason=None if count else "the NVIDIA driver lists no GPU",
        unreadable=tuple(unreadable),
        links=tuple(_read_link(a, b, first, second) for (a, first), (b, second) in pairs),
        activity=activity,
    )


def _read_gpu(index: int, gpu: nvml.Device) -> Gpu:
    memory = optional(nvml.memory, gpu)
    cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion)
    requested, in_force = optional(nvml.power_profiles, gpu) or (None, None)
    # NVML counts places of MIG devices, of which some are empty.
    places = range(optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0)
    mig_devices = [optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place) for place in places]
    return Gpu(
        index=index,
        uuid=nvml.uuid(gpu),
        name=str(pynvml.nvmlDeviceGetName(gpu)),
        vram_total_bytes=None if memory is None else memory.total_bytes,
        vram_used_bytes=None if memory is None else memory.used_bytes,
        power_limit_w=optional(nvml.power_limit_w, gpu),
        power_limit_default_w=optional(nvml.power_limit_default_w, gpu),
        ecc=_is_on(pynvml.nvmlDeviceGetEccMode, gpu),
        mig=_is_on(pynvml.nvmlDeviceGetMigMode, gpu),
        persistence=_is_on(pynvml.nvmlDeviceGetPersistenceMode, gpu),
        driver_version=optional(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        mig_slices=tuple(nvml.uuid(mig_device) for mig_device in mig_devices if mig_device is not None),
        pcie_generation=optional(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu),
        pcie_width=optional(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu),
        nvlinks=len(_active_links(gpu)),
        nvml_version=optional(pynvml.nvmlSystemGetNVMLVersion),
        vram_reserved_bytes=None if memory is None else memory.reserved_bytes,
        vbios_version=optional(pynvml.nvmlDeviceGetVbiosVersion, gpu),
        power_profiles_requested=requested,
        power_profiles=in_force,
        power_smoothing=_is_on(nvml.field, gpu, pynvml.NVML_FI_PWR_SMOOTHING_ENABLED),
        power_smoothing_profile=optional(nvml.field, gpu, pynvml.NVML_FI_PWR_SMOOTHING_ACTIVE_PRESET_PROFILE),
    )


def _is_on(call: Callable[..., Any], *arguments: object) -> bool | None:
    """NVML answers some modes with one state, some with the current and the pending state."""
    state = optional(call, *arguments)
    if state is None:
        return None
    return bool(state[0] if isinstance(state, list | tuple) else state)


def _read_activity(gpu: nvml.Device) -> GpuActivity:
    limited = optional(nvml.clocks_limited, gpu)
    return GpuActivity(
        power_w=optional(nvml.power_usage_w, gpu),
        utilization_percent=optional(nvml.gpu_utilization_percent, gpu),
        temperature_c=optional(nvml.temperature_c, gpu),
        sm_clock_mhz=optional(nvml.sm_clock_mhz, gpu),
        clocks_limited=None if limited is None else bool(limited),
        processes=tuple(
            GpuProcess(pid, kind, memory_bytes, *owner_of(pid))
            for kind in nvml.PROCESS_LISTS
            for pid, memory_bytes in optional(nvml.processes, gpu, kind) or ()
        ),
    )


def _read_link(a: Gpu, b: Gpu, first: nvml.Device, second: nvml.Device) -> Link:
    level = optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    # Reading goes with it, and cannot be asked: pynvml's constant for it is a tuple, by a stray comma.
    there = optional(pynvml.nvmlDeviceGetPciInfo, second)
    ends = [optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, first, link) for link in _active_links(first)]
    nvlinks: int | None = sum(1 for end in ends if end is not None and there is not None and end.busId == there.busId)
    if not nvlinks:
        # Behind switches no NVLink ends at the other GPU: there are as many as both GPUs have.
        shared = min(a.nvlinks or 0, b.nvlinks or 0)
        status = optional(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        nvlinks = shared if status == pynvml.NVML_P2P_STATUS_OK else None if status is None and shared else 0
    return Link(a=a.uuid, b=b.uuid, nvlinks=nvlinks, path=PATHS.get(level) if level is not None else None)


def _active_links(gpu: nvml.Device) -> list[int]:
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return [link for link in links if optional(pynvml.nvmlDeviceGetNvLinkState, gpu, link)]
