"""A host's GPUs: what each GPU is, what it is doing, and how GPUs are linked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# Source: nvidia-smi topo -m, legend.
MEANING = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe root",
    "NODE": "PCIe roots of one CPU",
    "SYS": "the link between CPUs",
}
# From slow to fast; NVLink is faster than each of them.
ORDER = ("SYS", "NODE", "PHB", "PXB", "PIX")
THROUGH_THE_CPU = frozenset({"SYS", "NODE", "PHB"})
# A driver keeps some hundred megabytes for itself. More in use without a process in sight means a process that this
# machine does not show, as from inside a container.
HIDDEN_USE_BYTES = 2_000_000_000
OCCUPYING = ("compute", "mps")


class Gpu(Stored):
    """One GPU of the host as NVML describes it; None where the driver does not tell.

    Attributes:
        index: NVML's, which follows the PCI bus order.
        uuid: In NVML's form, "GPU-…".
        vram_used_bytes: At the time of reading, without `vram_reserved_bytes` where the driver tells them apart.
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
    vram_total_bytes: int | None = None
    vram_used_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
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


class Link(Stored):
    """How two GPUs are linked; None where the driver does not tell.

    Attributes:
        a, b: UUIDs, a before b in NVML's order.
        nvlinks: NVLinks between them, direct or through a switch.
        path: The way over PCIe: "PIX", "PXB", "PHB", "NODE" or "SYS".
        peer_access: Each GPU may write to the other's memory.
        label: As in `nvidia-smi topo -m`: "NV18", "PIX", …; "?" where nothing is known. Follows from the others.
    """

    a: str
    b: str
    nvlinks: int | None
    path: str | None
    peer_access: bool | None
    label: str = "?"

    @model_validator(mode="before")
    @classmethod
    def _labelled(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "label" in given:
            return given
        nvlinks = given.get("nvlinks")
        return given | {"label": f"NV{nvlinks}" if nvlinks else given.get("path") or "?"}

    @property
    def rank(self) -> int:
        """Greater is faster; of use only to compare links of one host."""
        if self.nvlinks:
            return len(ORDER) + self.nvlinks
        return ORDER.index(self.path) if self.path else -1

    @property
    def meaning(self) -> str:
        """What the label of a way over PCIe stands for."""
        return MEANING.get(self.label, self.label)


@dataclass(frozen=True)
class GpuProcess:
    """A process that NVML lists on a GPU.

    Attributes:
        memory_bytes: VRAM it holds; None where the driver does not tell.
        user, command: None where /proc does not show the process, as in a container that sees others' ids.
    """

    pid: int
    kind: Literal["compute", "graphics", "mps"]
    memory_bytes: int | None
    user: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {self.memory_bytes / 1e9:.1f} GB"
        return f"process {self.pid} ({self.user or 'unknown user'}, {self.command or 'unknown command'}{size})"


@dataclass(frozen=True)
class GpuActivity:
    """One GPU at one instant; None where it does not say.

    Attributes:
        utilization_percent: Share of NVML's last sampling period during which a kernel ran.
        clocks_limited: Clocks are held down by a setting (application clocks or locked clocks), not by load.
        has_counter: The energy counter answers.
    """

    power_w: float | None
    utilization_percent: float | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    clocks_limited: bool | None
    has_counter: bool
    processes: tuple[GpuProcess, ...]


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

    def slow_links(self, uuids: Collection[str]) -> tuple[Link, ...]:
        """Return the links between these GPUs over which data would go through the CPU."""
        return tuple(link for link in self.links_among(uuids) if link.label in THROUGH_THE_CPU)

    def warnings(self, group: Sequence[Gpu]) -> tuple[str, ...]:
        """Return why a model should not be split over these GPUs."""
        index = {gpu.uuid: gpu.index for gpu in group}
        slow = [
            f"GPUs {index[link.a]} and {index[link.b]} are linked over {link.meaning} ({link.label}), not NVLink: "
            "a model split over them pays for it"
            for link in self.slow_links(index.keys())
        ]
        names = sorted({gpu.name for gpu in group})
        mixed = [f"the GPUs chosen are of {len(names)} models: {', '.join(names)}"] if len(names) > 1 else []
        return (*slow, *mixed)
