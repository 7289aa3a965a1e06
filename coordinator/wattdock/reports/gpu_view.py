"""What a host's GPUs are and do, once or again and again: tables for a terminal, or JSON."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from wattdock.errors import PreflightError
from wattdock.host import inventory, leases
from wattdock.reports.terminal import NOTHING, Sheet, console, number
from wattdock.text import print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from wattdock.host import Gpu, GpuInventory

SCHEMA_VERSION = 1
WATCH_S = 2.0
BYTES_PER_GB = 1e9
FIGURES = ("VRAM GB", "busy", "W", "limit", "°C", "SM MHz")


@dataclass(frozen=True)
class GpuView:
    """One look at a host.

    Attributes:
        holders: Who holds which lease, by GPU UUID, "machine" or "cpu".
        leases_unknown: Why that cannot be told; None where it can.
    """

    inventory: GpuInventory
    holders: Mapping[str, leases.Holder]
    leases_unknown: str | None = None


def _look() -> GpuView:
    """Return what the host's GPUs are doing now.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    found = inventory()
    try:
        return GpuView(found, leases.holders())
    except PreflightError as error:
        return GpuView(found, {}, leases_unknown=str(error))


def show_gpus(*, watch: bool, json_lines: bool) -> bool:
    """Print the host's GPUs, with `watch` until Ctrl-C, which is no failure, or none is left; return whether one is.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    out = console(highlight=False)
    found = False
    with ExitStack() as stack:
        if watch:
            stack.enter_context(suppress(KeyboardInterrupt))
        live = stack.enter_context(Live(console=out, auto_refresh=False)) if watch and out.is_terminal else None
        while True:
            view = _look()
            found = bool(view.inventory.gpus)
            if json_lines:
                print_json(_as_json(view), indent=None if watch else 2)
            elif live:
                live.update(_as_tables(view), refresh=True)
            else:
                out.print(_as_tables(view))
            if not (watch and found):
                break
            time.sleep(WATCH_S)
    return found


def _as_json(view: GpuView) -> dict[str, Any]:
    """Return everything known, as JSON-ready values; keys are only ever added."""
    found = view.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "reason": found.reason,
        "totals": _totals(found),
        "gpus": [_gpu(gpu, view) for gpu in found.gpus],
        "links": [link.model_dump(mode="json") for link in found.links],
        "unreadable": list(found.unreadable),
        "machine_lease": _holder(view.holders.get(leases.MACHINE)),
        "cpu_lease": _holder(view.holders.get(leases.CPU)),
        "leases_unknown": view.leases_unknown,
    }


def _as_tables(view: GpuView) -> RenderableType:
    """Return it for people: a line for all, a table, a block per GPU, and how they are linked."""
    found = view.inventory
    parts: list[RenderableType] = [Text(_summary(found), style="bold")]
    parts += [_table(found)] if found.gpus else []
    parts += [_block(gpu, view) for gpu in found.gpus]
    if len(found.gpus) > 1:
        parts.append(_matrix(found))
    parts += [Text(f"does not answer: {gpu}", style="red") for gpu in found.unreadable]
    if holder := view.holders.get(leases.MACHINE):
        parts.append(Text(f"the machine is measured on by {holder}"))
    elif holder := view.holders.get(leases.CPU):
        parts.append(Text(f"the CPU is measured on by {holder}"))
    if view.leases_unknown:
        parts.append(Text(f"leases unknown: {view.leases_unknown}"))
    return Group(*parts)


def _gpu(gpu: Gpu, view: GpuView) -> dict[str, Any]:
    activity = view.inventory.activity.get(gpu.uuid)
    return gpu.model_dump(mode="json") | {
        "vram_free_bytes": gpu.vram_free_bytes,
        "now": None if activity is None else asdict(activity),
        "lease": _holder(view.holders.get(gpu.uuid)),
        "occupied": view.inventory.why_occupied(gpu),
    }


def _holder(holder: leases.Holder | None) -> dict[str, Any] | None:
    return None if holder is None else asdict(holder)


def _totals(found: GpuInventory) -> dict[str, Any]:
    return {
        "gpu_count": len(found.gpus),
        "vram_total_bytes": _sum(gpu.vram_total_bytes for gpu in found.gpus),
        "vram_used_bytes": _sum(gpu.vram_used_bytes for gpu in found.gpus),
        "power_w": _sum(now.power_w for now in found.activity.values()),
        "power_limit_w": _sum(gpu.power_limit_w for gpu in found.gpus),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None where one of them is unknown or there is none."""
    known = list(values)
    return None if not known or None in known else sum(value or 0 for value in known)


def _summary(found: GpuInventory) -> str:
    if not found.gpus:
        return f"no GPU: {found.reason or 'none answers'}"
    totals, names = _totals(found), [gpu.name for gpu in found.gpus]
    models = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    vram = f"{_gb(totals['vram_used_bytes'])} of {_gb(totals['vram_total_bytes'])} GB in use"
    power = f"{_watts(totals['power_w'])} of {_watts(totals['power_limit_w'])} W"
    first = found.gpus[0]
    driver = f"driver {first.driver_version or NOTHING}, CUDA up to {first.cuda_driver_version or NOTHING}"
    return f"{models}: {vram}, {power}; {driver}"


def _table(found: GpuInventory) -> Sheet:
    rows = [(str(gpu.index), gpu.name.removeprefix("NVIDIA "), *_state(gpu, found), _modes(gpu)) for gpu in found.gpus]
    return Sheet(("GPU", "model", *FIGURES, "modes"), rows)


def _state(gpu: Gpu, found: GpuInventory) -> Sequence[str]:
    now = found.activity.get(gpu.uuid)
    vram = f"{_gb(gpu.vram_used_bytes)}/{_gb(gpu.vram_total_bytes)}"
    if now is None:
        return (vram, NOTHING, NOTHING, _watts(gpu.power_limit_w), NOTHING, NOTHING)
    return (
        vram,
        number(now.utilization_percent, ".0f") + "%",
        _watts(now.power_w),
        _watts(gpu.power_limit_w),
        number(now.temperature_c, ",.0f"),
        number(now.sm_clock_mhz, ".0f"),
    )


def _modes(gpu: Gpu) -> str:
    """Modes that are on, "?" where one is not told."""
    modes = {"ECC": gpu.ecc, "MIG": gpu.mig, "PM": gpu.persistence}
    return " ".join(name if on else f"{name}?" for name, on in modes.items() if on or on is None)


def _block(gpu: Gpu, view: GpuView) -> Text:
    """UUID and links of one GPU, then who uses it."""
    lines = [f"{gpu.index}  {gpu.uuid}  {_place(gpu)}"]
    if holder := view.holders.get(gpu.uuid):
        lines.append(f"   leased by {holder}")
    if gpu.mig_slices:
        lines.append(f"   MIG slices {', '.join(gpu.mig_slices)}: not metered, a slice has no energy counter")
    activity = view.inventory.activity.get(gpu.uuid)
    lines += [f"   {process.kind}: {process}" for process in (activity.processes if activity else ())]
    occupied = view.inventory.why_occupied(gpu)
    if occupied and not (activity and activity.processes):
        lines.append(f"   {occupied}")
    return Text("\n".join(lines))


def _place(gpu: Gpu) -> str:
    pcie = f"PCIe {gpu.pcie_generation or NOTHING} ×{gpu.pcie_width or NOTHING}"
    numa = "" if gpu.numa_node is None else f", NUMA {gpu.numa_node}"
    nvlink = f", {gpu.nvlinks} NVLinks {gpu.nvlink_version or ''}".rstrip() if gpu.nvlinks else ""
    return pcie + numa + nvlink


def _matrix(found: GpuInventory) -> Sheet:
    """As `nvidia-smi topo -m`."""
    labels = {frozenset((link.a, link.b)): link.label for link in found.links}
    rows = [
        (f"GPU{row.index}", *(labels.get(frozenset((row.uuid, other.uuid)), "X") for other in found.gpus))
        for row in found.gpus
    ]
    return Sheet(("links", *(f"GPU{gpu.index}" for gpu in found.gpus)), rows)


def _gb(count: float | None) -> str:
    return number(None if count is None else count / BYTES_PER_GB, ".1f")


def _watts(value: float | None) -> str:
    return number(value, ",.0f")
