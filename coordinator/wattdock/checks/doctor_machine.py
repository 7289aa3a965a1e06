"""What the rest of the machine means for a measurement: folders, leases, CPUs, clock, containers."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.checks.audit import OTHERS_SHARE
from wattdock.checks.check import failed, passed, refused, warned
from wattdock.clock import host_clock
from wattdock.errors import WattdockError
from wattdock.host import folders, leases, processes
from wattdock.launch import NoContainersError, find_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wattdock.analysis import Check

SYSTEM = Path("/sys/devices/system")
SHARED_MEMORY = Path("/dev/shm")
# Engines' environments unpack to several gigabytes, models to tens.
ROOM_BYTES, SHARED_MEMORY_BYTES = 20e9, 1e9
WATCHED_S = 1.0
# Reading these takes a system call, or microseconds.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
TOOLKIT = "install the NVIDIA Container Toolkit, then as root: nvidia-ctk runtime configure --runtime=docker"


def machine_checks(output_dir: Path, environ: Mapping[str, str]) -> Iterable[Check]:
    """Yield one check for each part of the machine that a measurement needs."""
    yield _tried("leases", _leases)
    yield _tried("results folder", lambda: _room("results folder", output_dir, "--output-dir"))
    yield _tried("models and caches", lambda: _room("models and caches", folders.wattdock_home(), "WATTDOCK_HOME"))
    yield _tried("sockets", lambda: _sockets(environ))
    yield _shared_memory()
    yield cpu_load(processes.PROC)
    yield governor(SYSTEM)
    yield _clock_source(SYSTEM)
    yield _clock_identity()


def _tried(name: str, make: Callable[[], Check]) -> Check:
    """What a check found, or the error it ended with."""
    try:
        return make()
    except WattdockError as error:
        return refused(name, error)


def _leases() -> Check:
    folder, held = leases.folder_in_use(), leases.holders()
    if held:
        seen = "; ".join(f"{name} by {holder}" for name, holder in held.items())
        return warned("leases", f"held: {seen}", "wait for them with --wait SECONDS")
    if not leases.is_shared(folder):
        return warned("leases", f"{folder} is not open to all users", f"as its owner: chmod 1777 {folder}")
    return passed("leases", f"none held, in {folder}")


def _room(name: str, folder: Path, setting: str) -> Check:
    folders.require_writable(folder, setting=setting)
    there = next(up for up in (folder.absolute(), *folder.absolute().parents) if up.exists())
    free = shutil.disk_usage(there).free
    seen = f"{folder}, {free / 1e9:.0f} GB free"
    if free < ROOM_BYTES:
        return warned(name, seen, f"models and engines need tens of gigabytes; {setting} names another folder")
    return passed(name, seen)


def _sockets(environ: Mapping[str, str]) -> Check:
    folder = folders.make_socket_folder(environ)
    folder.rmdir()
    return passed("sockets", str(folder.parent))


def _shared_memory() -> Check:
    if not SHARED_MEMORY.is_dir():
        return warned("shared memory", f"{SHARED_MEMORY} is not there", "several GPUs need it: mount a tmpfs there")
    size = shutil.disk_usage(SHARED_MEMORY).total
    if size < SHARED_MEMORY_BYTES:
        remedy = f"several GPUs need more; as root: mount -o remount,size=8G {SHARED_MEMORY} (docker: --shm-size 8g)"
        return warned("shared memory", f"{size / 1e6:.0f} MB", remedy)
    return passed("shared memory", f"{size / 1e9:.1f} GB")


def cpu_load(proc: Path, watched_s: float = WATCHED_S) -> Check:
    """Return how busy the CPUs are with other work, and which process uses most of them.

    Args:
        proc: /proc, or a stand-in.
    """
    if (before := processes.cpu_times(proc=proc)) is None:
        return warned("CPU load", "unknown", "mount /proc: nobody sees who else uses the CPUs")
    started = processes.process_times(proc)
    time.sleep(watched_s)
    ended, after = processes.process_times(proc), processes.cpu_times(proc=proc)
    share = after.busy_share_since(before) if after else None
    if after is None or share is None or share <= OTHERS_SHARE:
        return passed("CPU load", "unknown" if share is None else f"{share:.0%} busy")
    stolen = (after.stolen - before.stolen) / (after.total - before.total)
    if stolen > share / 2:
        seen = f"{share:.0%} busy, {stolen:.0%} for other virtual machines on the same host"
        return warned("CPU load", seen, "measure on a machine that does not share its CPUs, or when the others rest")
    gained = {pid: ticks - started.get(pid, 0) for pid, ticks in ended.items()}
    busiest = max(gained, key=gained.__getitem__)
    of_one_cpu = gained[busiest] / os.sysconf("SC_CLK_TCK") / watched_s
    seen = f"{share:.0%} busy, mostly with process {busiest} ({_command(proc, busiest)}), {of_one_cpu:.0%} of one CPU"
    return warned(
        "CPU load", seen, "end what is not needed: an engine that waits for its CPUs costs more joules per token"
    )


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "gone"


def governor(system: Path) -> Check:
    """Return how the CPUs' frequency is governed.

    Args:
        system: /sys/devices/system, or a stand-in.
    """
    files = sorted(system.glob("cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    governors = {file.read_text(encoding="utf-8").strip() for file in files}
    if governors - {"performance"}:
        remedy = "as root: cpupower frequency-set -g performance; host-bound engines vary otherwise"
        return warned("CPU governor", ", ".join(sorted(governors)), remedy)
    return passed("CPU governor", "performance" if governors else "unknown, as on virtual machines")


def _clock_source(system: Path) -> Check:
    file = system / "clocksource/clocksource0/current_clocksource"
    source = file.read_text(encoding="utf-8").strip() if file.is_file() else "unknown"
    if source in SLOW_CLOCKS:
        return warned("clock source", source, "it is slow to read; the kernel log says why it replaced tsc")
    return passed("clock source", source)


def _clock_identity() -> Check:
    clock = host_clock()
    if not clock.boot_id:
        return failed("clock identity", "no boot id", "mount /proc: whether the runner shares the clock is unknown")
    return passed("clock identity", f"boot {clock.boot_id[:8]}, time namespace {clock.time_namespace or 'none'}")


def container_checks(backend: str, *, gpus: bool) -> Iterable[Check]:
    """Yield what the container engine, the backend's image and NVIDIA's runtime say.

    Args:
        gpus: There are GPUs that a container would have to see.
    """
    try:
        image = find_image(f"wattdock-{backend}", backend=backend, needs_gpu=gpus)
    except NoContainersError as error:
        yield warned("containers", error.reason, f"{error.remedy}; until then the backend runs as a process")
        return
    yield passed("containers", f"{image.engine.name} {image.engine.version} has image {image.name}")
    if gpus:
        yield runtime_check(image.engine.runtimes)


def runtime_check(runtimes: tuple[str, ...]) -> Check:
    """Return whether an engine with these runtimes can show GPUs to containers."""
    if "nvidia" in runtimes:
        return passed("container GPUs", "NVIDIA's runtime is configured")
    return warned("container GPUs", f"runtimes: {', '.join(runtimes)}, not nvidia", TOOLKIT)
