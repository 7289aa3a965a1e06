"""What one GPU is doing now, and whose processes are on it.

Reads NVML and /proc. Judges nothing: whether a GPU is free, `selection` says.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from wattdock.host import nvml
from wattdock.host.nvml import told

PROC = Path("/proc")
KINDS = ("compute", "graphics", "mps")


@dataclass(frozen=True)
class ProcessOnGpu:
    """A process that NVML lists on a GPU.

    Attributes:
        kind: "compute", "graphics" or "mps".
        memory_bytes: VRAM it holds; None where the driver does not tell.
        user, command: None where /proc does not show the process, as in a container that sees others' ids.
    """

    pid: int
    kind: str
    memory_bytes: int | None
    user: str | None
    command: str | None

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
    processes: tuple[ProcessOnGpu, ...]


def read_activity(gpu: nvml.Device) -> GpuActivity:
    """Return what a GPU is doing.

    Raises:
        NvmlError: It does not answer.
    """
    limited = told(nvml.clocks_limited, gpu)
    return GpuActivity(
        power_w=told(nvml.power_usage_w, gpu),
        utilization_percent=told(nvml.gpu_utilization_percent, gpu),
        temperature_c=told(nvml.temperature_c, gpu),
        sm_clock_mhz=told(nvml.sm_clock_mhz, gpu),
        memory_clock_mhz=told(nvml.memory_clock_mhz, gpu),
        clocks_limited=None if limited is None else bool(limited),
        has_counter=told(nvml.counter_mj, gpu) is not None,
        processes=tuple(
            ProcessOnGpu(pid, kind, memory_bytes, *owner_of(pid))
            for kind in KINDS
            for pid, memory_bytes in told(nvml.processes, gpu, kind) or ()
        ),
    )


def owner_of(pid: int) -> tuple[str | None, str | None]:
    """Return user and command of a process, None each where /proc does not show it."""
    process = PROC / str(pid)
    with contextlib.suppress(OSError):
        return user_name(process.stat().st_uid), (process / "comm").read_text(errors="replace").strip()
    return None, None


def user_name(uid: int | None = None) -> str:
    """Return a user's name (our own by default), or the number where it has none."""
    number = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"
