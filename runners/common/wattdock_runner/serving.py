"""The loop of continuous batching: admit requests as they arrive, let the engine step, record its answers.

Whatever is not inference happens before the span of the pass opens or after it closes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_runner.arrivals import Admission
from wattdock_runner.checkpoint import encode_prompts, first_requests, require_servable
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import CacheTooSmall, InvalidRequest, WrongState
from wattdock_runner.process import leave_out_of_garbage_collection
from wattdock_runner.recorder import RequestRecord
from wattdock_runner.stop_strings import decoded, text_before
from wattdock_runner.values import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, Progress, Step
    from wattdock_runner.values import Prompt, Workload

    # A request, the instant of its new tokens (ns), their ids, and the finish reason (None while the request runs).
    Answer = tuple[RequestRecord, int, Sequence[int], str | None]

T = TypeVar("T")

# Longest rest between two looks at whether the pass is cancelled.
LOOK_S = 0.5


class Engine:
    """A loaded model that serves requests. Every engine has `add`, `step` and `drain`; the other methods have defaults.

    `serve` calls, on a single thread: `prepare`; within `guarded`, on a drained engine, `add` and `step` in turn until
    all requests have finished, and `drain`; then, with the span closed, `complete` and `dated`.

    Attributes:
        tokenizer: A tokenizer of transformers, or None.
        context_tokens: Positions that prompt and answer share; None is unlimited.
        max_in_flight: Number of requests served at a time at most; None is unlimited.
        in_flight_argument: The engine argument that raises `max_in_flight`.
        cache_blocks, block_tokens: Blocks of the KV cache, and tokens in each; None where requests never wait for it.
        cache_arguments: Engine arguments that give the cache more room.
        most_scored: Number of ids that `score` takes in a row at most; 0 where it takes none.
        drafts: How many tokens were drafted and accepted in the pass; None where the engine drafts none.
        steps: The steps of a pass in order, which an engine that knows them appends in `step` or `complete`; empty at
            the beginning of a pass.
    """

    tokenizer: Any = None
    vocab_size: int = 1 << 62
    context_tokens: int | None = None
    max_in_flight: int | None = None
    in_flight_argument: str = ""
    cache_blocks: int | None = None
    block_tokens: int = 1
    cache_arguments: str = ""
    most_scored = 0
    drafts: tuple[int, int] | None = None
    steps: list[Step]

    @property
    def makes_text(self) -> bool:
        """Whether the text of an answer is known, which stop strings need."""
        return self.tokenizer is not None

    def encode(
        self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder
    ) -> tuple[EncodedPrompt, ...]:
        """Return the token ids of each prompt; see `encode_prompts`."""
        return encode_prompts(self.tokenizer, workload, prompts, recorder)

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Prepare a pass, and refuse what the engine would refuse in the middle of it."""

    def guarded(self, doing: str, work: Callable[[], T]) -> T:  # noqa: ARG002
        """Return `work()`; if it fails, leave no request in the engine and raise an error that names `doing`."""
        return work()

    def drain(self) -> None:
        """Return when the accelerators have done all their work."""

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Have the engine serve a request from the next step on."""
        raise NotImplementedError

    def step(self, until_ns: int | None) -> Iterable[Answer]:
        """Let the engine work until it has answers, and return them.

        Args:
            until_ns: When an engine that works by itself must return without answers; None is never.
        """
        raise NotImplementedError

    def rest(self, seconds: float) -> None:
        """Wait with nothing to do; it may return sooner."""
        time.sleep(seconds)

    def end(self) -> None:
        """Stop what it started."""

    def complete(self, requests: Sequence[RequestRecord]) -> None:
        """Add to the records what was not known during the pass."""

    def score(self, rows: Sequence[tuple[list[int], int]]) -> Sequence[tuple[float, bool]]:
        """Return the log-likelihood (natural) of each row's last ids, as many as stand beside it, after those before.

        And whether each of these ids is the likeliest at its place.
        """
        raise NotImplementedError

    def dated(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the steps as the accelerator dated them, where they did not end at the instant of their answers."""
        return steps


def serve(engine: Engine | None, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Serve requests until the pass may end with its minima met, and record every request and token.

    Raises:
        WrongState: No model is loaded.
        InvalidRequest: The model cannot run a prompt, its answers have no text to stop at, or the engine serves fewer
            requests at a time.
        OutOfMemory: The requests in flight do not fit.
        PassCancelled: The client went away.
    """
    if engine is None:
        raise WrongState("no model is loaded")
    if engine.max_in_flight is not None and workload.in_flight > engine.max_in_flight:
        raise InvalidRequest(
            f"{workload.in_flight} requests in flight, and this engine serves {engine.max_in_flight} at a time; "
            f"raise {engine.in_flight_argument}"
        )
    if workload.stop and not engine.makes_text:
        raise InvalidRequest("this model folder has no tokenizer, so no answer has a text to stop at; leave stop out")
    encoded = engine.encode(workload, prompts, recorder)
    first = first_requests(encoded, workload.first_output_tokens)
    require_servable((*encoded, *first), engine.vocab_size, engine.context_tokens)
    require_cache_room(engine, workload, encoded)
    engine.steps = []
    engine.prepare(workload, (*encoded, *first), recorder)
    # The prompts' lists of ids, too.
    leave_out_of_garbage_collection()
    doing = f"generating with {workload.in_flight} in flight"
    requests = engine.guarded(doing, lambda: _run(engine, workload, encoded, first, recorder))
    engine.complete(requests)
    for request in requests:
        request.text = _text(engine, workload, request) if workload.return_text else None
        request.output_ids = request.output_ids if workload.return_token_ids else []
    recorder.requests = requests
    recorder.take_steps(engine.steps)
    recorder.steps = engine.dated(recorder.steps)
    recorder.drafted_tokens, recorder.accepted_tokens = engine.drafts or (None, None)


def _text(engine: Engine, workload: Workload, request: RequestRecord) -> str | None:
    """Return the text of an answer up to a stop string: as a server wrote it, or else as its ids are decoded."""
    text = request.text
    if text is None and engine.tokenizer is not None:
        text = decoded(engine.tokenizer, request.output_ids)
    return text and text_before(text, workload.stop)


def require_cache_room(engine: Engine, workload: Workload, prompts: Sequence[EncodedPrompt]) -> None:
    """Refuse requests that cannot be in flight together: the engine would let some wait, or compute them twice.

    Raises:
        OutOfMemory: Holds the blocks needed and the blocks there are.
    """
    if engine.cache_blocks is None or workload.arrival not in (Arrival.BATCH, Arrival.CLOSED):
        return
    # A request that may end early is certain to take room for its first token only.
    lengths = [len(prompt.ids) + (prompt.max_output_tokens if workload.ignore_eos else 1) for prompt in prompts]
    # Without minima each prompt is run once.
    most = None if workload.min_duration_s else workload.min_requests or len(lengths)
    in_flight = workload.in_flight if most is None else min(workload.in_flight, most)
    needed = most_blocks(lengths, in_flight, engine.block_tokens)
    if needed > engine.cache_blocks:
        raise CacheTooSmall(
            f"{in_flight} requests in flight need {needed} blocks of KV cache "
            f"{'at their full length' if workload.ignore_eos else 'for their first tokens alone'}, and there are "
            f"{engine.cache_blocks}; lower batch_size, or raise {engine.cache_arguments}"
        )


def most_blocks(lengths: Sequence[int], in_flight: int, block_tokens: int) -> int:
    """Return the most KV cache blocks that `in_flight` successive requests take at full length; prompts repeat."""
    blocks = [-(-length // block_tokens) for length in lengths]
    ring = blocks * (1 + -(-in_flight // len(blocks)))
    return max(sum(ring[first : first + in_flight]) for first in range(len(blocks)))


def _run(
    engine: Engine,
    workload: Workload,
    prompts: Sequence[EncodedPrompt],
    first: Sequence[EncodedPrompt],
    recorder: PassRecorder,
) -> list[RequestRecord]:
    """Open the span, admit and step until all requests have finished, drain, close the span."""
    engine.drain()
    admission = Admission(workload, prompts, recorder.open(), first, may_end=recorder.may_end)
    progress = recorder.progress
    requests: list[RequestRecord] = []
    while True:
        recorder.check_cancelled()
        running = len(requests) - progress.requests_finished
        due_ns = now_ns()
        for index, prompt, intended_ns in admission.due(running, due_ns):
            # A static batch is submitted at a single instant, though an engine takes its requests one by one.
            at_ns = due_ns if workload.arrival is Arrival.BATCH else now_ns()
            request = RequestRecord(
                index,
                at_ns,
                prompt_tokens=len(prompt.ids),
                intended_ns=intended_ns,
                max_output_tokens=prompt.max_output_tokens,
                prompt_hash=prompt.hash,
            )
            requests.append(request)
            progress.requests_submitted += 1
            engine.add(request, prompt)
        running = len(requests) - progress.requests_finished
        wake_ns = admission.wake_ns(running)
        if running:
            _note(engine.step(wake_ns), progress)
        elif admission.exhausted:
            break
        else:
            engine.rest(min(LOOK_S, max(0, (wake_ns or 0) - now_ns()) / NS_PER_S))
    engine.drain()
    recorder.close()
    return requests


def _note(answers: Iterable[Answer], progress: Progress) -> None:
    tokens = finished = 0
    for request, at_ns, ids, finish_reason in answers:
        if new := len(ids):
            request.steps.append((at_ns, new))
            request.output_ids.extend(ids)
            tokens += new
        if finish_reason:
            request.finish_reason = finish_reason
            finished += 1
    progress.output_tokens += tokens
    progress.requests_finished += finished
