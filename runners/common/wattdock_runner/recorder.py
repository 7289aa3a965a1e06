"""Record one pass as it happens: its span, its requests, its tokens over time.

The engine's thread writes; the servicer's thread reads progress for heartbeats and everything else after the end.
Knows no engine and no protobuf.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import PassCancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class RequestRecord:
    """One request of a pass; instants are CLOCK_MONOTONIC nanoseconds, None is unknown.

    Attributes:
        index: In order of submission, from 0.
        intended_ns: When an open-loop schedule wanted it submitted.
        finished_ns: When its last token was produced.
        output_tokens: Ids that the engine generated: the end-of-sequence id counts, padding after it does not.
        finish_reason: "stop", "length" or "abort".
        replica: Which of several equal engines served it, from 0; None where there was one.
    """

    index: int
    submitted_ns: int
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    intended_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    output_tokens: int = 0
    finish_reason: str = "abort"
    text: str | None = None
    output_ids: Sequence[int] | None = None
    replica: int | None = None


@dataclass(frozen=True)
class Recorded:
    """A pass as one process recorded it.

    Attributes:
        tokens_at: Output tokens by the instant (ns) they were produced at.
    """

    span: Span
    requests: tuple[RequestRecord, ...]
    tokens_at: Mapping[int, int]


@dataclass(frozen=True)
class ReplicaPass:
    """What one of several equal engines did in a pass.

    Attributes:
        span: From the common start until this engine had drained.
        last_token_ns: When its last token was produced; None without any.
    """

    gpu_uuids: tuple[str, ...]
    span: Span
    requests: int
    output_tokens: int
    last_token_ns: int | None


class PassRecorder:
    """The record of one pass. Every method is cheap enough to be called from the measured loop.

    Attributes:
        replicas: What each of several equal engines did; empty where there was one.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.tokens_so_far = 0
        self.requests_finished = 0
        self.replicas: tuple[ReplicaPass, ...] = ()
        self._requests: dict[int, RequestRecord] = {}
        self._tokens_at: Counter[int] = Counter()
        self._start_ns: int | None = None
        self._span: Span | None = None

    def check_cancelled(self) -> None:
        """Raise `PassCancelled` if the client has gone; call it at least once per engine step."""
        if self.cancelled.is_set():
            raise PassCancelled("the client cancelled the pass")

    def open(self) -> int:
        """Open the pass's span now, on a drained engine, just before the first request; return the instant."""
        self._start_ns = now_ns()
        return self._start_ns

    def close(self, *, drained: bool) -> int:
        """Close the span now; `drained` when the engine had finished all work here and when it was opened."""
        if self._start_ns is None:
            raise RuntimeError("the backend closed a pass that it never opened")
        end_ns = now_ns()
        self._span = Span("pass", self._start_ns, end_ns, drained)
        return end_ns

    def submitted(
        self,
        index: int,
        *,
        prompt_tokens: int | None = None,
        cached_prompt_tokens: int | None = None,
        at_ns: int | None = None,
        intended_ns: int | None = None,
    ) -> None:
        """Note that a request entered the engine, now unless `at_ns` says when."""
        self._requests[index] = RequestRecord(
            index, now_ns() if at_ns is None else at_ns, prompt_tokens, cached_prompt_tokens, intended_ns
        )

    def emitted(self, index: int, tokens: int, at_ns: int) -> None:
        """Note `tokens` more output tokens of a request; the first ones set its first-token instant."""
        request = self._requests[index]
        if request.first_token_ns is None:
            request.first_token_ns = at_ns
        request.finished_ns = at_ns
        request.output_tokens += tokens
        self._tokens_at[at_ns] += tokens

    def finished(
        self, index: int, reason: str, *, text: str | None = None, output_ids: Sequence[int] | None = None
    ) -> None:
        """Note why a request ended ("stop", "length", "abort"); when is the instant of its last token."""
        request = self._requests[index]
        request.finish_reason, request.text, request.output_ids = reason, text, output_ids

    def progress(self, *, output_tokens: int, requests_finished: int) -> None:
        """Say what the next heartbeat shows; may run ahead of the record while a static batch runs."""
        self.tokens_so_far, self.requests_finished = output_tokens, requests_finished

    @property
    def span(self) -> Span:
        """The closed span of the pass."""
        if self._span is None:
            raise RuntimeError("the backend ended a pass without closing its span")
        return self._span

    def requests(self) -> list[RequestRecord]:
        """Return all requests in order of submission."""
        return [self._requests[index] for index in sorted(self._requests)]

    def token_series(self) -> tuple[list[int], list[int]]:
        """Return instants (ns, ascending) and the cumulative number of output tokens at each; equal lengths."""
        instants = sorted(self._tokens_at)
        return instants, list(accumulate(self._tokens_at[at_ns] for at_ns in instants))

    def recorded(self) -> Recorded:
        """Return the closed record, to be adopted in another process."""
        return Recorded(self.span, tuple(self.requests()), dict(self._tokens_at))

    def adopt(self, one: Recorded) -> None:
        """Take another process's record for this one."""
        self._span = one.span
        self._requests = {request.index: request for request in one.requests}
        self._tokens_at = Counter(one.tokens_at)

    def adopt_replicas(self, parts: Sequence[tuple[tuple[str, ...], Recorded]]) -> None:
        """Make one record of those of several equal engines, each with its GPUs' UUIDs.

        The pass ends when the last of them has drained.
        """
        for replica, (_, part) in enumerate(parts):
            for request in part.requests:
                self._requests[request.index] = replace(request, replica=replica)
            self._tokens_at.update(part.tokens_at)
        spans = [part.span for _, part in parts]
        drained = all(span.drained for span in spans)
        self._span = Span("pass", min(s.start_ns for s in spans), max(s.end_ns for s in spans), drained)
        self.replicas = tuple(
            ReplicaPass(
                gpu_uuids=uuids,
                span=part.span,
                requests=len(part.requests),
                output_tokens=sum(part.tokens_at.values()),
                last_token_ns=max(part.tokens_at, default=None),
            )
            for uuids, part in parts
        )
