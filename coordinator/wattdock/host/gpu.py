"""A GPU: what it is, what it is doing, and how it is linked to another. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import computed_field

from wattdock.host.nvml import ProcessKind  # noqa: TC001 - what reads records needs it
from wattdock.values import Stored

# Ways over PCIe from slow to fast; NVLink is faster than each of them. Source: nvidia-smi topo -m, legend.
ORDER = ("SYS", "NODE", "PHB", "PXB", "PIX")


# End of the name that a guest sees of a vGPU: its memory in GB and its series.
# Source: NVIDIA vGPU software user guide, "Virtual GPU Types for Supported GPUs": A40-48Q, A100-7-40C, A100-1-5CME.
VGPU = re.compile(r"-\d+[ABCQ](ME)?$")


class Gpu(Stored):
    """One GPU of the host as NVML describes it; None where the driver has no answer.

    Attributes:
        index: NVML's, which follows the PCI bus order.
        uuid: In NVML's form, "GPU-…".
        vram_used_bytes: At the time of reading, without `vram_reserved_bytes`, which the driver keeps for itself.
        power_limit_w: The limit enforced now; `power_limit_default_w` is the board's own.
        ecc, mig, persistence: Whether the mode is on.
        power_profiles_requested, power_profiles: Names of the workload power profiles that were requested, and of those
            in force, as NVML names them: "max-q"; empty where there is none, which is the default.
        power_smoothing: Whether it is on; `power_smoothing_profile` is the number of its active preset.
        cuda_driver_version: Newest CUDA that the driver supports, "13.0".
        mig_slices: UUIDs of its MIG devices.
        pcie_generation, pcie_width: Of the link as it is now; an idle GPU lowers its generation.
        nvlinks: Active NVLinks, to GPUs or switches; 0 without NVLink.
    """

    index: int
    uuid: str
    name: str
    vram_total_bytes: int | None = None
    vram_used_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    mig_slices: tuple[str, ...] = ()
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    nvml_version: str | None = None
    vram_reserved_bytes: int | None = None
    vbios_version: str | None = None
    power_profiles_requested: tuple[str, ...] | None = None
    power_profiles: tuple[str, ...] | None = None
    power_smoothing: bool | None = None
    power_smoothing_profile: int | None = None

    @property
    def no_counter(self) -> str | None:
        """Why what runs on it has no energy of its own; None where it is a whole board."""
        if self.mig:
            slices = ", ".join(self.mig_slices) or "none yet"
            return f"MIG is on (slices: {slices}) and the energy counter is the whole board's"
        return (
            "it is a vGPU, and the energy counter is the whole board's, on the host" if VGPU.search(self.name) else None
        )

    @property
    def vram_free_bytes(self) -> int | None:
        """VRAM that a process can have."""
        if self.vram_total_bytes is None or self.vram_used_bytes is None:
            return None
        return self.vram_total_bytes - self.vram_used_bytes - (self.vram_reserved_bytes or 0)


class Link(Stored):
    """The link between two GPUs; None where the driver has no answer.

    Attributes:
        a, b: UUIDs, a before b in NVML's order.
        nvlinks: NVLinks between them, direct or through a switch.
        path: The way over PCIe: "PIX", "PXB", "PHB", "NODE" or "SYS".
    """

    a: str
    b: str
    nvlinks: int | None
    path: str | None

    @computed_field  # type: ignore[prop-decorator]
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


@dataclass(frozen=True)
class GpuProcess:
    """A process that NVML lists on a GPU.

    Attributes:
        memory_bytes: VRAM that the process holds; None where the driver has no answer.
        user, command: None where /proc does not show the process, as in a container that sees others' ids.
    """

    pid: int
    kind: ProcessKind
    memory_bytes: int | None
    user: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {self.memory_bytes / 1e9:.1f} GB"
        return f"process {self.pid} ({self.user or 'unknown user'}, {self.command or 'unknown command'}{size})"


@dataclass(frozen=True)
class GpuActivity:
    """State of one GPU at one instant; None where the driver has no answer.

    Attributes:
        utilization_percent: Share of NVML's last sampling period during which a kernel ran.
        clocks_limited: Clocks are held down by a setting (application clocks or locked clocks), not by load.
    """

    power_w: float | None
    utilization_percent: float | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    clocks_limited: bool | None
    processes: tuple[GpuProcess, ...]
