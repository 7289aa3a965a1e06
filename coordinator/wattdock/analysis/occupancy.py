"""When requests were in the engine: rounds of them, and when it was full, by the runner's own record. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.records import PassRecord

    Nanoseconds = NDArray[np.int64]

# Mean share of the slots that must be taken: an engine returns a finished request and takes the next one between steps.
MIN_FULL = 0.95
# Least time from a step's end to the next mark, as a share of the usual time from step to step.
WITHIN_STEP = 0.5


class NoWindowError(Exception):
    """Why a pass has no such part."""


class Instants(NamedTuple):
    """When each request was submitted, got its first token and finished, ns, in order of submission."""

    submitted: Nanoseconds
    first: Nanoseconds
    finished: Nanoseconds

    @classmethod
    def of(cls, run_pass: PassRecord) -> Instants:
        """Return a pass's.

        Raises:
            NoWindowError: It lacks any, or they are not in order.
        """
        rows = [(request.submitted_ns, request.first_token_ns, request.finished_ns) for request in run_pass.requests]
        if not rows or any(None in row for row in rows):
            raise NoWindowError("the engine does not tell when every request began and ended")
        columns = np.array(rows, dtype=np.int64).T
        if columns[0].min() < run_pass.span.start_ns or (np.diff(columns, axis=0) < 0).any():
            raise NoWindowError("by the runner's clock a request finished, or was submitted, too early")
        return cls(*columns[:, np.argsort(columns[0], kind="stable")])

    @property
    def lifetime_ns(self) -> float:
        """The requests' mean time from submission to the last token."""
        return float(np.mean(self.finished - self.submitted))

    def round_starts(self) -> NDArray[np.intp]:
        """Return the positions of requests that were submitted when all before them had finished; 0 is one."""
        before_ns = np.maximum.accumulate(self.finished)[:-1]
        return np.concatenate(([0], np.flatnonzero(self.submitted[1:] >= before_ns) + 1))

    def rounds(self, after_ns: int) -> tuple[int, int]:
        """Return from the first round that begins at or after an instant to the end of the last one, ns.

        Raises:
            NoWindowError: No round begins then.
        """
        starts_ns = self.submitted[self.round_starts()]
        if not (late := starts_ns >= after_ns).any():
            raise NoWindowError("no round of requests begins after the lead-in")
        return int(starts_ns[late][0]), int(self.finished.max())

    def full(self, in_flight: int, after_ns: int) -> tuple[int, int]:
        """Return from the first tokens of `in_flight` requests to the last submission, ns: refills lie inside.

        Args:
            after_ns: It begins no earlier.

        Raises:
            NoWindowError: There is no such time, or the engine was not full in it.
        """
        if len(self.submitted) <= in_flight:
            raise NoWindowError(f"{len(self.submitted)} requests never leave {in_flight} in flight and one waiting")
        full_ns, end_ns = int(self.first[:in_flight].max()), int(self.submitted[-1])
        start_ns = max(full_ns, after_ns)
        if end_ns <= start_ns:
            lead_in = " and the lead-in was over" if after_ns > full_ns else ""
            raise NoWindowError(f"no request came after {in_flight} had their first token{lead_in}")
        inside_ns = np.clip(self.finished, start_ns, end_ns) - np.clip(self.submitted, start_ns, end_ns)
        running = float(inside_ns.sum()) / (end_ns - start_ns)
        if running < MIN_FULL * in_flight:
            raise NoWindowError(f"{running:.3g} of {in_flight} requests in flight on average")
        return start_ns, end_ns

    def arriving(self, after_ns: int) -> tuple[int, int]:
        """Return from a mean lifetime after the first submission to the last one, ns.

        Args:
            after_ns: It begins no earlier.

        Raises:
            NoWindowError: There is no such time.
        """
        start_ns, end_ns = max(int(self.submitted[0] + self.lifetime_ns), after_ns), int(self.submitted[-1])
        if end_ns <= start_ns:
            raise NoWindowError("no request arrived a mean lifetime after the first")
        return start_ns, end_ns


def is_scheduled(run_pass: PassRecord) -> bool:
    """Whether every request has an intended arrival, as in an open loop."""
    requests = run_pass.requests
    return bool(requests) and all(request.intended_ns is not None for request in requests)


def tokens_by(run_pass: PassRecord, at_ns: Sequence[int] | Nanoseconds) -> NDArray[np.int64]:
    """Return the output tokens that a pass had by each instant; shape (n,)."""
    counts = np.concatenate((np.zeros(1, dtype=np.int64), run_pass.tokens.output_tokens))
    return counts[np.searchsorted(run_pass.tokens.at_ns, at_ns, side="right")]


def tokens_in(run_pass: PassRecord, edges_ns: Sequence[int]) -> NDArray[np.int64]:
    """Return the output tokens that a pass gained after each edge, up to and with the next; shape (edges − 1,)."""
    return np.diff(tokens_by(run_pass, edges_ns))


def step_ends(run_pass: PassRecord, start_ns: int, end_ns: int) -> Nanoseconds:
    """Return the instants within an interval at which the tokens of whole steps were there, ns; shape (n,).

    Streams of a server, and ranks of a command, tell of one step one after the other: a step ends with the mark that
    the next one follows a while later. Half of the interval lies between marks that are the usual time and more apart.
    """
    at_ns = run_pass.tokens.at_ns
    is_inside = (at_ns >= start_ns) & (at_ns <= end_ns)
    until_next_ns = np.diff(at_ns, append=np.iinfo(np.int64).max)[is_inside]
    shortest_ns = np.sort(until_next_ns[:-1])
    usual_ns = shortest_ns[np.searchsorted(np.cumsum(shortest_ns), shortest_ns.sum() / 2)] if len(shortest_ns) else 0
    return at_ns[is_inside][until_next_ns >= WITHIN_STEP * usual_ns]


def balanced(run_pass: PassRecord, starts_ns: Nanoseconds, end_ns: int) -> int:
    """Return the start of a window whose prompts come nearest to belonging to its tokens.

    An engine that computes all prompts in flight, then all their answers, has at any instant up to as many prompts
    without answers as it has slots. From start to end both match if the answers begun by either instant get as many
    tokens after it.

    Args:
        starts_ns: Ends of steps at which the window may start, ascending, shape (n,), not empty.
    """
    answers = sorted((request.first_token_ns or 0, request.output_tokens or 0) for request in run_pass.requests)
    first_ns, lengths = np.array(answers, dtype=np.int64).T
    at_ns = np.append(starts_ns, end_ns)
    begun = np.concatenate(([0], np.cumsum(lengths)))[np.searchsorted(first_ns, at_ns, side="right")]
    to_come = begun - tokens_by(run_pass, at_ns)
    return int(starts_ns[np.argmin(np.abs(to_come[:-1] - to_come[-1]))])
