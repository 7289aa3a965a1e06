"""Prefill and decode energy of passes whose requests run in rounds, where it can be defended. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.conditions_schema import Phases
from wattdock.analysis.joules import combined_timing_j
from wattdock.analysis.procedure import tokens_between
from wattdock.metering import Span
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.joules import Joules, SpanJoules
    from wattdock.records import PassRecord, RestartRecord

# Below these a phase's energy is a guess about where inside a tick it began.
MIN_TICKS = 20
MIN_SPAN_TICKS = 2
MAX_RELATIVE_TIMING = 0.1
# Tokens of other requests in a prefill are decode's energy counted as prefill's.
MAX_MIXED_SHARE = 0.02


@dataclass(frozen=True)
class _Round:
    """Requests that were submitted together: their prefill and decode, and what else the prefill held."""

    prefill: Span
    decode: Span
    mixed_tokens: int
    decode_tokens: int


@dataclass(frozen=True)
class _Phase:
    """Prefill or decode of all rounds."""

    name: str
    spans: list[Span]
    joules: list[Joules]

    @property
    def duration_s(self) -> float:
        return sum(span.duration_s for span in self.spans)

    @property
    def total_j(self) -> float:
        return sum(one.total_j or 0.0 for one in self.joules)

    def indefensible(self, period_s: float) -> str | None:
        """Why its energy cannot be told from its neighbours', or None."""
        if reason := next((one.reason for one in self.joules if one.reason), None):
            return reason
        if self.duration_s < MIN_TICKS * period_s:
            needed_s = MIN_TICKS * period_s
            return f"{self.name} lasted {self.duration_s:.2f} s, {MIN_TICKS} counter periods are {needed_s:.2f} s"
        # All of a shorter one lies in the ticks of its ends, whose course of power is a guess.
        if (shortest_s := min(span.duration_s for span in self.spans)) < MIN_SPAN_TICKS * period_s:
            needed_s = MIN_SPAN_TICKS * period_s
            return f"a {self.name} lasted {shortest_s:.3f} s, {MIN_SPAN_TICKS} counter periods are {needed_s:.3f} s"
        timing_j = combined_timing_j(self.joules) or 0.0
        if timing_j > MAX_RELATIVE_TIMING * self.total_j:
            return f"{self.name} is {self.total_j:.0f} J ± {timing_j:.0f} J (limit {MAX_RELATIVE_TIMING:.0%})"
        return None


def phases(restarts: Sequence[RestartRecord], used: Sequence[str], joules_in: SpanJoules) -> Phases:
    """Return prefill and decode energy over all passes, or why there is none."""
    passes = [(restart, one) for restart in restarts for one in restart.passes]
    if not used or not passes:
        return Phases(reason="no GPU was used" if not used else "no pass was measured")
    of_pass = [(restart, rounds_of(done)) for restart, done in passes]
    if not all(rounds for _, rounds in of_pass):
        return Phases(reason="requests overlap: prefill and decode share the engine's steps")
    rounds = [(restart, one) for restart, found in of_pass for one in found]
    decode_tokens = sum(one.decode_tokens for _, one in rounds)
    mixed = sum(one.mixed_tokens for _, one in rounds) / max(1, decode_tokens)
    prefill, decode = (
        _Phase(
            name,
            spans,
            [joules_in.of(restart.timeline, span, used) for (restart, _), span in zip(rounds, spans, strict=True)],
        )
        for name, spans in (
            ("prefill", [one.prefill for _, one in rounds]),
            ("decode", [one.decode for _, one in rounds]),
        )
    )
    alone = _one_token_j(restarts, used, joules_in)
    seen = Phases(
        prefill_s=prefill.duration_s,
        decode_s=decode.duration_s,
        decode_tokens_in_prefill=mixed,
        one_token_j_per_prompt_token=alone,
    )
    if mixed > MAX_MIXED_SHARE:
        reason = f"{mixed:.1%} of decode's tokens came while prompts were computed (limit {MAX_MIXED_SHARE:.0%})"
        return seen.model_copy(update={"reason": reason})
    period_s = _period_s(restarts, used)
    if why_not := prefill.indefensible(period_s) or decode.indefensible(period_s):
        return seen.model_copy(update={"reason": why_not})
    whole_j = sum(joules_in.of(restart.timeline, done.span, used).total_j or 0.0 for restart, done in passes)
    prompt_tokens = sum(one.prompt_tokens or 0 for _, done in passes for one in done.requests)
    by_split = prefill.total_j / prompt_tokens if prompt_tokens else None
    figures = {
        "prefill_j": prefill.total_j,
        "decode_j": decode.total_j,
        "prefill_timing_j": combined_timing_j(prefill.joules),
        "decode_timing_j": combined_timing_j(decode.joules),
        "prefill_j_per_prompt_token": by_split,
        "one_token_closure": by_split / alone - 1 if by_split and alone else None,
        "decode_j_per_output_token": decode.total_j / decode_tokens if decode_tokens else None,
        "closure": (prefill.total_j + decode.total_j) / whole_j - 1 if whole_j else None,
    }
    return seen.model_copy(update=figures)


def rounds_of(done: PassRecord) -> list[_Round]:
    """Return the rounds of a pass; none where a request begins before all earlier ones have finished."""
    requests = sorted(done.requests, key=lambda one: one.submitted_ns)
    rounds: list[list[tuple[int, int, int]]] = []
    for one in requests:
        if one.first_token_ns is None or one.finished_ns is None:
            return []
        instants = (one.submitted_ns, one.first_token_ns, one.finished_ns)
        if not rounds or one.submitted_ns >= max(finished for _, _, finished in rounds[-1]):
            rounds.append([])
        elif one.submitted_ns > min(first for _, first, _ in rounds[-1]):
            return []
        rounds[-1].append(instants)
    return [_round(done, instants) for instants in rounds]


def _round(done: PassRecord, instants: list[tuple[int, int, int]]) -> _Round:
    submitted, first, finished = (np.array(column) for column in zip(*instants, strict=True))
    begin_ns, boundary_ns, end_ns = int(submitted.min()), int(first.max()), int(finished.max())
    tokens = tokens_between(done, begin_ns, end_ns)
    return _Round(
        prefill=Span("prefill", begin_ns, boundary_ns),
        decode=Span("decode", boundary_ns, end_ns),
        # Each request's first token is prefill's own.
        mixed_tokens=max(0, tokens_between(done, begin_ns, boundary_ns) - len(instants)),
        decode_tokens=max(0, tokens - len(instants)),
    )


def _one_token_j(restarts: Sequence[RestartRecord], used: Sequence[str], joules_in: SpanJoules) -> float | None:
    """Joules per prompt token of the passes that are all prefill; None without them, or without their energy."""
    passes = [(restart, done) for restart in restarts for done in restart.one_token]
    total_j = known_sum(joules_in.of(restart.timeline, done.span, used).total_j for restart, done in passes)
    tokens = sum(one.prompt_tokens or 0 for _, done in passes for one in done.requests)
    return None if total_j is None or not tokens else total_j / tokens


def _period_s(restarts: Sequence[RestartRecord], used: Sequence[str]) -> float:
    periods_s = (one.gpus[uuid].period_s or 0.0 for one in restarts for uuid in used if uuid in one.gpus)
    return max(periods_s, default=0.0)
