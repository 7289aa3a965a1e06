"""Doctor's checks: GPUs with their settings, users and counters; leases, shared memory and CPUs."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wattdock.audit import OTHERS_SHARE, Checklist, Outcome
from wattdock.host import leases, processes
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.host import Gpu, GpuInventory
    from wattdock.metering import Timeline

# An H200's counter steps every 100 ms; one that steps this seldom leaves few steps in a pass.
SLOW_COUNTER_S = 1.0
MAX_BUSY_SHARE = 0.5
NS_PER_MS = 1e6


@dataclass(frozen=True)
class ExaminedGpu:
    """One GPU of this machine, as the checks get it.

    Attributes:
        timeline: A few seconds that the meter recorded of all GPUs.
    """

    gpu: Gpu
    inventory: GpuInventory
    timeline: Timeline

    def as_root(self, options: str) -> str:
        """Return the command that changes the GPU's settings."""
        return f"as root: nvidia-smi -i {self.gpu.index} {options}"


DRIVER, EACH_GPU = Checklist["GpuInventory"](), Checklist[ExaminedGpu]()


@DRIVER.check("driver", remedy="without a GPU wattdock measures speed, not energy; see that nvidia-smi works")
def driver(inventory: GpuInventory) -> Outcome:
    """Whether there is a driver that lists GPUs, and which version."""
    if not inventory.gpus:
        return Outcome("fail", "; ".join(inventory.unreadable) or inventory.reason or "no GPU")
    gpu = inventory.gpus[0]
    versions = f"{gpu.driver_version}, NVML {gpu.nvml_version}, CUDA up to {gpu.cuda_driver_version}"
    return Outcome("pass", f"{versions}, {pluralize(len(inventory.gpus), 'GPU')}")


@DRIVER.check("GPU lost", remedy="reset it or restart the machine; dmesg names the Xid")
def lost(inventory: GpuInventory) -> Outcome | None:
    """Whether every GPU answers."""
    return Outcome("fail", "; ".join(inventory.unreadable)) if inventory.unreadable else None


@EACH_GPU.check("in use", remedy="wait for it to end, or choose other GPUs with --gpus")
def in_use(examined: ExaminedGpu) -> Outcome:
    """Whether somebody uses the GPU."""
    if occupied := examined.inventory.why_occupied(examined.gpu):
        return Outcome("fail", occupied)
    activity = examined.inventory.activity.get(examined.gpu.uuid)
    if activity and activity.processes:
        processes = ", ".join(map(str, activity.processes))
        return Outcome("warn", f"a display: {processes}", remedy="measure on a GPU without a display")
    return Outcome("pass", f"by nobody; {examined.gpu.name}")


@EACH_GPU.check("whole board", threshold="a MIG slice or a vGPU has no energy counter of its own")
def whole_board(examined: ExaminedGpu) -> Outcome | None:
    """Whether the GPU is cut into MIG slices, or a vGPU."""
    if not examined.gpu.no_counter:
        return None
    remedy = examined.as_root("-mig 0") if examined.gpu.mig else "pass a whole board through to this machine"
    return Outcome("fail", examined.gpu.no_counter, remedy=remedy)


@EACH_GPU.check("persistence")
def persistence(examined: ExaminedGpu) -> Outcome | None:
    """Whether the driver stays loaded while nobody uses the GPU."""
    if examined.gpu.persistence is not False:
        return None
    figure = "off: the driver may unload, and the counter start again at 0"
    return Outcome("warn", figure, remedy=examined.as_root("-pm 1"))


@EACH_GPU.check("power limit", remedy="state the limit yourself where you publish")
def power_limit(examined: ExaminedGpu) -> Outcome:
    """Whether the power limit is the board's default."""
    limit_w, default_w = examined.gpu.power_limit_w, examined.gpu.power_limit_default_w
    if limit_w is None or default_w is None:
        return Outcome("warn", "the driver does not report it")
    if limit_w != default_w:
        figure = f"{limit_w:.0f} W, the board's default is {default_w:.0f} W"
        return Outcome("warn", figure, remedy=f"unless intended, {examined.as_root(f'-pl {default_w:.0f}')}")
    return Outcome("pass", f"{limit_w:.0f} W, the board's default")


@EACH_GPU.check("clocks")
def clocks(examined: ExaminedGpu) -> Outcome | None:
    """Whether a setting holds the clocks down."""
    activity = examined.inventory.activity.get(examined.gpu.uuid)
    if not activity or not activity.clocks_limited:
        return None
    remedy = f"unless intended, {examined.as_root('-rgc')}; nvidia-smi -i {examined.gpu.index} -rac"
    return Outcome("warn", "held down by a setting (locked or application clocks)", remedy=remedy)


@EACH_GPU.check(
    "energy counter",
    threshold=f"steps every {SLOW_COUNTER_S:g} s or sooner, at most {MAX_BUSY_SHARE:.0%} of the meter's time in reads",
    remedy="make passes longer: workload.min_duration_s",
)
def energy_counter(examined: ExaminedGpu) -> Outcome:
    """How well the GPU's energy can be read."""
    recorded = examined.timeline.gpus.get(examined.gpu.uuid)
    if recorded is None or not recorded.energy_source:
        events = "; ".join(event.message for event in recorded.events) if recorded else examined.timeline.reason
        return Outcome("fail", events or "not metered", remedy="measure with another driver, or another GPU")
    if recorded.period_s is None:
        remedy = "use the GPU for a moment and look again; else reload the driver"
        return Outcome("fail", "it does not step", remedy=remedy)
    share, ticks = recorded.busy_fraction or 0.0, recorded.ticks
    before_ns, after_ns = ticks.before_end_ns - ticks.before_start_ns, ticks.after_end_ns - ticks.after_start_ns
    reads_ms = np.concatenate([before_ns, after_ns]) / NS_PER_MS
    figure = (
        f"steps every {recorded.period_s * 1e3:.0f} ms, one read takes {np.median(reads_ms):.1f} ms "
        f"(longest {reads_ms.max():.1f}), {share:.1%} of the meter's time goes into NVML"
    )
    return Outcome("warn" if recorded.period_s > SLOW_COUNTER_S or share > MAX_BUSY_SHARE else "pass", figure)


SHARED_MEMORY = Path("/dev/shm")
# Least shared memory.
SHARED_MEMORY_BYTES = 1e9
# How long the CPUs are watched.
WATCHED_S = 1.0


# What a check gets is the folder that holds /proc and /sys.
MACHINE = Checklist[Path]()


@MACHINE.check("leases")
def lease_folder(_: Path) -> Outcome:
    """Whether leases can be taken, and who holds some."""
    folder, holders = leases.folder_in_use(), leases.holders()
    if holders:
        names = "; ".join(f"{name} by {holder}" for name, holder in holders.items())
        return Outcome("warn", f"held: {names}", remedy="wait for them with --wait SECONDS")
    if reason := leases.unshared(folder):
        return Outcome("warn", reason.what, remedy=reason.remedy)
    return Outcome("pass", f"none held, in {folder}")


@MACHINE.check(
    "shared memory",
    threshold=f"{SHARED_MEMORY_BYTES / 1e9:g} GB",
    remedy=f"several GPUs need more; as root: mount -o remount,size=8G {SHARED_MEMORY} (docker: --shm-size 8g)",
)
def shared_memory(_: Path) -> Outcome:
    """Whether processes on several GPUs can share memory."""
    if not SHARED_MEMORY.is_dir():
        return Outcome("warn", f"there is no {SHARED_MEMORY}", remedy="several GPUs need it: mount a tmpfs there")
    size_bytes = shutil.disk_usage(SHARED_MEMORY).total
    return Outcome("warn" if size_bytes < SHARED_MEMORY_BYTES else "pass", f"{size_bytes / 1e9:.1f} GB")


@MACHINE.check(
    "CPU load",
    threshold=f"{OTHERS_SHARE:.0%} busy",
    remedy="end what is not needed (top names it): an engine that waits for its CPUs costs more joules per token",
)
def cpu_load(root: Path) -> Outcome:
    """Whether the CPUs are free: of other work here, and of other virtual machines' on the same host."""
    before = processes.cpu_times(proc=root / "proc")
    time.sleep(WATCHED_S)
    after = processes.cpu_times(proc=root / "proc")
    if not before or not after or (passed := after.total - before.total) <= 0:
        return Outcome("warn", "unknown", remedy="mount /proc: nobody sees who else uses the CPUs")
    share, stolen = (after.busy - before.busy) / passed, (after.stolen - before.stolen) / passed
    if share > OTHERS_SHARE and stolen > share / 2:
        figure = f"{share:.0%} busy, {stolen:.0%} for other virtual machines on the same host"
        return Outcome("warn", figure, remedy="measure on a machine that does not share its CPUs, or at another time")
    return Outcome("warn" if share > OTHERS_SHARE else "pass", f"{share:.0%} busy")


@MACHINE.check(
    "CPU governor", remedy="as root: cpupower frequency-set -g performance; host-bound engines vary otherwise"
)
def governor(root: Path) -> Outcome:
    """Whether the CPUs' frequency is left at its highest."""
    files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    governors = {file.read_text(encoding="utf-8").strip() for file in files}
    figure = ", ".join(sorted(governors)) or "unknown, as on virtual machines"
    return Outcome("warn" if governors - {"performance"} else "pass", figure)
