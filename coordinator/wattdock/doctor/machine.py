"""Checks on the rest of this machine: leases, shared memory, CPUs."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from wattdock.audit import OTHERS_SHARE, Checklist, Outcome
from wattdock.host import leases, processes
from wattdock.opening import PROC

SYSTEM = Path("/sys/devices/system")
SHARED_MEMORY = Path("/dev/shm")
# Least shared memory.
SHARED_MEMORY_BYTES = 1e9
# How long the CPUs are watched.
WATCHED_S = 1.0


@dataclass(frozen=True)
class ExaminedMachine:
    """Where this machine tells of its CPUs: /proc and /sys/devices/system, or stand-ins."""

    proc: Path = PROC
    system: Path = SYSTEM


MACHINE = Checklist[ExaminedMachine]()


@MACHINE.check("leases")
def lease_folder(_: ExaminedMachine) -> Outcome:
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
def shared_memory(_: ExaminedMachine) -> Outcome:
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
def cpu_load(machine: ExaminedMachine) -> Outcome:
    """Whether the CPUs are free: of other work here, and of other virtual machines' on the same host."""
    before = processes.cpu_times(proc=machine.proc)
    time.sleep(WATCHED_S)
    after = processes.cpu_times(proc=machine.proc)
    share = after.busy_share_since(before) if before and after else None
    if not before or not after or share is None:
        return Outcome("warn", "unknown", remedy="mount /proc: nobody sees who else uses the CPUs")
    stolen = (after.stolen - before.stolen) / (after.total - before.total)
    if share > OTHERS_SHARE and stolen > share / 2:
        figure = f"{share:.0%} busy, {stolen:.0%} for other virtual machines on the same host"
        return Outcome("warn", figure, remedy="measure on a machine that does not share its CPUs, or at another time")
    return Outcome("warn" if share > OTHERS_SHARE else "pass", f"{share:.0%} busy")


@MACHINE.check(
    "CPU governor", remedy="as root: cpupower frequency-set -g performance; host-bound engines vary otherwise"
)
def governor(machine: ExaminedMachine) -> Outcome:
    """Whether the CPUs' frequency is left at its highest."""
    files = sorted(machine.system.glob("cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    governors = {file.read_text(encoding="utf-8").strip() for file in files}
    figure = ", ".join(sorted(governors)) or "unknown, as on virtual machines"
    return Outcome("warn" if governors - {"performance"} else "pass", figure)
