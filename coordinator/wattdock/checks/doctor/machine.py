"""What the rest of the machine means for a measurement: folders, leases, CPUs, clock, Python."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.checks.audit_sharing import OTHERS_SHARE
from wattdock.checks.doctor.finding import fail, ok, warn
from wattdock.clock import host_clock
from wattdock.errors import WattdockError
from wattdock.host import folders, leases, processes
from wattdock.launch import make_socket_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wattdock.checks.doctor.finding import Finding

SYSTEM = Path("/sys/devices/system")
SHARED_MEMORY = Path("/dev/shm")
# Engines' environments unpack to several gigabytes, models to tens.
ROOM_BYTES, SHARED_MEMORY_BYTES = 20e9, 1e9
# How long the CPUs are watched.
WATCHED_S = 1.0
# Reading these takes a system call, or microseconds.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


def machine_findings(output_dir: Path, environ: Mapping[str, str]) -> Iterable[Finding]:
    """Yield one line for each part of the machine that a measurement needs."""
    yield _tried("leases", _leases)
    yield _tried("results folder", lambda: _room("results folder", output_dir, "--output-dir"))
    yield _tried("models and caches", lambda: _room("models and caches", folders.wattdock_home(), "WATTDOCK_HOME"))
    yield _tried("sockets", lambda: _sockets(environ))
    yield _shared_memory()
    yield _python()
    yield load_finding(processes.PROC)
    yield governor_finding(SYSTEM)
    yield _clock_source(SYSTEM)
    yield _clock_identity()


def _tried(name: str, check: Callable[[], Finding]) -> Finding:
    """What a check found, or the error it ended with, whose message says what to do."""
    try:
        return check()
    except WattdockError as error:
        seen, _, advice = str(error).partition("; ")
        return fail(name, seen, advice)


def _leases() -> Finding:
    folder, held = leases.folder_in_use(), leases.holders()
    if held:
        seen = "; ".join(f"{name} by {holder}" for name, holder in held.items())
        return warn("leases", f"held: {seen}", "wait for them with --wait SECONDS")
    if not leases.is_shared(folder):
        return warn("leases", f"{folder} is not open to all users", f"as its owner: chmod 1777 {folder}")
    return ok("leases", f"none held, in {folder}")


def _room(name: str, folder: Path, setting: str) -> Finding:
    folders.require_writable(folder, setting=setting)
    there = next(up for up in (folder.absolute(), *folder.absolute().parents) if up.exists())
    free = shutil.disk_usage(there).free
    seen = f"{folder}, {free / 1e9:.0f} GB free"
    if free < ROOM_BYTES:
        return warn(name, seen, f"models and engines need tens of gigabytes; {setting} names another folder")
    return ok(name, seen)


def _sockets(environ: Mapping[str, str]) -> Finding:
    folder = make_socket_folder(environ)
    folder.rmdir()
    return ok("sockets", str(folder.parent))


def _shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        return warn("shared memory", f"{SHARED_MEMORY} is not there", "several GPUs need it: mount a tmpfs there")
    size = shutil.disk_usage(SHARED_MEMORY).total
    if size < SHARED_MEMORY_BYTES:
        advice = f"several GPUs need more; as root: mount -o remount,size=8G {SHARED_MEMORY} (docker: --shm-size 8g)"
        return warn("shared memory", f"{size / 1e6:.0f} MB", advice)
    return ok("shared memory", f"{size / 1e9:.1f} GB")


def _python() -> Finding:
    seen = f"{platform.python_version()} at {sys.executable}"
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return fail("Python", f"{seen}, without venv", "on Debian: apt-get install python3-venv")
    return ok("Python", seen)


def load_finding(proc: Path, watched_s: float = WATCHED_S) -> Finding:
    """Return how busy the CPUs are with other work, and which process had most of them.

    Args:
        proc: /proc, or a stand-in.
    """
    if (before := processes.cpu_times(proc=proc)) is None:
        return warn("CPU load", "not told", "mount /proc: nobody sees who else uses the CPUs")
    each = processes.process_times(proc)
    time.sleep(watched_s)
    later, after = processes.process_times(proc), processes.cpu_times(proc=proc)
    share = after.busy_share_since(before) if after else None
    if after is None or share is None or share <= OTHERS_SHARE:
        return ok("CPU load", "not told" if share is None else f"{share:.0%} busy")
    stolen = (after.stolen - before.stolen) / (after.total - before.total)
    if stolen > share / 2:
        seen = f"{share:.0%} busy, {stolen:.0%} for other machines on this one's host"
        return warn("CPU load", seen, "measure on a machine whose CPUs are its own, or when the others rest")
    gained = {pid: ticks - each.get(pid, 0) for pid, ticks in later.items()}
    busiest = max(gained, key=gained.__getitem__)
    of_one = gained[busiest] / os.sysconf("SC_CLK_TCK") / watched_s
    seen = f"{share:.0%} busy, most of all with process {busiest} ({_command(proc, busiest)}), {of_one:.0%} of one CPU"
    return warn(
        "CPU load", seen, "end what is not needed: an engine that waits for its CPUs costs more joules per token"
    )


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "gone"


def governor_finding(system: Path) -> Finding:
    """Return how the CPUs' frequency is governed.

    Args:
        system: /sys/devices/system, or a stand-in.
    """
    files = sorted(system.glob("cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    governors = {file.read_text(encoding="utf-8").strip() for file in files}
    if not governors:
        return ok("CPU governor", "not told, as on virtual machines")
    if governors != {"performance"}:
        advice = "as root: cpupower frequency-set -g performance; host-bound engines vary otherwise"
        return warn("CPU governor", ", ".join(sorted(governors)), advice)
    return ok("CPU governor", "performance")


def _clock_source(system: Path) -> Finding:
    file = system / "clocksource/clocksource0/current_clocksource"
    source = file.read_text(encoding="utf-8").strip() if file.is_file() else "not told"
    if source in SLOW_CLOCKS:
        return warn("clock source", source, "slow to read; the kernel log says why tsc was given up")
    return ok("clock source", source)


def _clock_identity() -> Finding:
    clock = host_clock()
    if not clock.boot_id:
        return fail("clock identity", "no boot id", "mount /proc: runner and host cannot be seen to share a clock")
    return ok("clock identity", f"boot {clock.boot_id[:8]}, time namespace {clock.time_namespace or 'none'}")
