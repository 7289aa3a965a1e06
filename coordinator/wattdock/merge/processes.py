"""Which processes were on the GPUs meanwhile, and which of them were the runner's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.results.result import GpuProcessSeen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.meter.timeline import GpuProcess
    from wattdock.records import RestartRecord


def processes_seen(restarts: Sequence[RestartRecord]) -> list[GpuProcessSeen]:
    """Return every process that a process list of the timelines holds, once per GPU and kind."""
    seen: dict[tuple[str, int, str], GpuProcessSeen] = {}
    for one in restarts:
        for uuid, gpu in (one.timeline.gpus if one.timeline else {}).items():
            for sample in gpu.processes:
                for process in sample.processes:
                    key = (uuid, process.pid, process.kind)
                    own = process.pid in one.own_pids
                    seen[key] = _seen_again(seen.get(key), uuid, process, sample.at_ns, own=own)
    return list(seen.values())


def _seen_again(
    before: GpuProcessSeen | None, uuid: str, process: GpuProcess, at_ns: int, *, own: bool
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
        user=process.user or (before.user if before else None),
        command=process.command or (before.command if before else None),
    )
