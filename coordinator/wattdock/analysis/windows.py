"""Which part of a pass counts: window definitions, applied to what was recorded. Pure.

A definition is an interval of a pass; its tokens come from the cumulative series and its joules from the timeline, so
that any of them, also one that is written later, can be applied to a stored run.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.joules import SpanJoules
from wattdock.analysis.procedure import tokens_between
from wattdock.analysis.windows_schema import WindowFigure, WindowSummary
from wattdock.clock import NS_PER_S
from wattdock.metering import MJ_PER_J, Span
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wattdock.metering import Timeline
    from wattdock.records import PassRecord, RestartRecord

MIN_STEADY_S, MIN_LIFETIMES = 20.0, 5.0
# An engine hands a finished request out and takes the next one between two steps.
REFILL_NS = NS_PER_S // 10
# More of the requests in flight than this share being replaced together are in lock-step.
LOCK_STEP_SHARE = 0.5
BLOCKS = 4


@dataclass(frozen=True)
class _Source:
    """Whose joules count, and where they are worked out."""

    used: Sequence[str]
    joules_in: SpanJoules


@dataclass(frozen=True)
class _NoWindowError(Exception):
    reason: str


def drained(measured: PassRecord, in_flight: int) -> tuple[int, int]:  # noqa: ARG001
    """From just before the first request until the engine has drained after the last token."""
    return measured.span.start_ns, measured.span.end_ns


def begin_end(measured: PassRecord, in_flight: int) -> tuple[int, int]:  # noqa: ARG001
    """From the first request's submission to the last token; its energy is that of two plain counter readings."""
    submitted, _, finished = _instants(measured)
    return int(submitted.min()), int(finished.max())


def ml_energy(measured: PassRecord, in_flight: int) -> tuple[int, int]:
    """From when as many first tokens were seen as requests are in flight, to when all but that many have finished.

    Source: the ML.ENERGY benchmark's steady state: from B first tokens to N − B − 1 requests finished.
    """
    _, first, finished = _instants(measured)
    if len(finished) < 2 * in_flight + 2:
        raise _NoWindowError(f"{len(finished)} requests; with {in_flight} in flight it needs {2 * in_flight + 2}")
    return int(np.sort(first)[in_flight - 1]), int(np.sort(finished)[len(finished) - in_flight - 2])


def steady_state(measured: PassRecord, in_flight: int) -> tuple[int, int]:
    """While the engine is full and more waits: from the first tokens of the first `in_flight` to the last submission.

    Refills and their prefills are inside. At least 20 s and five mean lifetimes of a request; not in lock-step, where
    a figure would hang on which part of a round the window holds.
    """
    submitted, first, finished = _instants(measured)
    if len(submitted) <= in_flight:
        raise _NoWindowError(f"{len(submitted)} requests never leave {in_flight} in flight and one waiting")
    start_ns = int(first[np.argsort(submitted)[:in_flight]].max())
    end_ns = int(submitted.max())
    lifetime_s = float(np.mean(finished - submitted)) / NS_PER_S
    needed_s = max(MIN_STEADY_S, MIN_LIFETIMES * lifetime_s)
    if (length_s := (end_ns - start_ns) / NS_PER_S) < needed_s:
        raise _NoWindowError(f"{length_s:.1f} s of {needed_s:.1f} s (five lifetimes of {lifetime_s:.2f} s)")
    _require_full(submitted, finished, in_flight, start_ns, end_ns)
    _require_staggered(submitted, in_flight, start_ns, end_ns)
    return start_ns, end_ns


def _require_full(
    submitted: NDArray[np.int64], finished: NDArray[np.int64], in_flight: int, start_ns: int, end_ns: int
) -> None:
    """Refuse an engine that was not full all the time, but for the moment in which a finished request is replaced."""
    ended = np.sort(finished)
    for at_ns in ended[(ended >= start_ns) & (ended < end_ns - REFILL_NS)]:
        later_ns = at_ns + REFILL_NS
        running = np.count_nonzero(submitted <= later_ns) - np.count_nonzero(finished <= at_ns)
        if running < in_flight:
            raise _NoWindowError(
                f"{running} of {in_flight} requests in flight {(at_ns - start_ns) / NS_PER_S:.1f} s in"
            )


def _require_staggered(submitted: NDArray[np.int64], in_flight: int, start_ns: int, end_ns: int) -> None:
    refills = np.sort(submitted[(submitted > start_ns) & (submitted <= end_ns)])
    together = np.searchsorted(refills, refills + REFILL_NS, side="right") - np.arange(len(refills))
    if in_flight > 1 and len(refills) and together.max() > max(1, LOCK_STEP_SHARE * in_flight):
        raise _NoWindowError(
            f"in lock-step: {together.max()} of {in_flight} requests replaced within 0.1 s; use arrival: closed with "
            "workload.staggered_start and output_spread"
        )


def _instants(measured: PassRecord) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Submitted, first token, finished, per request, ns; refuses a pass that does not know them all."""
    known = [(one.submitted_ns, one.first_token_ns, one.finished_ns) for one in measured.requests]
    if not known or any(None in row for row in known):
        raise _NoWindowError("the engine does not tell when every request began and ended")
    submitted, first, finished = np.array(known, dtype=np.int64).T
    return submitted, first, finished


WINDOWS: dict[str, Callable[[PassRecord, int], tuple[int, int]]] = {
    "drained": drained,
    "steady_state": steady_state,
    "ml-energy": ml_energy,
    "begin-end": begin_end,
}


def windows(
    restarts: Sequence[RestartRecord], used: Sequence[str], *, in_flight: int, joules_in: SpanJoules | None = None
) -> WindowSummary:
    """Return every definition's figure for every pass, and how far the definitions differ.

    Args:
        in_flight: Requests that the engine serves at once.
        joules_in: Where others ask for the same timelines too.
    """
    source = _Source(used, joules_in or SpanJoules())
    figures = [
        _figure(name, restart, measured, source, in_flight)
        for name in WINDOWS
        for restart in restarts
        for measured in restart.passes
    ]
    per_token = {name: _per_token([one for one in figures if one.window == name]) for name in WINDOWS}
    known = [value for value in per_token.values() if value is not None]
    whole = per_token["drained"]
    spread = (max(known) - min(known)) / whole if whole and len(known) > 1 else None
    return WindowSummary(energy_per_output_token_j=per_token, relative_spread=spread, passes=figures)


def _per_token(figures: Sequence[WindowFigure]) -> float | None:
    """Sum of joules over sum of tokens; None where a pass has no such window, or no energy."""
    total_j = known_sum(one.total_j for one in figures)
    tokens = sum(one.output_tokens for one in figures if one.output_tokens is not None)
    return None if total_j is None or not tokens else total_j / tokens


def _figure(name: str, restart: RestartRecord, measured: PassRecord, source: _Source, in_flight: int) -> WindowFigure:
    where = {"window": name, "restart": restart.restart, "pass_index": measured.index}
    try:
        start_ns, end_ns = WINDOWS[name](measured, in_flight)
    except _NoWindowError as error:
        return WindowFigure(**where, reason=error.reason)
    span = Span(name, start_ns, end_ns)
    tokens = measured.output_tokens if name == "drained" else tokens_between(measured, start_ns, end_ns)
    joules = source.joules_in.of(restart.timeline, span, source.used)
    total_j, timing_j = joules.total_j, joules.timing_j
    if name == "begin-end" and total_j is not None and restart.timeline:
        total_j, timing_j = _plain_difference_j(restart.timeline, span, source.used), None
    return WindowFigure(
        **where,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_s=span.duration_s,
        output_tokens=tokens,
        total_j=total_j,
        timing_j=timing_j,
        energy_per_output_token_j=None if total_j is None or not tokens else total_j / tokens,
        block_spread=_block_spread(restart, measured, span, source),
        reason=joules.reason,
    )


def _plain_difference_j(timeline: Timeline, span: Span, used: Sequence[str]) -> float | None:
    """What two readings of the counters at the span's ends differ by, as a tool without a timeline would see it."""
    total_mj = 0
    for uuid in used:
        ticks = timeline.gpus[uuid].ticks
        before, after = np.searchsorted(ticks.after_end_ns, [span.start_ns, span.end_ns], side="right") - 1
        if before < 0:
            return None
        total_mj += int(ticks.energy_mj[after] - ticks.energy_mj[before])
    return total_mj / MJ_PER_J


def _block_spread(restart: RestartRecord, measured: PassRecord, span: Span, source: _Source) -> float | None:
    """(Largest − smallest) ÷ mean joules per token of `BLOCKS` equal blocks; None where one has no figure."""
    edges_ns = np.linspace(span.start_ns, span.end_ns, BLOCKS + 1).astype(np.int64)
    values = []
    for start_ns, end_ns in itertools.pairwise(edges_ns.tolist()):
        tokens = tokens_between(measured, start_ns, end_ns)
        joules = source.joules_in.of(restart.timeline, Span("block", start_ns, end_ns), source.used).total_j
        if joules is None or not tokens:
            return None
        values.append(joules / tokens)
    return float(np.ptp(values) / np.mean(values))
