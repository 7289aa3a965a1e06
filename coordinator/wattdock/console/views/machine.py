"""This machine for a terminal: GPUs and checks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.console.views.terminal import Listing
from wattdock.host import leases
from wattdock.reports.cells import NOTHING, number

if TYPE_CHECKING:
    from wattdock.analysis import Check
    from wattdock.console.views.terminal import View
    from wattdock.host import Gpu, GpuInventory
    from wattdock.live import GpuSnapshot

BYTES_PER_GB = 1e9
COLUMNS = ("GPU", "model", "VRAM GB", "busy", "W", "limit", "°C", "SM MHz", "modes")
STYLES = {"pass": "green", "info": "cyan", "warn": "yellow", "fail": "bold red", "unknown": "bold magenta"}
INDENT = " " * 8


def gpus_view(snapshot: GpuSnapshot) -> View:
    """Yield a line for all GPUs, a table, each GPU's place and users, and how they are linked."""
    host = snapshot.inventory
    yield Text(_summary(host), style="bold")
    if host.gpus:
        yield Listing(COLUMNS, [_cells(gpu, host) for gpu in host.gpus])
    for gpu in host.gpus:
        pcie = f"PCIe {gpu.pcie_generation or NOTHING} ×{gpu.pcie_width or NOTHING}"
        nvlink = f", {gpu.nvlinks} NVLinks" if gpu.nvlinks else ""
        yield f"{gpu.index}  {gpu.uuid}  {pcie}{nvlink}"
        if holder := snapshot.leases.get(gpu.uuid):
            yield f"   leased by {holder}"
        if gpu.power_profiles or gpu.power_profiles_requested:
            profiles = gpu.power_profiles, gpu.power_profiles_requested
            in_force, requested = (", ".join(names or ()) or "none" for names in profiles)
            yield f"   power profile: {in_force} (requested: {requested})"
        if gpu.mig_slices:
            yield f"   MIG slices {', '.join(gpu.mig_slices)}: not metered, a slice has no energy counter"
        activity = host.activity.get(gpu.uuid)
        processes = activity.processes if activity else ()
        yield from (f"   {process.kind}: {process}" for process in processes)
        if not processes and (user := snapshot.occupied[gpu.uuid]):
            yield f"   {user}"
    if len(host.gpus) > 1:
        # As `nvidia-smi topo -m` shows them.
        labels = {frozenset((link.a, link.b)): link.label for link in host.links}
        names = [f"GPU{gpu.index}" for gpu in host.gpus]
        links = [[labels.get(frozenset((row.uuid, other.uuid)), "X") for other in host.gpus] for row in host.gpus]
        yield Listing(("links", *names), [(name, *row) for name, row in zip(names, links, strict=True)])
    yield from (Text(f"does not answer: {gpu}", style="red") for gpu in host.unreadable)
    if holder := snapshot.leases.get(leases.MACHINE):
        yield f"the machine is in exclusive use by {holder}"
    elif holder := snapshot.leases.get(leases.CPU):
        yield f"the CPU is in exclusive use by {holder}"
    if snapshot.leases_unknown:
        yield f"leases unknown: {snapshot.leases_unknown}"


def _summary(host: GpuInventory) -> str:
    if not host.gpus:
        return f"no GPU: {host.reason or 'none answers'}"
    models = ", ".join(f"{count} × {name}" for name, count in Counter(gpu.name for gpu in host.gpus).items())
    first = host.gpus[0]
    driver = f"driver {first.driver_version or NOTHING}, CUDA up to {first.cuda_driver_version or NOTHING}"
    return f"{models}; {driver}"


def _cells(gpu: Gpu, host: GpuInventory) -> tuple[str, ...]:
    now = host.activity.get(gpu.uuid)
    modes = {"ECC": gpu.ecc, "MIG": gpu.mig, "PM": gpu.persistence}
    busy = now.utilization_percent if now else None
    return (
        str(gpu.index),
        gpu.name.removeprefix("NVIDIA "),
        f"{_gb(gpu.vram_used_bytes)}/{_gb(gpu.vram_total_bytes)}",
        NOTHING if busy is None else f"{busy:.0f}%",
        number(now.power_w if now else None, ",.0f"),
        number(gpu.power_limit_w, ",.0f"),
        number(now.temperature_c if now else None, ".0f"),
        number(now.sm_clock_mhz if now else None, ".0f"),
        " ".join(name if on else f"{name}?" for name, on in modes.items() if on or on is None),
    )


def _gb(count: float | None) -> str:
    return number(None if count is None else count / BYTES_PER_GB, ".1f")


def check_view(check: Check) -> View:
    """Yield one check: status, name, figure and limit, and below them what to do."""
    limit = f" (limit: {check.threshold})" if check.threshold else ""
    yield Text.assemble((f"{check.status:<8}", STYLES[check.status]), f"{check.name}: {check.figure}{limit}")
    if check.remedy:
        yield f"{INDENT}→ {check.remedy}"
