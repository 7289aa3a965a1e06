"""Warm-up, drift and completeness of the measured passes. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from wattdock.analysis.performance import is_scheduled, token_disagreements, undrained
from wattdock.analysis.steadiness import Steadiness, warm_up_steadiness
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.joules import SpanJoules
    from wattdock.config import WarmUpSpec
    from wattdock.records import PassRecord, RestartRecord

# Largest distance of a batch boundary from a pass's middle at which it still makes halves, as a share of the pass.
MAX_OFF_MIDDLE = 0.2
# Mean lifetimes of a request that a pass must last to be halved where requests overlap; in a shorter pass the halves
# differ by which requests they hold.
LIFETIMES_TO_HALVE = 10
# Blocks of an open loop's pass: each holds ten counter changes, and their number suffices for a line and its error.
OPEN_LOOP_BLOCK_NS, MIN_OPEN_LOOP_BLOCKS = NS_PER_S, 10


class WarmUp(Steadiness):
    """One restart's warm-up.

    Attributes:
        converged: Nothing drifted any more when it ended; null under the quick profile, which does not check.
    """

    restart: int
    profile: str
    converged: bool | None


class Drift(Stored):
    """Change of joules per token (of tokens/s without energy) from a pass's first half to its second.

    Where requests overlap, the first and the last mean lifetime of a request belong to neither half.

    Attributes:
        relative: Second ÷ first − 1; null with the reason. In an open loop, where random arrivals give one half more
            work than the other, the change of power at equal work.
        standard_error: Of `relative`, in an open loop; null elsewhere.
    """

    restart: int
    pass_index: int
    quantity: str
    relative: float | None
    standard_error: float | None = None
    reason: str | None = None


class Procedure(Stored):
    """Evidence that the passes were complete and in a steady state.

    Attributes:
        runners_per_restart: More than 1 where a restart was interrupted between passes and resumed; 0 without a pass.
        token_disagreements: Passes whose token counts contradict each other.
        undrained: Passes that ended before all their work was done.
    """

    warm_up: list[WarmUp]
    drift: list[Drift]
    runners_per_restart: int = 0
    token_disagreements: list[str] = Field(default_factory=list)
    undrained: list[str] = Field(default_factory=list)


def procedure(
    restarts: Sequence[RestartRecord], used: Sequence[str], limits: WarmUpSpec, joules_in: SpanJoules
) -> Procedure:
    """Return the evidence from every restart."""
    passes = [(restart, measured) for restart in restarts for measured in restart.passes]
    runners = Counter(restart.restart for restart in restarts if restart.passes)
    return Procedure(
        warm_up=[_warm_up(restart, used, limits) for restart in restarts],
        drift=[_drift(restart, measured, used, joules_in) for restart, measured in passes],
        runners_per_restart=max(runners.values(), default=0),
        token_disagreements=token_disagreements([measured for _, measured in passes]),
        undrained=undrained([measured for _, measured in passes]),
    )


def _warm_up(restart: RestartRecord, used: Sequence[str], limits: WarmUpSpec) -> WarmUp:
    if limits.profile == "steady":
        last = warm_up_steadiness(restart.warm_up, limits, used)
        return WarmUp(restart=restart.restart, profile=limits.profile, converged=not last.drifting, **dict(last))
    duration_s = sum(span.duration_s for span in restart.spans if span.name == "warm-up")
    return WarmUp(restart=restart.restart, profile=limits.profile, converged=None, duration_s=duration_s)


def _drift(restart: RestartRecord, measured: PassRecord, used: Sequence[str], joules_in: SpanJoules) -> Drift:
    quantity = "energy_per_output_token_j" if used else "output_tokens_per_s"
    if used and is_scheduled(measured):
        return _open_loop_drift(restart, measured, used, joules_in)
    halves = halves_ns(measured)
    if halves is None:
        return _no_drift(restart, measured, quantity, "no instant near its middle at which every request had finished")
    values = []
    for start_ns, end_ns in halves:
        half = Span("half", start_ns, end_ns)
        tokens = tokens_between(measured, start_ns, end_ns)
        joules = joules_in.of(restart.timeline, half, used)
        if not tokens or (used and joules.total_j is None):
            return _no_drift(restart, measured, quantity, joules.reason if used else "no token in one of its halves")
        values.append(tokens / half.duration_s if joules.total_j is None else joules.total_j / tokens)
    relative = values[1] / values[0] - 1
    return Drift(restart=restart.restart, pass_index=measured.index, quantity=quantity, relative=relative)


def _open_loop_drift(restart: RestartRecord, measured: PassRecord, used: Sequence[str], joules_in: SpanJoules) -> Drift:
    """Return the change of power from the first to the second half at equal work.

    A least-squares fit of the power of equal blocks, linear in their tokens/s and in time.
    """
    quantity = "mean_power_w at equal tokens/s"
    lifetimes_ns = [
        request.finished_ns - request.submitted_ns for request in measured.requests if request.finished_ns is not None
    ]
    margin_ns = int(np.mean(lifetimes_ns)) if lifetimes_ns else 0
    start_ns, end_ns = measured.span.start_ns + margin_ns, measured.span.end_ns - margin_ns
    count = (end_ns - start_ns) // OPEN_LOOP_BLOCK_NS
    if count < MIN_OPEN_LOOP_BLOCKS:
        few = f"fewer than {MIN_OPEN_LOOP_BLOCKS} s between the first and the last lifetime of a request"
        return _no_drift(restart, measured, quantity, few)
    edges_ns = np.linspace(start_ns, end_ns, count + 1).astype(np.int64).tolist()
    blocks = [Span("block", *edges) for edges in itertools.pairwise(edges_ns)]
    joules = [joules_in.of(restart.timeline, block, used) for block in blocks]
    watts = [energy.total_j / block.duration_s for energy, block in zip(joules, blocks, strict=True) if energy.total_j]
    if len(watts) < len(blocks):
        return _no_drift(
            restart, measured, quantity, next((energy.reason for energy in joules if energy.reason), "no power")
        )
    work = [tokens_between(measured, block.start_ns, block.end_ns) for block in blocks]
    changed, error = _change_at_equal_work(np.array(watts), np.array(work, dtype=np.float64))
    return Drift(
        restart=restart.restart,
        pass_index=measured.index,
        quantity=quantity,
        relative=changed,
        standard_error=error,
    )


def _change_at_equal_work(watts: NDArray[np.float64], work: NDArray[np.float64]) -> tuple[float, float]:
    """Return a line's relative change between the middles of both halves, and its standard error."""
    time = np.linspace(-1, 1, len(watts))
    terms = np.column_stack([time, np.ones_like(time), work - work.mean()])
    if np.ptp(work) == 0:
        terms = terms[:, :2]
    inverse = np.linalg.pinv(terms.T @ terms)
    fitted = inverse @ terms.T @ watts
    variance_w2 = float(np.sum((watts - terms @ fitted) ** 2)) / (len(watts) - terms.shape[1])
    return float(fitted[0] / watts.mean()), float(np.sqrt(variance_w2 * inverse[0, 0]) / watts.mean())


def _no_drift(restart: RestartRecord, measured: PassRecord, quantity: str, reason: str | None) -> Drift:
    return Drift(restart=restart.restart, pass_index=measured.index, quantity=quantity, relative=None, reason=reason)


def halves_ns(measured: PassRecord) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return two comparable parts of a pass as (start, end) in ns; None where the pass cannot be halved.

    The cut is the instant nearest to the middle at which all earlier requests have finished and the next ones are
    submitted, so that each half holds whole requests. Where requests overlap throughout (a closed loop), the cut is the
    middle, if the pass is long enough; the first and the last mean lifetime of a request, in which the engine fills and
    empties, belong to neither half. A single round of requests cannot be halved.
    """
    requests = sorted(measured.requests, key=lambda request: request.submitted_ns)
    finished_ns = [request.finished_ns for request in requests if request.finished_ns is not None]
    if not 2 <= len(requests) == len(finished_ns):
        return None
    latest_ns = np.maximum.accumulate(finished_ns)
    cuts = [
        request.submitted_ns
        for request, before_ns in zip(requests[1:], latest_ns, strict=False)
        if request.submitted_ns >= before_ns
    ]
    middle_ns = (measured.span.start_ns + measured.span.end_ns) // 2
    length_ns = measured.span.end_ns - measured.span.start_ns
    if cuts:
        cut_ns = min(cuts, key=lambda at_ns: abs(at_ns - middle_ns))
        if abs(cut_ns - middle_ns) <= MAX_OFF_MIDDLE * length_ns:
            return (measured.span.start_ns, cut_ns), (cut_ns, measured.span.end_ns)
    lifetime_ns = int(np.mean(np.subtract(finished_ns, [request.submitted_ns for request in requests])))
    if length_ns < LIFETIMES_TO_HALVE * lifetime_ns:
        return None
    return (measured.span.start_ns + lifetime_ns, middle_ns), (middle_ns, measured.span.end_ns - lifetime_ns)


def tokens_between(measured: PassRecord, start_ns: int, end_ns: int) -> int:
    """Return the output tokens that a pass's cumulative series gained in (start, end]."""
    before, after = np.searchsorted(measured.tokens.at_ns, [start_ns, end_ns], side="right")
    counts = np.concatenate(([0], measured.tokens.output_tokens))
    return int(counts[after] - counts[before])
