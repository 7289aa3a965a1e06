"""The machine and the runs on it, looked at once a second: what a page shows and what Prometheus scrapes."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wattdock.errors import PreflightError
from wattdock.host import GpuInventory, leases, nvml
from wattdock.study import RunWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.study import WatchedRun

# How often leases and `READINGS` are read; and all other properties of a GPU, which take a tenth of a second to read
# and change with leases, or seldom.
LEASES_S, VIEW_S = 10.0, 120.0
# How many points of power are kept: one a second, for ten minutes.
MOST_POINTS = 600
# How many of the latest intervals and failures of another user's run are shown.
MOST_PARTS, MOST_FAILURES = 20, 1
# Readings of a GPU that are taken as often as leases; power is read at each look.
READINGS: dict[str, Callable[[nvml.Device], float]] = {
    "hbm_power_w": nvml.hbm_power_w,
    "memory_used_bytes": nvml.memory_used_bytes,
    "temperature_c": nvml.temperature_c,
    "sm_clock_mhz": nvml.sm_clock_mhz,
    "busy_percent": nvml.gpu_utilization_percent,
    "energy_mj": nvml.counter_mj,
}
# Properties of a GPU that are shown, beside its readings and users.
GPU_PROPERTIES = ("index", "uuid", "name", "power_limit_w", "vram_total_bytes")
# Properties of a run's state that are shown, beside the run's name and user.
RUN_PROPERTIES = (
    *("experiment", "doing", "stage", "restart", "restarts", "passes_left", "passes", "time_left", "elapsed_s"),
    *("output_tokens", "unit", "tokens_per_s", "power_w", "joules_per_token", "share", "left_s", "stored"),
    "stopping",
)


@dataclass(frozen=True)
class GpuSnapshot:
    """Every GPU of a host at one instant.

    Attributes:
        occupied: By UUID who uses a GPU, in words; None where it is free.
        leases: Who measures, by GPU UUID, "machine" or "cpu".
        leases_unknown: Why the leases of others cannot be read; None where they can.
    """

    inventory: GpuInventory = field(default_factory=lambda: GpuInventory(()))
    occupied: dict[str, str | None] = field(default_factory=dict)
    leases: dict[str, leases.Holder] = field(default_factory=dict)
    leases_unknown: str | None = None
    at_utc: str = ""
    schema_version: int = 1

    @classmethod
    def now(cls) -> GpuSnapshot:
        """Look at this host.

        Raises:
            PreflightError: An NVIDIA driver is there and cannot be talked to.
        """
        host = GpuInventory.here()
        holders: dict[str, leases.Holder] = {}
        unknown: PreflightError | None = None
        try:
            folder = leases.folder_in_use()
            holders, unknown = leases.holders(folder), leases.unshared(folder)
        except PreflightError as error:
            unknown = error
        occupied = {gpu.uuid: host.why_occupied(gpu) for gpu in host.gpus}
        at_utc = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(host, occupied, holders, str(unknown) if unknown else None, at_utc)


@dataclass
class Feed:
    """Looks at this machine and at a folder of results.

    Attributes:
        view: Every GPU, who uses and who leases it, as of when leases changed, or of `VIEW_S` seconds ago at most.
        trouble: Why the GPUs cannot be read; None where they can, or there is none.
        readings: What each GPU does now, by UUID.
        power_w: By UUID at the latest look.
        points: Time in seconds since the epoch, and power by UUID, the latest last.
        runs: Under way, the caller's first.
    """

    output_dir: Path
    view: GpuSnapshot = field(default_factory=GpuSnapshot)
    trouble: str | None = None
    readings: dict[str, dict[str, float | None]] = field(default_factory=dict)
    power_w: dict[str, float | None] = field(default_factory=dict)
    points: deque[tuple[float, dict[str, float | None]]] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    runs: list[WatchedRun] = field(default_factory=list)
    _viewed_s: float = -VIEW_S
    _asked_s: float = -VIEW_S

    def __post_init__(self) -> None:
        self._watch, self._is_open = RunWatch(self.output_dir), False

    def look(self) -> None:
        """Look once; keep the previous value of an unreadable file, and report the file."""
        now_s, clock_s = time.time(), time.monotonic()
        if is_due := clock_s - self._asked_s >= LEASES_S:
            self._asked_s = clock_s
            if not self._is_open:
                with suppress(nvml.NvmlError):
                    # Held open: to open it anew at each look takes longer than to read.
                    nvml.open_nvml()
                    self._is_open = True
            try:
                if clock_s - self._viewed_s >= VIEW_S or leases.holders() != self.view.leases:
                    self.view, self.trouble, self._viewed_s = GpuSnapshot.now(), None, clock_s
            except PreflightError as error:
                self.trouble = str(error)
        earlier = {} if is_due else self.readings
        self.readings = {
            gpu.uuid: _readings(gpu.index, gpu.uuid, earlier.get(gpu.uuid)) for gpu in self.view.inventory.gpus
        }
        self.runs = self._watch.look()
        self.power_w = {uuid: now["power_w"] for uuid, now in self.readings.items()}
        if self.power_w:
            self.points.append((now_s, self.power_w))

    @property
    def in_pass(self) -> bool:
        """Whether a run says that it measures a pass, which must not be disturbed."""
        return any(run.state.stage for run in self.runs)

    def now(self) -> dict[str, Any]:
        """Return what a page shows, as plain values."""
        host = self.view.inventory
        study_by_pid: dict[int | None, str] = {run.pid: run.path.name for run in self.runs}
        gpus = []
        for gpu in host.gpus:
            holder = self.view.leases.get(gpu.uuid) or self.view.leases.get(leases.MACHINE)
            readings = self.readings.get(gpu.uuid, {})
            is_silent = all(value is None for value in readings.values())
            gpus.append(
                {
                    **{name: getattr(gpu, name) for name in GPU_PROPERTIES},
                    **readings,
                    "occupied": "it does not answer" if is_silent else self.view.occupied.get(gpu.uuid),
                    "holder": holder and str(holder),
                    "user": holder and holder.user,
                    "study": holder and study_by_pid.get(holder.pid),
                }
            )
        runs = [
            {
                "study": run.path.name,
                "user": run.user,
                **{name: getattr(run.state, name) for name in RUN_PROPERTIES},
                "parts": [asdict(part) for part in run.state.parts][0 if run.is_ours else -MOST_PARTS :],
                "failures": list(run.state.failures)[0 if run.is_ours else -MOST_FAILURES :],
            }
            for run in self.runs
        ]
        return {
            "at_s": time.time(),
            "power_w": self.power_w,
            "host": os.uname().nodename,
            "folder": str(self.output_dir.absolute()),
            "trouble": self.trouble or "; ".join(host.unreadable) or host.reason,
            "leases_unknown": self.view.leases_unknown,
            "gpus": gpus,
            "links": [link.model_dump() for link in host.links],
            "leases": {name: str(holder) for name, holder in self.view.leases.items()},
            "runs": runs,
        }


def _readings(index: int, uuid: str, earlier: dict[str, float | None] | None) -> dict[str, float | None]:
    """Return a GPU's power now and what else it does, or did `earlier`; None for what it does not tell."""
    device = nvml.optional(nvml.device, index)
    if device is None or (not earlier and nvml.optional(nvml.uuid, device) != uuid):
        # Another GPU may have its index by now.
        return dict.fromkeys(("power_w", *READINGS))
    power_w = nvml.optional(nvml.power_instant_w, device)
    if power_w is None:
        power_w = nvml.optional(nvml.power_usage_w, device)
    others = earlier or {name: nvml.optional(read, device) for name, read in READINGS.items()}
    return others | {"power_w": power_w}
