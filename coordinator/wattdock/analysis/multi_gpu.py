"""What a measurement over several GPUs says of their split: sums, shares, replicas. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.idle import over
from wattdock.metering import Span
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock.analysis.energy import EnergyResult
    from wattdock.analysis.measured import Measured
    from wattdock.analysis.performance import Performance
    from wattdock.records import PassRecord, RestartRecord


class ReplicaShare(Stored):
    """One replica over all measured passes.

    Attributes:
        gpu_uuids: Its GPU; empty on a CPU.
        tail_s: From its last token to the end of each pass, summed; it waits for the other replicas then.
        tail_idle_j: Energy of its GPU in that time; part of the experiment's total.
        reason: Why `tail_idle_j` is null, where it is.
    """

    replica: int
    gpu_uuids: list[str]
    requests: int
    output_tokens: int
    tail_s: float | None
    tail_idle_j: float | None
    reason: str | None = None


class DataParallel(Stored):
    """Independent engines that took requests from one queue, from one common start in each pass.

    Attributes:
        in_flight_per_replica: Requests that each replica serves at a time.
        tail_idle_j: Sum over all replicas; null where it is unknown for a replica.
    """

    data_parallel_size: int
    in_flight_per_replica: int
    replicas: list[ReplicaShare]
    tail_idle_j: float | None


class MultiGPUMetrics(Stored):
    """Distribution of energy over the GPUs used, with the boundary of `energy.per_gpu_j`.

    Attributes:
        per_gpu_mean_power_w: Over the measured passes, by the energy counter.
        per_gpu_mean_utilization_percent: Mean of NVML's samples in the passes: the share of time in which any kernel
            ran, not how much of the GPU it used. Null where the driver does not tell.
        per_gpu_max_memory_used_bytes: Largest of NVML's samples of memory in use, by all processes.
        load_imbalance: Largest ÷ mean energy over the GPUs used; 1 is even.
    """

    gpu_count: int
    per_gpu_mean_power_w: dict[str, float]
    per_gpu_mean_utilization_percent: dict[str, float | None]
    per_gpu_max_memory_used_bytes: dict[str, float | None]
    load_imbalance: float


def multi_gpu(measured: Measured, energy: EnergyResult, performance: Performance | None) -> MultiGPUMetrics | None:
    """Return the GPUs' shares of all measured passes; None where energy is unknown, or no GPU was used."""
    per_gpu_j = {uuid: value for uuid, value in energy.per_gpu_j.items() if value is not None}
    if energy.total_j is None or performance is None or not per_gpu_j or not performance.output_tokens:
        return None
    mean_j = energy.total_j / len(per_gpu_j)
    return MultiGPUMetrics(
        gpu_count=len(per_gpu_j),
        per_gpu_mean_power_w={uuid: value / performance.duration_s for uuid, value in per_gpu_j.items()},
        per_gpu_mean_utilization_percent=_over_passes(measured, per_gpu_j, "gpu_utilization_percent", np.mean),
        per_gpu_max_memory_used_bytes=_over_passes(measured, per_gpu_j, "memory_used_bytes", np.max),
        load_imbalance=max(per_gpu_j.values()) / mean_j if mean_j else 1.0,
    )


def _over_passes(
    measured: Measured, uuids: Iterable[str], name: str, summary: Callable[..., float]
) -> dict[str, float | None]:
    """Summarise one series inside the measured passes, by GPU; None where the driver does not tell."""
    parts = [(restart.gpus, run_pass.span) for restart, run_pass in measured.passes]
    return {uuid: over([(gpus.get(uuid), span) for gpus, span in parts], name, summary) for uuid in uuids}


def data_parallel(measured: Measured) -> DataParallel | None:
    """Return the replicas' shares of all measured passes; None where one engine served them."""
    passes = [(restart, run_pass) for restart, run_pass in measured.passes if run_pass.replicas]
    if not passes:
        return None
    count = len(passes[0][1].replicas)
    shares = [_replica_share(measured, number, passes) for number in range(count)]
    return DataParallel(
        data_parallel_size=count,
        in_flight_per_replica=measured.in_flight // count,
        replicas=shares,
        tail_idle_j=known_sum(share.tail_idle_j for share in shares),
    )


def _replica_share(measured: Measured, number: int, passes: Sequence[tuple[RestartRecord, PassRecord]]) -> ReplicaShare:
    replicas = [run_pass.replicas[number] for _, run_pass in passes]
    # The end of a pass in which the replica had no work: the whole pass if it produced no token.
    tails = [
        Span("tail", replica.last_token_ns or run_pass.span.start_ns, run_pass.span.end_ns)
        for (_, run_pass), replica in zip(passes, replicas, strict=True)
    ]
    joules = [
        measured.energy_of(restart, tail, replica.gpu_uuids)
        for (restart, _), tail, replica in zip(passes, tails, replicas, strict=True)
    ]
    return ReplicaShare(
        replica=number,
        gpu_uuids=list(dict.fromkeys(uuid for replica in replicas for uuid in replica.gpu_uuids)),
        requests=sum(replica.requests for replica in replicas),
        output_tokens=sum(replica.output_tokens for replica in replicas),
        tail_s=sum(tail.duration_s for tail in tails),
        tail_idle_j=known_sum(energy.total_j for energy in joules),
        reason=next((energy.reason for energy in joules if energy.reason), None),
    )
