"""Drive the engine step by step through one pass, and record it.

Everything that is not inference happens before the span opens or after it closes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from wattdock_vllm_faults import fault_of
from wattdock_vllm_load import VllmModel, drain

from wattdock_runner.admission import Admission
from wattdock_runner.backend import Arrival
from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory, RunnerFault
from wattdock_runner.served import Served
from wattdock_runner.supply import PromptSupply
from wattdock_runner.text import encode_prompts, require_servable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.backend import Prompt, Workload
    from wattdock_runner.recorder import PassRecorder

# Ids must be unique among all requests that the engine still knows.
_SERIAL = count()
# vLLM gives up on workers that answer nothing for so many seconds.
ANSWER_LIMIT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
MORE_ROOM = "lower batch_size, or raise kv_cache_memory_bytes or gpu_memory_utilization"


@dataclass(frozen=True)
class _Request:
    """One prompt ready to run."""

    ids: list[int]
    sampling: SamplingParams


@dataclass
class _VllmServed(Served):
    """One request that entered the engine; `inside` is the same request as vLLM's scheduler keeps it."""

    inside: Any = None


def run_pass(model: VllmModel, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Serve requests as they arrive until the minima are met; record every request and step.

    Raises:
        InvalidRequest: A prompt cannot be run by this model, or the engine serves fewer requests at a time.
        OutOfMemory: The KV cache cannot hold what is to be in flight, or a step does not fit.
        PassCancelled: The client went away.
    """
    requests = _prepare(model, workload, prompts)
    served = _serve(model, workload, requests, recorder)
    for one in served:
        one.record(recorder, workload, model.tokenizer)


def _prepare(model: VllmModel, workload: Workload, prompts: Sequence[Prompt]) -> list[_Request]:
    """Tokenise, and refuse what the engine would refuse in the middle, or quietly do otherwise."""
    if workload.in_flight > model.max_num_seqs:
        raise InvalidRequest(
            f"{workload.in_flight} requests in flight, and this engine serves {model.max_num_seqs} at a time; "
            "raise max_num_seqs"
        )
    encoded = encode_prompts(model.tokenizer, prompts, chat_template=workload.chat_template)
    limits = [workload.output_tokens_wanted(prompt) for prompt in prompts]
    require_servable(encoded, limits, vocab_size=model.vocab_size, context_tokens=model.context_tokens)
    # Whoever may end early may be short; the first token is certain.
    least = limits if workload.ignore_eos else [1] * len(limits)
    _require_cache(model, workload, [len(ids) + new for ids, new in zip(encoded, least, strict=True)])
    return [
        _Request(ids, sampling_params(workload, position, limit))
        for position, (ids, limit) in enumerate(zip(encoded, limits, strict=True))
    ]


def most_blocks(lengths: Sequence[int], in_flight: int, block_tokens: int) -> int:
    """Return the most KV cache blocks that `in_flight` requests in a row take at full length; the row is a ring."""
    blocks = [-(-length // block_tokens) for length in lengths]
    ring = blocks * (1 + -(-in_flight // len(blocks)))
    return max(sum(ring[first : first + in_flight]) for first in range(len(blocks)))


def _require_cache(model: VllmModel, workload: Workload, lengths: Sequence[int]) -> None:
    """Refuse requests that cannot be in flight together: vLLM would let some wait, or compute them twice.

    Args:
        lengths: Tokens that each request is certain to have.

    Raises:
        OutOfMemory: Holds what is needed and what there is.
    """
    if model.cache_blocks is None or workload.arrival not in (Arrival.BATCH, Arrival.CLOSED):
        return
    # Without a minimum, each prompt is run once.
    most = None if workload.min_duration_s else workload.min_requests or len(lengths)
    in_flight = workload.in_flight if most is None else min(workload.in_flight, most)
    needed = most_blocks(lengths, in_flight, model.block_tokens)
    if needed > model.cache_blocks:
        raise OutOfMemory(
            f"{in_flight} requests in flight need {needed} blocks of KV cache "
            f"{'at their full length' if workload.ignore_eos else 'for their first tokens alone'}, and there are "
            f"{model.cache_blocks}; {MORE_ROOM}"
        )


def sampling_params(workload: Workload, position: int, limit: int) -> SamplingParams:
    """Return settings that leave nothing to a checkpoint's defaults; each prompt draws with a seed of its own."""
    sampling = workload.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=workload.seed + position if sampling.temperature > 0 else None,
        max_tokens=limit,
        ignore_eos=workload.ignore_eos,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _serve(model: VllmModel, workload: Workload, requests: list[_Request], recorder: PassRecorder) -> list[_VllmServed]:
    """Open the span, serve, drain, close it; leave no request in the engine, whatever happens."""
    running: dict[str, _VllmServed] = {}
    # What was reported before, the engine has survived.
    since = model.faults.reported()
    try:
        drain(model.engine)
        served = _loop(model, workload, requests, recorder, running)
        drain(model.engine)
    except RunnerFault:
        raise
    # vLLM's failures have no class in common: its assertions, MemoryError and EngineDeadError are no RuntimeError.
    except Exception as error:
        own, cause = fault_of(error), model.faults.cause(since)
        died = has_died(model.engine) or own.is_death
        if died:
            running.clear()
        if lack := next((fault for fault in (cause, own) if fault and fault.is_memory), None):
            what = lack.message or lack.kinds[0]
            raise OutOfMemory(f"generating with {workload.in_flight} in flight: {what}") from error
        why = f"; first reported: {cause}" if cause else ""
        if died:
            raise RuntimeError(f"a process of vLLM's engine died during the pass{why}") from error
        if own.is_silence:
            limit = f"{given} s" if (given := os.environ.get(ANSWER_LIMIT)) else "vLLM's own limit"
            raise RuntimeError(f"vLLM's workers did not answer within {limit} ({ANSWER_LIMIT}){why}") from error
        if cause:
            raise RuntimeError(f"vLLM failed during the pass: {own}{why}") from error
        raise
    finally:
        model.engine.abort_request(list(running))
    recorder.close(drained=True)
    return served


def has_died(engine: Any) -> bool:
    """Return whether an engine cannot go on because one of its workers' processes has ended."""
    # Only the executor that has such processes knows.
    return bool(getattr(engine.engine_core.engine_core.model_executor, "is_failed", False))


def _loop(
    model: VllmModel,
    workload: Workload,
    requests: list[_Request],
    recorder: PassRecorder,
    running: dict[str, _VllmServed],
) -> list[_VllmServed]:
    """Admit and step until no request is left; `running` holds those inside the engine at any time."""
    engine, scheduler = model.engine, model.engine.engine_core.engine_core.scheduler
    started_ns = recorder.open()
    admission = Admission(workload, PromptSupply(workload, requests, started_ns), started_ns)
    served: list[_VllmServed] = []
    tokens = 0
    while True:
        recorder.check_cancelled()
        due_ns = now_ns()
        for index, request, intended_ns in admission.due(len(running), due_ns):
            # A static batch is submitted as one; an engine takes its requests one after the other.
            at_ns = due_ns if workload.arrival is Arrival.BATCH else now_ns()
            served.append(_submit(engine, running, request, _VllmServed(index, len(request.ids), at_ns, intended_ns)))
        if running:
            tokens += _take(engine.step(), now_ns(), running)
            if scheduler.waiting:
                _require_room(model, scheduler, len(running))
            recorder.progress(output_tokens=tokens, requests_finished=len(served) - len(running))
        elif admission.exhausted:
            return served
        else:
            recorder.cancelled.wait(max(0, admission.wake_ns - now_ns()) / NS_PER_S)


def _require_room(model: VllmModel, scheduler: Any, in_flight: int) -> None:
    """Refuse to go on where the next request waits for the KV cache: fewer would run than the result says.

    One that waits for its turn to be prefilled finds its blocks free; one that was stopped is told of at its end.

    Raises:
        OutOfMemory: Holds how many run.
    """
    request, cache = scheduler.waiting.peek_request(), scheduler.kv_cache_manager
    # A prompt takes fewer where a prefix cache holds some of it, or layers see a part: there, only none is too few.
    is_plain = model.cache_blocks is not None and not cache.enable_caching
    own = -(-request.num_tokens // model.block_tokens) if is_plain else 1
    needed = own + (cache.watermark_blocks if scheduler.running else 0)
    if needed > cache.block_pool.get_num_free_blocks() and not request.num_preemptions:
        raise OutOfMemory(
            f"the KV cache could not hold what was in flight: {len(scheduler.running)} of {in_flight} requests ran, "
            f"and the next one waited for {needed} blocks; {MORE_ROOM}"
        )


def _submit(engine: Any, running: dict[str, _VllmServed], request: _Request, one: _VllmServed) -> _VllmServed:
    name = str(next(_SERIAL))
    running[name] = one
    # The form that a prompt has after vLLM's own rendering, which is thus left out.
    engine.add_request(name, {"type": "token", "prompt_token_ids": request.ids}, request.sampling)
    # Under a name that vLLM has lengthened; the latest is this one.
    one.inside = next(reversed(engine.engine_core.engine_core.scheduler.requests.values()))
    return one


def _take(outputs: Sequence[Any], at_ns: int, running: dict[str, _VllmServed]) -> int:
    """Note what one engine step gave, and return how many tokens that was.

    Raises:
        OutOfMemory: vLLM had stopped a request for lack of room and computed it again: another workload's figure.
    """
    total = 0
    for output in outputs:
        one = running[output.request_id]
        completion = output.outputs[0]
        if new := len(completion.token_ids):
            one.steps.append((at_ns, new))
            one.ids.extend(completion.token_ids)
            one.cached_prompt_tokens = output.num_cached_tokens
            total += new
        if output.finished:
            if times := one.inside.num_preemptions:
                raise OutOfMemory(
                    f"the KV cache could not hold what was in flight: vLLM stopped request {one.index} {times} time(s) "
                    f"and computed it again; {MORE_ROOM}"
                )
            one.finish_reason = completion.finish_reason or one.finish_reason
            del running[output.request_id]
    return total
