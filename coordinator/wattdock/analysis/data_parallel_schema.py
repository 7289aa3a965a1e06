"""What equal engines that served one workload together did, each by itself; part of an ExperimentResult."""

from __future__ import annotations

from typing import Literal

from wattdock.values import Stored

SCALING = {
    "strong": "strong scaling: the workload is the whole's and is shared out among the replicas",
    "weak": "weak scaling: the workload is each replica's share; the whole is as many times that as there are replicas",
}


class ReplicaShare(Stored):
    """One replica over all measured passes.

    Attributes:
        gpu_uuids: Its GPU; empty on a CPU.
        tail_s: From its last token to the end of each pass, summed: it waits for the others.
        tail_idle_j: What its GPU used in that time; part of the experiment's total.
        tail_timing_j: Standard uncertainty of that.
        reason: Why `tail_idle_j` is null, where it is.
    """

    replica: int
    gpu_uuids: list[str]
    requests: int
    output_tokens: int
    tail_s: float | None
    tail_idle_j: float | None
    tail_timing_j: float | None = None
    reason: str | None = None


class DataParallel(Stored):
    """Independent engines that took requests from one queue, from one common start in each pass.

    Attributes:
        scaling: "strong" or "weak", with its meaning.
        in_flight_per_replica: Requests that each of them serves at a time.
        tail_idle_j: Over all replicas; null where one of them is unknown.
        tail_share: The same ÷ the experiment's total.
    """

    data_parallel_size: int
    scaling: Literal["strong", "weak"]
    scaling_meaning: str
    in_flight_per_replica: int
    replicas: list[ReplicaShare]
    tail_idle_j: float | None
    tail_share: float | None
