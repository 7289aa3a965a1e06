"""One running vLLM engine, as the common loop drives it: step by step."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from wattdock_vllm_processes import fault_of, open_sockets

from wattdock_runner.backend import Arrival
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import OutOfMemory, RunnerFault
from wattdock_runner.serving import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm.v1.engine.llm_engine import LLMEngine
    from wattdock_vllm_processes import ChildFaults

    from wattdock_runner.backend import Workload
    from wattdock_runner.prompts import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer

T = TypeVar("T")

# Ids must be unique among all requests that the engine still knows.
_SERIAL = count()
# vLLM gives up on workers that answer nothing for so many seconds.
ANSWER_LIMIT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
MORE_ROOM = "lower batch_size, or raise kv_cache_memory_bytes or gpu_memory_utilization"


class VllmEngine(Engine):
    """A vLLM engine whose core runs in this process.

    Attributes:
        cache_blocks: Blocks of the KV cache; None where they are not all of one kind.
        sockets: To the engine's own processes, held so that the death of one does not have the others collected.
    """

    in_flight_argument = "max_num_seqs"

    def __init__(self, llm: LLMEngine, faults: ChildFaults, tokenizer: Any) -> None:
        config = llm.vllm_config
        self.llm, self.tokenizer = llm, tokenizer
        self.vocab_size = config.model_config.get_vocab_size()
        self.context_tokens = config.model_config.max_model_len
        self.max_in_flight = config.scheduler_config.max_num_seqs
        self.sockets = open_sockets()
        core: Any = llm.engine_core
        self._core, self._scheduler = core.engine_core, core.engine_core.scheduler
        self.cache_blocks = _cache_blocks(self._scheduler.kv_cache_config)
        self._block_tokens: int = config.cache_config.block_size
        self._faults = faults
        self._sampling: list[SamplingParams] = []
        # By vLLM's name for it: a request, and the same as vLLM's scheduler keeps it.
        self._running: dict[str, tuple[RequestRecord, Any]] = {}

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:  # noqa: ARG002
        """Refuse requests that cannot be in flight together: vLLM would let some wait, or compute them twice.

        Raises:
            OutOfMemory: Holds what is needed and what there is.
        """
        self._sampling = [sampling_params(workload, prompt.position, prompt.max_output_tokens) for prompt in prompts]
        if self.cache_blocks is None or workload.arrival not in (Arrival.BATCH, Arrival.CLOSED):
            return
        # A request that may end early may be short; its first token is certain.
        lengths = [len(prompt.ids) + (prompt.max_output_tokens if workload.ignore_eos else 1) for prompt in prompts]
        # Without a minimum, each prompt is run once.
        most = None if workload.min_duration_s else workload.min_requests or len(lengths)
        in_flight = workload.in_flight if most is None else min(workload.in_flight, most)
        needed = most_blocks(lengths, in_flight, self._block_tokens)
        if needed > self.cache_blocks:
            raise OutOfMemory(
                f"{in_flight} requests in flight need {needed} blocks of KV cache "
                f"{'at their full length' if workload.ignore_eos else 'for their first tokens alone'}, and there are "
                f"{self.cache_blocks}; {MORE_ROOM}"
            )

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; a failure is named by what vLLM's processes report, and no request is left behind."""
        self._running = {}
        since = self._faults.reported()
        is_dead = False
        try:
            return work()
        except RunnerFault:
            raise
        except Exception as error:
            is_dead = fault_of(error).is_death or has_died(self._core)
            raise self._named(error, doing, since, is_dead=is_dead) from error
        finally:
            if not is_dead:
                self.llm.abort_request(list(self._running))

    def _named(self, error: Exception, doing: str, since: int, *, is_dead: bool) -> Exception:
        own, cause = fault_of(error), self._faults.cause(since)
        if lack := next((fault for fault in (cause, own) if fault and fault.is_memory), None):
            return OutOfMemory(f"{doing}: {lack.message or lack.kinds[0]}")
        why = f"; first reported: {cause}" if cause else ""
        if is_dead:
            return RuntimeError(f"a process of vLLM's engine died during the pass{why}")
        if own.is_silence:
            limit = f"{given} s" if (given := os.environ.get(ANSWER_LIMIT)) else "vLLM's own limit"
            return RuntimeError(f"vLLM's workers did not answer within {limit} ({ANSWER_LIMIT}){why}")
        return RuntimeError(f"vLLM failed during the pass: {own}{why}")

    def drain(self) -> None:
        """Return when every worker's device has done all its work."""
        self.llm.collective_rpc("wattdock_drain")

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Give the engine one request, in the form that a prompt has after vLLM's own rendering."""
        name = str(next(_SERIAL))
        given = {"type": "token", "prompt_token_ids": prompt.ids}
        self.llm.add_request(name, given, self._sampling[prompt.position])
        # Under a name that vLLM has lengthened; the latest is this one.
        self._running[name] = request, next(reversed(self._scheduler.requests.values()))

    def step(self, until_ns: int | None) -> list[Answer]:  # noqa: ARG002
        """Run one engine step.

        Raises:
            OutOfMemory: The KV cache cannot hold what is in flight. vLLM would let a request wait, or stop it and
                compute it again: another workload's figure.
        """
        outputs, at_ns = self.llm.step(), now_ns()
        answers: list[Answer] = []
        for output in outputs:
            request, inside = self._running[output.request_id]
            completion = output.outputs[0]
            if completion.token_ids:
                request.cached_prompt_tokens = output.num_cached_tokens
            reason = None
            if output.finished:
                reason = completion.finish_reason or "abort"
                del self._running[output.request_id]
                if inside.num_preemptions:
                    raise OutOfMemory(
                        f"the KV cache could not hold what was in flight: vLLM stopped request {request.index} "
                        f"{inside.num_preemptions} time(s) and computed it again; {MORE_ROOM}"
                    )
            answers.append((request, at_ns, completion.token_ids, reason))
        if self._scheduler.waiting:
            self._require_room()
        return answers

    def _require_room(self) -> None:
        """Refuse to go on where the next request waits for the KV cache: fewer would run than the result says.

        One that waits for its turn to be prefilled finds its blocks free; one that was stopped fails at its end.
        """
        request, cache = self._scheduler.waiting.peek_request(), self._scheduler.kv_cache_manager
        # A prompt takes fewer where a prefix cache holds some of it, or layers see a part: there, only none is too few.
        is_plain = self.cache_blocks is not None and not cache.enable_caching
        own = -(-request.num_tokens // self._block_tokens) if is_plain else 1
        needed = own + (cache.watermark_blocks if self._scheduler.running else 0)
        if needed > cache.block_pool.get_num_free_blocks() and not request.num_preemptions:
            raise OutOfMemory(
                f"the KV cache could not hold what was in flight: {len(self._scheduler.running)} of "
                f"{len(self._running)} requests ran, and the next one waited for {needed} blocks; {MORE_ROOM}"
            )


def has_died(core: Any) -> bool:
    """Return whether an engine cannot go on because one of its workers' processes has ended."""
    # Only the executor that has such processes knows.
    return bool(getattr(core.model_executor, "is_failed", False))


def _cache_blocks(cache: Any) -> int | None:
    """Return the size of the KV cache in blocks, where every layer keeps every token."""
    groups = cache.kv_cache_groups
    plain = len(groups) == 1 and type(groups[0].kv_cache_spec).__name__ == "FullAttentionSpec"
    # One block is vLLM's own placeholder.
    return int(cache.num_blocks) - 1 if plain else None


def most_blocks(lengths: Sequence[int], in_flight: int, block_tokens: int) -> int:
    """Return the most KV cache blocks that `in_flight` requests in a row take at full length; the row is a ring."""
    blocks = [-(-length // block_tokens) for length in lengths]
    ring = blocks * (1 + -(-in_flight // len(blocks)))
    return max(sum(ring[first : first + in_flight]) for first in range(len(blocks)))


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
