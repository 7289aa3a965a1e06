"""What each of several equal engines did, and what waiting for the last of them cost. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis.data_parallel_schema import SCALING, DataParallel, ReplicaShare
from wattdock.analysis.joules import combined_timing_j
from wattdock.metering import Span
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from wattdock.analysis.energy_schema import EnergyResult
    from wattdock.analysis.joules import SpanJoules
    from wattdock.config import ExperimentConfig
    from wattdock.records import PassRecord, ReplicaPass, RestartRecord


def data_parallel(
    config: ExperimentConfig, restarts: Sequence[RestartRecord], energy: EnergyResult, joules_in: SpanJoules
) -> DataParallel | None:
    """Return the replicas' shares of all measured passes; None where one engine served them."""
    passes = [(one, measured) for one in restarts for measured in one.passes if measured.replicas]
    if not passes:
        return None
    count = len(passes[0][1].replicas)
    shares = [_share(number, passes, joules_in) for number in range(count)]
    tail_j = known_sum(share.tail_idle_j for share in shares)
    scaling: Literal["strong", "weak"] = "weak" if config.section.work_factor > 1 else "strong"
    return DataParallel(
        data_parallel_size=count,
        scaling=scaling,
        scaling_meaning=SCALING[scaling],
        in_flight_per_replica=config.served.batch_size // count,
        replicas=shares,
        tail_idle_j=tail_j,
        tail_share=tail_j / energy.total_j if tail_j is not None and energy.total_j else None,
    )


def _share(number: int, passes: Sequence[tuple[RestartRecord, PassRecord]], joules_in: SpanJoules) -> ReplicaShare:
    own = [(restart, one, one.replicas[number]) for restart, one in passes]
    tails = [(restart, tail_of(one, replica), replica) for restart, one, replica in own]
    joules = [joules_in.of(restart.timeline, tail, replica.gpu_uuids) for restart, tail, replica in tails]
    return ReplicaShare(
        replica=number,
        gpu_uuids=list(dict.fromkeys(uuid for _, _, replica in own for uuid in replica.gpu_uuids)),
        requests=sum(replica.requests for _, _, replica in own),
        output_tokens=sum(replica.output_tokens for _, _, replica in own),
        tail_s=sum(tail.duration_s for _, tail, _ in tails),
        tail_idle_j=known_sum(one.total_j for one in joules),
        tail_timing_j=combined_timing_j(joules),
        reason=next((one.reason for one in joules if one.reason), None),
    )


def tail_of(one: PassRecord, replica: ReplicaPass) -> Span:
    """Return the time in which a replica had no work left and the pass was not over; all of it without any token."""
    span = one.span
    return Span("tail", replica.last_token_ns or span.start_ns, span.end_ns)
