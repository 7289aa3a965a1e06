"""Feed one pass to the engine, read its streams, and record it.

Everything that is not inference happens before the span opens or after it closes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrt_llm import SamplingParams
from wattdock_tensorrt_drain import WATCH_S, drain, require_alive
from wattdock_tensorrt_load import MEMORY_WORDS, TensorrtModel
from wattdock_tensorrt_loop import TurnInstant
from wattdock_tensorrt_workers import is_alive

from wattdock_runner.admission import Admission
from wattdock_runner.backend import Arrival
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory
from wattdock_runner.served import Served
from wattdock_runner.supply import PromptSupply
from wattdock_runner.text import encode_prompts, require_servable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_tensorrt_api import RequestOutput

    from wattdock_runner.backend import Prompt, Workload
    from wattdock_runner.recorder import PassRecorder

ABORT_S = 20.0
REASONS = ("stop", "length")


@dataclass(frozen=True)
class _Request:
    """One prompt ready to run."""

    ids: list[int]
    sampling: SamplingParams


@dataclass(kw_only=True)
class _TensorrtServed(Served):
    """One request that entered the engine.

    Attributes:
        output: Its stream of responses.
        ended_ns: When the last response came.
    """

    output: RequestOutput
    ended_ns: int = 0


def run_pass(model: TensorrtModel, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Serve requests as they arrive until the minima are met; record every request and token.

    Raises:
        InvalidRequest: A prompt cannot be run by this model, or the engine serves fewer requests at a time.
        OutOfMemory: A step does not fit.
        PassCancelled: The client went away.
    """
    requests = _prepare(model, workload, prompts)
    try:
        served = model.loop.run(_Pass(model, workload, recorder).serve(requests))
    except RuntimeError as error:
        if any(words in str(error) for words in MEMORY_WORDS):
            raise OutOfMemory(f"generating with {workload.in_flight} in flight: {error}") from error
        raise
    for one in served:
        _record(one, model, workload, recorder)


def _prepare(model: TensorrtModel, workload: Workload, prompts: Sequence[Prompt]) -> list[_Request]:
    """Tokenise, and refuse what the engine would refuse in the middle, or quietly do otherwise."""
    args = model.llm.args
    if workload.in_flight > args.max_batch_size:
        raise InvalidRequest(
            f"{workload.in_flight} requests in flight, and this engine serves {args.max_batch_size} at a time; "
            "raise max_batch_size"
        )
    encoded = encode_prompts(model.tokenizer, prompts, chat_template=workload.chat_template)
    limits = [workload.output_tokens_wanted(prompt) for prompt in prompts]
    require_servable(encoded, limits, vocab_size=model.vocab_size, context_tokens=model.context_tokens)
    longest = max(map(len, encoded))
    if longest > args.max_num_tokens and not args.enable_chunked_prefill:
        raise InvalidRequest(
            f"a prompt has {longest} tokens, and this engine computes {args.max_num_tokens} in one step; "
            "raise max_num_tokens or set enable_chunked_prefill"
        )
    return [
        _Request(ids, sampling_params(workload, position, limit, model.eos_ids))
        for position, (ids, limit) in enumerate(zip(encoded, limits, strict=True))
    ]


def sampling_params(workload: Workload, position: int, limit: int, eos_ids: Sequence[int]) -> SamplingParams:
    """Return settings that leave nothing to a checkpoint's defaults; each prompt draws with a seed of its own.

    Without both `top_k` and `top_p` TensorRT-LLM is greedy at any temperature, so both are always given.
    """
    sampling = workload.sampling
    is_greedy = sampling.temperature == 0
    return SamplingParams(
        max_tokens=limit,
        temperature=None if is_greedy else sampling.temperature,
        top_k=1 if is_greedy else sampling.top_k or 0,
        top_p=None if is_greedy else 1.0 if sampling.top_p is None else sampling.top_p,
        seed=None if is_greedy else workload.seed + position,
        # One id ends a sequence by itself; others are stop words, whose ids would be cut off unless included.
        end_id=eos_ids[0] if eos_ids else -1,
        stop_token_ids=list(eos_ids[1:]) or None,
        include_stop_str_in_output=True,
        ignore_eos=workload.ignore_eos,
        detokenize=False,
    )


class _Pass:
    """One pass on the engine's loop; all its methods run there."""

    def __init__(self, model: TensorrtModel, workload: Workload, recorder: PassRecorder) -> None:
        self._model = model
        self._workload = workload
        self._recorder = recorder
        self._instant = TurnInstant()
        self._changed = asyncio.Event()
        self._reading: dict[asyncio.Task[None], _TensorrtServed] = {}
        self._served: list[_TensorrtServed] = []
        self._tokens = 0
        self._failure: BaseException | None = None

    async def serve(self, requests: list[_Request]) -> list[_TensorrtServed]:
        """Open the span, serve, drain, close it; leave no request in the engine, whatever happens."""
        await drain(self._model.llm, self._model.workers)
        started_ns = self._recorder.open()
        admission = Admission(self._workload, PromptSupply(self._workload, requests, started_ns), started_ns)
        try:
            while self._admit(admission):
                await self._wait(admission)
                self._check()
        except OSError:
            # Its pipe breaks a moment before a worker counts as ended.
            await asyncio.sleep(WATCH_S)
            require_alive(self._model.workers)
            raise
        finally:
            await self._leave_nothing()
        await drain(self._model.llm, self._model.workers)
        self._recorder.close(drained=True)
        return self._served

    def _admit(self, admission: Admission[_Request]) -> bool:
        """Give the engine what is due; return whether there is more to wait for."""
        due_ns = now_ns()
        for index, request, intended_ns in admission.due(len(self._reading), due_ns):
            # A static batch is submitted as one; an engine takes its requests one after the other.
            submitted_ns = due_ns if self._workload.arrival is Arrival.BATCH else now_ns()
            output = self._model.llm.generate_async(request.ids, request.sampling, streaming=True)
            one = _TensorrtServed(index, len(request.ids), submitted_ns, intended_ns, output=output)
            self._served.append(one)
            task = asyncio.create_task(self._read(one))
            self._reading[task] = one
            task.add_done_callback(self._finished)
        return bool(self._reading) or not admission.exhausted

    async def _read(self, one: _TensorrtServed) -> None:
        """Note each response of one request as it comes."""
        async for output in one.output:
            completion = output.outputs[0]
            if new := len(completion.token_ids_diff):
                one.steps.append((self._instant.now(), new))
                one.ids.extend(completion.token_ids_diff)
                self._tokens += new
            one.finish_reason = completion.finish_reason or one.finish_reason
        one.ended_ns = self._instant.now()
        self._show_progress()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._reading.pop(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
        self._changed.set()

    async def _wait(self, admission: Admission[_Request]) -> None:
        """Return when a request has finished, the next one is due, or it is time to look around."""
        timeout_s = WATCH_S
        if self._workload.arrival is Arrival.POISSON and len(self._reading) < self._workload.in_flight:
            timeout_s = min(WATCH_S, max(0, admission.next_ns - now_ns()) / NS_PER_S)
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            self._show_progress()
        self._changed.clear()

    def _check(self) -> None:
        self._recorder.check_cancelled()
        require_alive(self._model.workers)
        if self._failure:
            raise self._failure

    def _show_progress(self) -> None:
        self._recorder.progress(output_tokens=self._tokens, requests_finished=len(self._served) - len(self._reading))

    async def _leave_nothing(self) -> None:
        """Abort what still runs and wait for its end, unless there is nobody left to end it."""
        if not self._reading:
            return
        if all(map(is_alive, self._model.workers)):
            for one in self._reading.values():
                one.output.abort()
            await asyncio.wait(self._reading, timeout=ABORT_S)
        for task in list(self._reading):
            task.cancel()


def _record(one: _TensorrtServed, model: TensorrtModel, workload: Workload, recorder: PassRecorder) -> None:
    if one.finish_reason == "stop" and model.eos_ids and one.ids[-1:] not in [[end] for end in model.eos_ids]:
        # Some samplers do not hand out the id that ended a sequence; it was generated all the same.
        one.steps.append((one.ended_ns, 1))
        one.ids.append(model.eos_ids[0])
    if one.finish_reason not in REASONS:
        one.finish_reason = "abort"
    one.cached_prompt_tokens = one.output.cached_tokens
    one.record(recorder, workload, model.tokenizer)
