"""Which processes were on the GPUs meanwhile, and which of them were the runner's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis.energy_schema import GpuProcessSeen
from wattdock.records import clocks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.metering import GpuProcess
    from wattdock.records import RestartRecord


def processes_seen(restarts: Sequence[RestartRecord]) -> list[GpuProcessSeen]:
    """Return every process that a process list of the timelines holds, once per GPU, kind and boot of the host.

    After a reboot, a number that was the runner's may be anybody's.
    """
    seen: dict[tuple[str, int, str, int], GpuProcessSeen] = {}
    clocks = clocks_of(restarts)
    for one in restarts:
        for uuid, gpu in one.gpus.items():
            for sample in gpu.processes:
                for process in sample.processes:
                    clock, own = clocks[one.clock], process.pid in one.own_pids
                    key = (uuid, process.pid, process.kind, clock)
                    seen[key] = _seen_again(seen.get(key), uuid, process, sample.at_ns, clock=clock, own=own)
    return list(seen.values())


def _seen_again(
    before: GpuProcessSeen | None, uuid: str, process: GpuProcess, at_ns: int, *, clock: int, own: bool
) -> GpuProcessSeen:
    sizes = [process.memory_bytes, before.memory_bytes_max if before else None]
    return GpuProcessSeen(
        gpu_uuid=uuid,
        pid=process.pid,
        kind=process.kind,
        memory_bytes_max=max((size for size in sizes if size is not None), default=None),
        first_seen_ns=before.first_seen_ns if before else at_ns,
        last_seen_ns=at_ns,
        own=own or (before.own if before else False),
        clock=clock,
        user=process.user or (before.user if before else None),
        command=process.command or (before.command if before else None),
    )
