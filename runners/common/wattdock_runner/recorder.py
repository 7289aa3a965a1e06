"""Record a pass: its span, its requests, its tokens over time.

The engine's thread writes; the servicer's thread reads progress for heartbeats, and everything else after the end.
Must not know: engines, protobuf.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import PassCancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


NO_SPAN = Span("pass", 0, 0)


@dataclass
class RequestRecord:
    """A request of a pass; instants are CLOCK_MONOTONIC nanoseconds, None is unknown.

    Attributes:
        index: In order of submission, from 0.
        intended_ns: When an open-loop schedule wanted the request submitted.
        steps: Instant and number of new tokens of each answer with tokens. The end-of-sequence id counts, padding after
            it does not.
        finish_reason: "stop", "length" or "abort".
        replica: Number of the replica that served the request, from 0; None without replicas.
        max_output_tokens: The output limit that the engine was given.
        prompt_hash: Hash of the ids that the engine was given; see runner.proto.
    """

    index: int
    submitted_ns: int
    prompt_tokens: int | None = None
    intended_ns: int | None = None
    cached_prompt_tokens: int | None = None
    steps: list[tuple[int, int]] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str = "abort"
    text: str | None = None
    replica: int | None = None
    max_output_tokens: int | None = None
    prompt_hash: int | None = None

    @property
    def first_token_ns(self) -> int | None:
        """When the first token was produced."""
        return self.steps[0][0] if self.steps else None

    @property
    def finished_ns(self) -> int | None:
        """When the last token was produced."""
        return self.steps[-1][0] if self.steps else None

    @property
    def token_gaps_ns(self) -> list[int]:
        """From each token to the one after it; tokens of one answer came together."""
        instants = [at_ns for at_ns, tokens in self.steps for _ in range(tokens)]
        return [later - earlier for earlier, later in pairwise(instants)]

    @property
    def output_tokens(self) -> int:
        """Number of tokens generated for the request."""
        return sum(tokens for _, tokens in self.steps)


class Step(NamedTuple):
    """A step of an engine, which is a forward pass; a figure that an engine does not know is None in all its steps.

    Attributes:
        start_ns: When the engine began to compute it: it was submitted, and the step before had ended.
        end_ns: When its tokens were there: the instant of their answers, unless `Engine.dated` knows better.
        prompt_tokens: Prompt tokens computed, without cached and padding; of a prompt in chunks, this step's chunk.
        sequences: Sequences computed, be it for a token that does not count.
        context_tokens: Positions whose keys and values attention read, summed over the sequences; padding where the
            engine reads it.
        decoded_tokens: Output tokens of sequences past their prefill, which is all but each request's first; filled in
            by `PassRecorder.take_steps`.
    """

    start_ns: int
    end_ns: int
    prompt_tokens: int | None
    sequences: int | None
    context_tokens: int | None
    decoded_tokens: int = 0


class Serving(NamedTuple):
    """What stood between runner and engine in a pass; runner.proto explains the figures."""

    client_cpu_share: float
    client_late_s: float
    tokens_without_ids: int = 0
    others_counted: bool = False


@dataclass
class PassRecord:
    """What is known of a pass once it is over.

    Attributes:
        span: From just before the first request until the engine had drained.
        requests: In order of submission.
        steps: The engine's steps in order of their start; empty where it does not tell.
        serving: None for an engine in the runner's own processes.
        rendered_sha256: SHA-256 of the ids of the pass's text prompts; None where no prompt is text.
        template_asked_time: Whether the chat template asked for the present.
        drafted_tokens, accepted_tokens: Of speculative decoding; see runner.proto.
    """

    span: Span = NO_SPAN
    requests: Sequence[RequestRecord] = ()
    steps: Sequence[Step] = ()
    serving: Serving | None = None
    rendered_sha256: str | None = None
    template_asked_time: bool = False
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None

    def token_series(self) -> tuple[list[int], list[int]]:
        """Return instants (ns, ascending) and the cumulative number of output tokens at each; equal lengths."""
        tokens_at = self._tokens_at()
        instants = sorted(tokens_at)
        return instants, list(accumulate(tokens_at[at_ns] for at_ns in instants))

    def _tokens_at(self) -> Counter[int]:
        tokens_at: Counter[int] = Counter()
        for request in self.requests:
            for at_ns, tokens in request.steps:
                tokens_at[at_ns] += tokens
        return tokens_at

    def take_steps(self, steps: Iterable[Step]) -> None:
        """Keep the steps of the engine that served all requests so far, with the tokens that each decoded."""
        tokens_at = self._tokens_at()
        for request in self.requests:
            if request.steps:
                tokens_at[request.steps[0][0]] -= 1
        self.steps = [step._replace(decoded_tokens=tokens_at[step.end_ns]) for step in steps]


class Progress(ctypes.Structure):
    """Counts of a pass under way, for heartbeats; they may lie in memory that processes share.

    Attributes:
        output_tokens: An upper bound where sequences of a static batch end before their limit.
        requests_submitted: Those that have entered the engine.
    """

    _fields_ = (
        ("output_tokens", ctypes.c_uint64),
        ("requests_submitted", ctypes.c_uint64),
        ("requests_finished", ctypes.c_uint64),
    )
    output_tokens: int
    requests_submitted: int
    requests_finished: int


class PassRecorder(PassRecord):
    """Records a pass.

    Attributes:
        cancelled: Set when the client has gone.
        end_allowed: Set when the client lets the pass end.
        progress: Of the engine in this process.
        parts: The progress of each engine that serves the pass; their sum is the pass's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cancelled, self.end_allowed = threading.Event(), threading.Event()
        self.progress = Progress()
        self.parts: Sequence[Progress] = [self.progress]
        self._start_ns = 0

    def may_end(self) -> bool:
        """Whether the client lets a pass with a minimum duration end."""
        return self.end_allowed.is_set()

    def check_cancelled(self) -> None:
        """Raise `PassCancelled` if the client has gone; call it at least once per engine step."""
        if self.cancelled.is_set():
            raise PassCancelled("the client cancelled the pass")

    def open(self) -> int:
        """Open the span of the pass on a drained engine, just before the first request; return the instant."""
        self._start_ns = now_ns()
        return self._start_ns

    def close(self) -> None:
        """Close the span of the pass on a drained engine."""
        self.span = Span("pass", self._start_ns, now_ns())

    def record(self) -> PassRecord:
        """Return what was recorded, for another process."""
        return PassRecord(*(getattr(self, item.name) for item in fields(PassRecord)))

    def adopt(self, record: PassRecord) -> None:
        """Take over what another process recorded."""
        vars(self).update(vars(record))


def merged(parts: Sequence[PassRecord]) -> PassRecord:
    """Return the record of a pass that replicas served; the last drained replica ends the pass."""
    for number, part in enumerate(parts):
        for request in part.requests:
            request.replica = number
    # Each replica has a server, and a client, of its own: the worst count.
    servings = [part.serving for part in parts if part.serving]
    serving = None
    if servings:
        shares, late_s, without_ids, others_counted = zip(*servings, strict=True)
        serving = Serving(max(shares), max(late_s), sum(without_ids), all(others_counted))
    drafts = {name: [getattr(part, name) for part in parts] for name in ("drafted_tokens", "accepted_tokens")}
    return PassRecord(
        span=Span("pass", min(part.span.start_ns for part in parts), max(part.span.end_ns for part in parts)),
        requests=sorted((request for part in parts for request in part.requests), key=lambda request: request.index),
        steps=sorted((step for part in parts for step in part.steps), key=lambda step: step.start_ns),
        serving=serving,
        # Each replica renders all prompts.
        rendered_sha256=parts[0].rendered_sha256,
        template_asked_time=parts[0].template_asked_time,
        **{name: None if None in counts else sum(counts) for name, counts in drafts.items()},
    )
