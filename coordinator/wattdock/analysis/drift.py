"""Whether a pass cost the same throughout: its energy in blocks of time, at equal work. Pure.

The blocks are whole steps where the engine was full by its own record, or whole rounds of requests. What chance changes
from one block to another (prompts, steps, contexts read) enters a linear fit beside time; what is left is drift.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.analysis.occupancy import Instants, NoWindowError, is_scheduled, tokens_in
from wattdock.analysis.trend import Change, slope
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord, RestartRecord

    Floats = NDArray[np.float64]

# Length and number of blocks: shorter ones hold parts of prefills and few counter changes; ten show their scatter.
BLOCK_S, MIN_BLOCKS, MAX_BLOCKS = 2.0, 10, 40
# Fewest rounds for a line with an error of its own; rounds scatter by nothing but their power.
MIN_ROUNDS = 4


class Drift(Stored):
    """Change of a pass's cost at equal work, from the middle of the first half of its blocks to that of the second.

    Attributes:
        quantity: Whose change it is: joules (without energy, seconds) per output token; in an open loop, where arrivals
            and not the engine set the pace, power.
        relative: Change ÷ mean; null with the reason.
        half95: Half the width of its 95 % interval.
        duration_s: Length of all blocks.
    """

    restart: int
    pass_index: int
    quantity: str
    relative: float | None = None
    half95: float | None = None
    duration_s: float | None = None
    reason: str | None = None

    @property
    def change(self) -> Change | None:
        """The change with its interval; None where it is not known."""
        return None if self.relative is None or self.half95 is None else Change(self.relative, self.half95)


def drift(measured: Measured, restart: RestartRecord, run_pass: PassRecord) -> Drift:
    """Return a pass's drift, or why it is not known."""
    used = measured.used
    open_loop = bool(used) and is_scheduled(run_pass)
    quantity = "mean_power_w" if open_loop else "energy_per_output_token_j" if used else "s_per_output_token"
    about = {"restart": restart.restart, "pass_index": run_pass.index, "quantity": quantity}
    try:
        instants = Instants.of(run_pass)
        edges_ns = (
            _blocks(run_pass, *instants.arriving()) if open_loop else _edges(run_pass, instants, measured.in_flight)
        )
        work = _Work.of(run_pass, instants, edges_ns)
        seconds = np.diff(edges_ns) / NS_PER_S
        blocks = [measured.energy_of(restart, Span("block", *edges)) for edges in pairwise(edges_ns)] if used else []
    except NoWindowError as error:
        return Drift(**about, reason=str(error))
    if unknown := next((block for block in blocks if block.total_j is None), None):
        return Drift(**about, reason=unknown.reason or "energy unknown")
    costs = np.array([block.total_j for block in blocks], dtype=np.float64) if used else seconds
    per = seconds if open_loop else work.output_tokens
    if not per.all():
        return Drift(**about, reason=f"no token in a block of {seconds.min():.1f} s")
    middles = (np.array(edges_ns[1:]) + np.array(edges_ns[:-1])) / 2
    # The middles of the halves are one unit apart.
    at = 2 * (middles - edges_ns[0]) / (edges_ns[-1] - edges_ns[0])
    change = slope(at, costs / per, work.per_second(seconds) if open_loop else work.per_token())
    if change is None:
        return Drift(**about, reason=f"{len(seconds)} rounds are too few for how much they differ")
    return Drift(**about, **change._asdict(), duration_s=float(seconds.sum()))


def _edges(run_pass: PassRecord, instants: Instants, in_flight: int) -> list[int]:
    """Return the edges of blocks: between rounds of requests, or of equal length while the engine was full."""
    starts = instants.round_starts()
    if len(starts) == 1 and len(instants.submitted) > in_flight:
        return _blocks(run_pass, *instants.full(in_flight))
    if len(starts) < MIN_ROUNDS:
        raise NoWindowError(f"a pass of {pluralize(len(starts), 'round')} of requests, where {MIN_ROUNDS} are needed")
    cuts_ns = np.array([run_pass.span.start_ns, *instants.submitted[starts[1:]], run_pass.span.end_ns])
    wanted_ns = np.linspace(cuts_ns[0], cuts_ns[-1], _count(cuts_ns[-1] - cuts_ns[0], MIN_ROUNDS) + 1)
    return _nearest(cuts_ns, wanted_ns)


def _blocks(run_pass: PassRecord, start_ns: int, end_ns: int) -> list[int]:
    """Return the edges of about equal blocks; each ends a step, so that a block holds the joules of its tokens."""
    if (length_s := (end_ns - start_ns) / NS_PER_S) < MIN_BLOCKS:
        raise NoWindowError(f"the engine was full for {max(length_s, 0):.1f} s, where {MIN_BLOCKS} s are needed")
    wanted_ns = np.linspace(start_ns, end_ns, _count(end_ns - start_ns, MIN_BLOCKS) + 1)
    if len(edges_ns := _nearest(run_pass.tokens.at_ns, wanted_ns)) < len(wanted_ns):
        raise NoWindowError(f"no token in a block of {np.diff(wanted_ns).min() / NS_PER_S:.1f} s")
    return edges_ns


def _nearest(instants_ns: NDArray[np.int64], wanted_ns: Floats) -> list[int]:
    """Return the instants next to those wanted, each once; they are in order."""
    after = np.searchsorted(instants_ns, wanted_ns).clip(1, len(instants_ns) - 1)
    is_before = wanted_ns - instants_ns[after - 1] < instants_ns[after] - wanted_ns
    return [int(at_ns) for at_ns in instants_ns[np.unique(after - is_before)]]


def _count(length_ns: float, least: int) -> int:
    return int(np.clip(length_ns / NS_PER_S / BLOCK_S, least, MAX_BLOCKS))


class _Work(NamedTuple):
    """What the engine's steps in each block did, by the requests' own instants; shape (blocks,) each.

    Attributes:
        output_tokens, steps: Steps that gave tokens; in the last of a pass, fewer requests share one.
        prompt_tokens: Prompt tokens of requests whose first token lies in the block.
        context: Sum, over the steps, of the contexts of the requests past their first token; in tokens.
    """

    output_tokens: Floats
    prompt_tokens: Floats
    steps: Floats
    context: Floats

    @classmethod
    def of(cls, run_pass: PassRecord, instants: Instants, edges_ns: Sequence[int]) -> _Work:
        step_ns, count = run_pass.tokens.at_ns, len(run_pass.tokens.at_ns)
        requests = sorted(run_pass.requests, key=lambda request: request.submitted_ns)
        prompts = np.array([request.prompt_tokens or 1 for request in requests], dtype=np.float64)
        outputs = np.array([request.output_tokens or 0 for request in requests], dtype=np.float64)
        # The steps that gave each request its first token and its last. A context grows evenly over the steps between
        # these, not over time: when others end, steps get quicker.
        first, finished = (np.searchsorted(step_ns, at_ns) for at_ns in (instants.first, instants.finished))
        rates = outputs / np.maximum(finished - first, 1)
        # Each request is a line over the steps, added behind its first token and taken away behind its last.
        lines = np.zeros((2, count + 2))
        for step, sign in ((first + 1, 1), (finished + 1, -1)):
            np.add.at(lines[0], step, sign * (prompts - rates * first))
            np.add.at(lines[1], step, sign * rates)
        constant, rate = np.cumsum(lines, axis=1)[:, :count]
        by_step = (np.bincount(first, prompts, minlength=count), np.ones(count), constant + rate * np.arange(count))
        edges = np.searchsorted(step_ns, edges_ns, side="right")
        sums = (np.diff(np.concatenate(([0.0], np.cumsum(amounts)))[edges]) for amounts in by_step)
        return cls(tokens_in(run_pass, edges_ns).astype(np.float64), *sums)

    def per_token(self) -> list[Floats]:
        """What joules per token depend on, were each step's joules a sum over what it does."""
        return [amount / self.output_tokens for amount in (self.prompt_tokens, self.steps, self.context)]

    def per_second(self, seconds: Floats) -> list[Floats]:
        """What power depends on while the engine keeps up."""
        return [self.output_tokens / seconds, self.prompt_tokens / seconds, self.context / seconds]
