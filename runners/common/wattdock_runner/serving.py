"""The one loop that serves a pass: admit requests as they arrive, let the engine step, note what it answers.

Whatever is not inference happens before the pass's span opens or after it closes. Knows no engine: a backend gives its
own as a subclass of `Engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_runner.arrivals import Admission
from wattdock_runner.backend import Arrival
from wattdock_runner.checkpoint import decode, encode_prompts, require_servable
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, WrongState
from wattdock_runner.recorder import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock_runner.backend import Prompt, Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder

    # A request, the instant of its new tokens (ns), their ids, and why it ended (None while it runs).
    Answer = tuple[RequestRecord, int, Sequence[int], str | None]

T = TypeVar("T")


class Engine:
    """One loaded model that serves requests; `add` and `step` are what every engine has.

    `serve` calls, on one thread: `prepare`; within `guarded`, on a drained engine, `add` and `step` in turn until no
    request is left, and `drain`; then, with the span closed, `complete`.

    Attributes:
        tokenizer: Of transformers, or None.
        context_tokens: Positions that prompt and answer share; None is unlimited.
        max_in_flight: Most requests served at a time; None is unlimited.
        in_flight_argument: The engine argument that raises `max_in_flight`.
    """

    tokenizer: Any = None
    vocab_size: int = 1 << 62
    context_tokens: int | None = None
    max_in_flight: int | None = None
    in_flight_argument: str = ""

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Make what a pass needs of its own, and refuse what the engine would refuse in the middle of it."""

    def guarded(self, doing: str, work: Callable[[], T]) -> T:  # noqa: ARG002
        """Return `work()`; where that fails, leave no request in the engine and name the failure by `doing`."""
        return work()

    def drain(self) -> None:
        """Return when the accelerator has done all its work."""

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Have the engine serve one request from its next step on."""
        raise NotImplementedError

    def step(self, until_ns: int | None) -> Iterable[Answer]:
        """Let the engine work until it has answers, and return these.

        Args:
            until_ns: When an engine that works by itself must return though it has none; None is no such instant.
        """
        raise NotImplementedError

    def complete(self, requests: Sequence[RequestRecord]) -> None:
        """Fill in what could not be known during the pass."""


def serve(engine: Engine | None, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Serve requests until the pass's minima are met, and record every request and token.

    Raises:
        WrongState: No model is loaded.
        InvalidRequest: A prompt cannot be run by this model, or the engine serves fewer requests at a time.
        OutOfMemory: What is to be in flight does not fit.
        PassCancelled: The client went away.
    """
    if engine is None:
        raise WrongState("no model is loaded")
    if engine.max_in_flight is not None and workload.in_flight > engine.max_in_flight:
        raise InvalidRequest(
            f"{workload.in_flight} requests in flight, and this engine serves {engine.max_in_flight} at a time; "
            f"raise {engine.in_flight_argument}"
        )
    encoded = encode_prompts(engine.tokenizer, workload, prompts)
    require_servable(encoded, engine.vocab_size, engine.context_tokens)
    engine.prepare(workload, encoded, recorder)
    doing = f"generating with {workload.in_flight} in flight"
    requests = engine.guarded(doing, lambda: _run(engine, workload, encoded, recorder))
    engine.complete(requests)
    for request in requests:
        request.text = decode(engine.tokenizer, request.output_ids) if workload.return_text else None
        request.output_ids = request.output_ids if workload.return_token_ids else []
    recorder.requests = requests


def _run(
    engine: Engine, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder
) -> list[RequestRecord]:
    """Open the span, admit and step until no request is left, drain, close the span."""
    engine.drain()
    admission = Admission(workload, prompts, recorder.open())
    requests: list[RequestRecord] = []
    while True:
        recorder.check_cancelled()
        running = len(requests) - recorder.requests_finished
        due_ns = now_ns()
        for index, prompt, intended_ns in admission.due(running, due_ns):
            # A static batch is submitted as one; an engine takes its requests one after the other.
            at_ns = due_ns if workload.arrival is Arrival.BATCH else now_ns()
            requests.append(RequestRecord(index, at_ns, len(prompt.ids), intended_ns))
            engine.add(requests[-1], prompt)
        running = len(requests) - recorder.requests_finished
        wake_ns = admission.wake_ns(running)
        if running:
            _note(engine.step(wake_ns), recorder)
        elif admission.exhausted:
            break
        else:
            recorder.cancelled.wait(max(0, (wake_ns or 0) - now_ns()) / NS_PER_S)
    engine.drain()
    recorder.close()
    return requests


def _note(answers: Iterable[Answer], recorder: PassRecorder) -> None:
    tokens = finished = 0
    for request, at_ns, ids, finish_reason in answers:
        if new := len(ids):
            request.steps.append((at_ns, new))
            request.output_ids.extend(ids)
            tokens += new
        if finish_reason:
            request.finish_reason = finish_reason
            finished += 1
    recorder.tokens_so_far += tokens
    recorder.requests_finished += finished
