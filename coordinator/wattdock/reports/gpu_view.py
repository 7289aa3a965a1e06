"""What a host's GPUs are and do at one instant, how they are linked, and who measures on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.errors import PreflightError
from wattdock.host import GpuInventory, leases
from wattdock.reports.terminal import NOTHING, Sheet, number
from wattdock.values import known_sum

if TYPE_CHECKING:
    from wattdock.host import Gpu
    from wattdock.reports.terminal import View

BYTES_PER_GB = 1e9
COLUMNS = ("GPU", "model", "VRAM GB", "busy", "W", "limit", "°C", "SM MHz", "modes")


@dataclass(frozen=True)
class GpuView:
    """Every GPU of a host at one instant.

    Attributes:
        occupied: By UUID who uses a GPU, in words; None where it is free.
        leases: Who measures, by GPU UUID, "machine" or "cpu".
        leases_unknown: Why the leases of others cannot be read; None where they can.
    """

    inventory: GpuInventory
    occupied: dict[str, str | None]
    leases: dict[str, leases.Holder]
    leases_unknown: str | None
    at_utc: str
    schema_version: int = 1

    @classmethod
    def unseen(cls) -> GpuView:
        """Return the view of a host that was not looked at yet."""
        return cls(GpuInventory(()), {}, {}, None, "")

    @classmethod
    def now(cls) -> GpuView:
        """Look at this host.

        Raises:
            PreflightError: An NVIDIA driver is there and cannot be talked to.
        """
        host = GpuInventory.here()
        holders: dict[str, leases.Holder] = {}
        leases_unknown = None
        try:
            folder = leases.folder_in_use()
            holders, leases_unknown = leases.holders(folder), leases.unshared(folder)
        except PreflightError as error:
            leases_unknown = str(error)
        occupied = {gpu.uuid: host.why_occupied(gpu) for gpu in host.gpus}
        return cls(host, occupied, holders, leases_unknown, datetime.now(UTC).isoformat(timespec="seconds"))

    def as_view(self) -> View:
        """Yield a line for all GPUs, a table, a block per GPU, and how they are linked."""
        host = self.inventory
        yield Text(_summary(host), style="bold")
        if host.gpus:
            yield Sheet(COLUMNS, [_cells(gpu, host) for gpu in host.gpus])
        for gpu in host.gpus:
            yield from _block(gpu, self)
        if len(host.gpus) > 1:
            yield _links(host)
        yield from (Text(f"does not answer: {gpu}", style="red") for gpu in host.unreadable)
        if holder := self.leases.get(leases.MACHINE):
            yield f"the machine is in exclusive use by {holder}"
        elif holder := self.leases.get(leases.CPU):
            yield f"the CPU is in exclusive use by {holder}"
        if self.leases_unknown:
            yield f"leases unknown: {self.leases_unknown}"


def _summary(host: GpuInventory) -> str:
    if not host.gpus:
        return f"no GPU: {host.reason or 'none answers'}"
    models = ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name for gpu in host.gpus).items())
    used = known_sum(gpu.vram_used_bytes for gpu in host.gpus)
    total = known_sum(gpu.vram_total_bytes for gpu in host.gpus)
    power_w = known_sum(activity.power_w for activity in host.activity.values())
    limit_w = known_sum(gpu.power_limit_w for gpu in host.gpus)
    first = host.gpus[0]
    driver = f"driver {first.driver_version or NOTHING}, CUDA up to {first.cuda_driver_version or NOTHING}"
    return f"{models}: {_gb(used)} of {_gb(total)} GB in use, {_watts(power_w)} of {_watts(limit_w)} W; {driver}"


def _cells(gpu: Gpu, host: GpuInventory) -> tuple[str, ...]:
    now = host.activity.get(gpu.uuid)
    modes = {"ECC": gpu.ecc, "MIG": gpu.mig, "PM": gpu.persistence}
    busy = now.utilization_percent if now else None
    return (
        str(gpu.index),
        gpu.name.removeprefix("NVIDIA "),
        f"{_gb(gpu.vram_used_bytes)}/{_gb(gpu.vram_total_bytes)}",
        NOTHING if busy is None else f"{busy:.0f}%",
        _watts(now.power_w if now else None),
        _watts(gpu.power_limit_w),
        number(now.temperature_c if now else None, ".0f"),
        number(now.sm_clock_mhz if now else None, ".0f"),
        " ".join(name if on else f"{name}?" for name, on in modes.items() if on or on is None),
    )


def _block(gpu: Gpu, view: GpuView) -> View:
    """Yield the UUID and place of one GPU, then who uses it."""
    pcie = f"PCIe {gpu.pcie_generation or NOTHING} ×{gpu.pcie_width or NOTHING}"
    nvlink = f", {gpu.nvlinks} NVLinks" if gpu.nvlinks else ""
    yield f"{gpu.index}  {gpu.uuid}  {pcie}{nvlink}"
    if holder := view.leases.get(gpu.uuid):
        yield f"   leased by {holder}"
    if gpu.mig_slices:
        yield f"   MIG slices {', '.join(gpu.mig_slices)}: not metered, a slice has no energy counter"
    activity = view.inventory.activity.get(gpu.uuid)
    processes = activity.processes if activity else ()
    yield from (f"   {process.kind}: {process}" for process in processes)
    if not processes and (user := view.occupied[gpu.uuid]):
        yield f"   {user}"


def _links(host: GpuInventory) -> Sheet:
    """Return the links between GPUs, as `nvidia-smi topo -m` shows them."""
    labels = {frozenset((link.a, link.b)): link.label for link in host.links}
    gpus = host.gpus
    rows = [
        (f"GPU{row.index}", *(labels.get(frozenset((row.uuid, other.uuid)), "X") for other in gpus)) for row in gpus
    ]
    return Sheet(("links", *(f"GPU{gpu.index}" for gpu in gpus)), rows)


def _gb(count: float | None) -> str:
    return number(None if count is None else count / BYTES_PER_GB, ".1f")


def _watts(value: float | None) -> str:
    return number(value, ",.0f")
