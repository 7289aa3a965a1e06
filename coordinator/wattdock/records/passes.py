"""Records of passes: spans, requests, tokens and steps, as the runner and the host recorded them.

Plain values: no protobuf, no hardware. All instants are CLOCK_MONOTONIC nanoseconds of the host. What a runner says, or
a file holds, is checked before anything is made of it: bounds and lengths only; the audit judges what a figure means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattdock.metering import Span
from wattdock.records.declared import NOTHING_DECLARED, DeclaredWork
from wattdock.records.declared import Lines as Lines  # noqa: PLC0414  (of the door)
from wattdock.records.request import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.config import ExperimentConfig
    from wattdock.inputs import PromptSet

# Largest instant (146 years) and count: what the columns of the tables hold.
MAX_NS, MAX_COUNT = 2**62, 2**31 - 1
INSTANTS = ("submitted_ns", "intended_ns", "first_token_ns", "finished_ns")
COUNTS = ("index", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "replica", "max_output_tokens")
STEP_COUNTS = ("prompt_tokens", "decoded_tokens", "sequences")


@dataclass(frozen=True)
class TokenSeries:
    """Cumulative output tokens of a pass at instants; both arrays of shape (n,)."""

    at_ns: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """The engine's steps in a pass, a forward pass each, in order of their start; steps of replicas overlap.

    Each array has shape (n,), and (0,) where the engine does not know the figure; all are empty where it reports no
    steps.

    Attributes:
        start_ns: When the engine began to compute the step: it was submitted, and the step before had ended.
        end_ns: When its tokens were there.
        prompt_tokens: Prompt tokens computed, without cached and padding. Of a prompt in chunks, the step's chunk.
        decoded_tokens: Output tokens of sequences past their prefill: all but each request's first, which comes out of
            its prefill.
        sequences: Sequences computed, be it for a token that does not count.
        context_tokens: Positions whose keys and values attention read, summed over the sequences; padding where the
            engine reads it.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    decoded_tokens: NDArray[np.int64]
    sequences: NDArray[np.int64]
    context_tokens: NDArray[np.int64]


NO_STEPS = Steps(*[np.zeros(0, dtype=np.int64)] * 6)


@dataclass(frozen=True)
class Marked:
    """Spans of one name that a command's processes marked.

    Attributes:
        count: How many: ranks mark the same steps, so that of processes at work together one counts.
        spans: Where any process was inside one, ns, in order and without overlap; empty where they are too many.
    """

    name: str
    count: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PassRecord:
    """One pass: the runner's report, and the host's readings in the same time.

    Attributes:
        prompts_sha256: Hash of the prompts sent.
        prompts_reused: Some of the prompts were sent in an earlier pass of the runner already, warm-up included.
        repeated_prompts: Requests whose prompt an earlier request of the pass had.
        declared: What the pass was to send, held against its requests.
        cpu_others_share: Share of the runner's CPUs that other processes or the hypervisor used, 0 to 1; None where
            unknown.
        lease_fault: Why other measurements were not kept off, although the leases were held; None where they were.
        clock_checked: The runner's clock was checked against the host's after the pass; False where the runner had
            ended by then.
        cacheable_tokens: Prompt tokens that earlier prompts of the pass held, where conversations were declared.
        arrivals_due: Requests of an open loop that had arrived when the last one was taken; None for other kinds.
        client_cpu_share: Busy share of the one thread that sent requests and read answers, 0 to 1; like the next two
            only where the engine is behind its own server.
        client_late_s: By how much it read late what had come: the 99th percentile.
        tokens_without_ids: Output tokens that the server counted without telling their ids.
        others_counted: The server counted as many tokens as it told; more, for others' requests, would have ended the
            pass.
        rendered_sha256: Of the ids of the text prompts as the runner rendered and encoded them; None without text.
        template_asked_time: Whether the chat template asked for the present, which is that of the study's begin.
        drafted_tokens, accepted_tokens: Of speculative decoding: tokens proposed and checked, and those of them that
            the model agreed with; None where the engine proposes none.
        units: Work of a command of the user's own, by unit; `tokens` and `output_tokens` are of the unit that counts.
        marked: Spans that it marked.
        malformed_marks: Lines that are no marks.
        counting_processes: Processes whose counts of the unit are added up; 0 where none counted.
        repeated_ranks: Ranks that counted its work in several processes.
    """

    span: Span
    requests: tuple[RequestRecord, ...]
    tokens: TokenSeries
    output_tokens: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    prompt_repeats: int
    steps: Steps = NO_STEPS
    index: int = 0
    cpu_others_share: float | None = None
    prompts_sha256: str = ""
    prompts_reused: bool = False
    repeated_prompts: int = 0
    declared: DeclaredWork = NOTHING_DECLARED
    lease_fault: str | None = None
    clock_checked: bool = True
    arrivals_due: int | None = None
    cacheable_tokens: int | None = None
    client_cpu_share: float | None = None
    client_late_s: float | None = None
    tokens_without_ids: int = 0
    others_counted: bool = False
    rendered_sha256: str | None = None
    template_asked_time: bool = False
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    units: dict[str, int] = field(default_factory=dict)
    marked: tuple[Marked, ...] = ()
    malformed_marks: int = 0
    counting_processes: int = 0
    repeated_ranks: int = 0

    @property
    def has_replicas(self) -> bool:
        """Whether several equal engines served the pass."""
        return any(request.replica is not None for request in self.requests)

    def require_possible(self) -> None:
        """Check that the figures of a pass can be, as a runner says them or a file holds them.

        Raises:
            ValueError: Says which figure cannot be.
        """
        require_within(f"the span {self.span.name[:40]!r}", (self.span.start_ns, self.span.end_ns), MAX_NS)
        if self.span.end_ns == self.span.start_ns:
            raise ValueError(f"the span {self.span.name[:40]!r} takes no time")
        self._require_possible_work()
        for names, most in ((INSTANTS, MAX_NS), (COUNTS, MAX_COUNT)):
            for name in names:
                require_within(f"a request's {name}", (getattr(request, name) for request in self.requests), most)
        for request in self.requests:
            require_within("a gap between tokens", request.token_gaps_ns or (), MAX_NS)
        counts = ("output_tokens", "prompt_tokens", "arrivals_due", "cacheable_tokens", "tokens_without_ids")
        for name in (*counts, "drafted_tokens", "accepted_tokens"):
            require_within(f"the pass's {name}", (getattr(self, name),), MAX_NS)
        for name in ("client_cpu_share", "client_late_s"):
            require_within(f"the pass's {name}", (getattr(self, name),), MAX_COUNT)
        # Of the steps, a column that the engine does not know is empty.
        for kind, columns, unknown in (("tokens", vars(self.tokens), set[int]()), ("steps", vars(self.steps), {0})):
            first, *others = map(len, columns.values())
            if not {*others} <= {first} | unknown:
                raise ValueError(f"columns of {kind} have different lengths")
            for name, column in columns.items():
                ends = (int(column.min()), int(column.max())) if column.size else ()
                require_within(f"{name} of {kind}", ends, MAX_COUNT if name in STEP_COUNTS else MAX_NS)

    def _require_possible_work(self) -> None:
        """Check what a command did."""
        require_within("the units of work", self.units.values(), MAX_NS)
        for marked in self.marked:
            require_within(f"a span {marked.name[:40]!r}", (marked.count, *chain(*marked.spans)), MAX_NS)
            if any(end_ns < start_ns for start_ns, end_ns in marked.spans):
                raise ValueError(f"a span {marked.name[:40]!r} ends before it begins")

    def of_prompts(self, prompts: PromptSet, config: ExperimentConfig, *, ignore_eos: bool) -> PassRecord:
        """Return the record with what it was to send, held against its requests.

        Args:
            ignore_eos: Whether answers run to their limits.
        """
        declared = DeclaredWork.of(prompts, config, self.requests, start_ns=self.span.start_ns, ignore_eos=ignore_eos)
        repeated = len(self.requests) - len({request.prompt_hash for request in self.requests})
        return replace(self, declared=declared, repeated_prompts=repeated, prompts_sha256=prompts.sha256)


def require_within(what: str, values: Iterable[float | None], most: int) -> None:
    """Check that known values lie between 0 and `most`.

    Raises:
        ValueError: Names the value that does not.
    """
    for value in values:
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{what} is {str(value)[:30]}")
