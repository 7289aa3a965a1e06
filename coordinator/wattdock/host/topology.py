"""How the GPUs of a host are linked, in the words of `nvidia-smi topo -m`.

Reading asks NVML; everything else is pure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml

from wattdock.host import nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

# Source: nvidia-smi topo -m, legend.
PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
MEANING = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe root",
    "NODE": "PCIe roots of one CPU",
    "SYS": "the link between CPUs",
}
# From slow to fast; a NVLink is faster than each of them.
ORDER = ("SYS", "NODE", "PHB", "PXB", "PIX")
THROUGH_THE_CPU = frozenset({"SYS", "NODE", "PHB"})
# Source: nvml.h, NVML_NVLINK_VERSION_*.
NVLINK_VERSIONS = {
    pynvml.NVML_NVLINK_VERSION_1_0: "1.0",
    pynvml.NVML_NVLINK_VERSION_2_0: "2.0",
    pynvml.NVML_NVLINK_VERSION_2_2: "2.2",
    pynvml.NVML_NVLINK_VERSION_3_0: "3.0",
    pynvml.NVML_NVLINK_VERSION_3_1: "3.1",
    pynvml.NVML_NVLINK_VERSION_4_0: "4.0",
    pynvml.NVML_NVLINK_VERSION_5_0: "5.0",
    pynvml.NVML_NVLINK_VERSION_6_0: "6.0",
}


@dataclass(frozen=True)
class Link:
    """How two GPUs are linked; None where the driver does not tell.

    Attributes:
        a, b: UUIDs, a before b in NVML's order.
        nvlinks: NVLinks between them, direct or through a switch.
        path: The way over PCIe: "PIX", "PXB", "PHB", "NODE" or "SYS".
        peer_access: One may write to the other's memory.
    """

    a: str
    b: str
    nvlinks: int | None
    path: str | None
    peer_access: bool | None

    @property
    def label(self) -> str:
        """As in `nvidia-smi topo -m`: "NV18", "PIX", …; "?" where nothing is known."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.path or "?"

    @property
    def rank(self) -> int:
        """Greater is faster; of use only to compare links of one host."""
        if self.nvlinks:
            return len(ORDER) + self.nvlinks
        return ORDER.index(self.path) if self.path else -1


def links_among(uuids: Collection[str], links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links between these GPUs."""
    return tuple(link for link in links if link.a in uuids and link.b in uuids)


def slow_links(uuids: Collection[str], links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links between these GPUs over which data would go through the CPU."""
    return tuple(link for link in links_among(uuids, links) if link.label in THROUGH_THE_CPU)


def read_nvlinks(gpu: nvml.Device) -> tuple[int | None, str | None]:
    """Return how many NVLinks of a GPU are active, and their version as text; 0 and None without NVLink."""
    active = _active_links(gpu)
    if not active:
        return 0, None
    version = _told(pynvml.nvmlDeviceGetNvLinkVersion, gpu, active[0])
    return len(active), None if version is None else NVLINK_VERSIONS.get(version, f"unknown ({version})")


def read_links(devices: Mapping[str, nvml.Device]) -> tuple[Link, ...]:
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
    """Links that end at the other GPU; behind switches, where none does, as many as both have."""
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
    """What NVML says, or None: a link that cannot be read, even of a lost GPU, takes no inventory with it."""
    try:
        return call(*arguments)
    except nvml.NvmlError:
        return None
