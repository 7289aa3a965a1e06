"""A vLLM engine in this process: start it, step it as the common loop asks."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

# Before vLLM: it sets what vLLM reads when it is imported.
from wattdock_vllm_load import CACHE_ARGUMENTS, LoadPlan, describe, plan_load, refusal, set_limits, stops

# isort: split
from vllm import SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from wattdock_vllm_processes import ChildFaults, close_sockets, fault_of, open_sockets
from wattdock_vllm_steps import StepWatch

from wattdock_runner.clock import now_ns
from wattdock_runner.errors import HANG, WORKER, CacheTooSmall, EngineFailed, OutOfMemory, RunnerFault
from wattdock_runner.serving import Engine
from wattdock_runner.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord, Step
    from wattdock_runner.serving import Answer
    from wattdock_runner.values import LoadedModel, LoadOrder, Report, Workload

T = TypeVar("T")
# Numbers that name requests; a name must be unique among all requests that the engine still knows.
_SERIAL = count()
# The variable that says after how many seconds vLLM gives up on workers that do not answer.
ANSWER_LIMIT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
MORE_ROOM = f"lower batch_size, or raise {CACHE_ARGUMENTS}"


def load_engine(order: LoadOrder, report: Report) -> tuple[VllmEngine, LoadedModel]:
    """Start an engine with the model of `order` on the order's GPUs, or on the CPU without GPUs.

    Raises:
        WrongState: vLLM sees other GPUs than requested, or was built for GPUs and there is none.
        InvalidRequest: vLLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    plan = plan_load(order, report)
    faults = ChildFaults()
    try:
        # LLM_CLASS takes the batch limits of offline use, which has no server to keep responsive.
        llm = LLMEngine.from_engine_args(EngineArgs(**plan.settings), usage_context=UsageContext.LLM_CLASS)
    # vLLM raises a plain Exception for a worker that did not start.
    except Exception as error:
        close_sockets(open_sockets())
        raise refusal(faults.cause() or fault_of(error), plan.settings, error) from error
    engine = VllmEngine(llm, faults, plan)
    engine.drain()
    return engine, describe(engine.facts, order, plan)


def release() -> None:
    """Free what engines that nothing refers to any more held in this process; vLLM collects garbage for it."""
    cleanup_dist_env_and_memory()


class VllmEngine(Engine):
    """A vLLM engine whose core runs in this process.

    Attributes:
        facts: What `wattdock_facts` returned in each worker.
        sockets: Sockets to the engine's processes, referred to here so that the death of a process collects none.
    """

    def __init__(self, llm: LLMEngine, faults: ChildFaults, plan: LoadPlan) -> None:
        self.llm, self.tokenizer, self.facts = llm, plan.tokenizer, llm.collective_rpc("wattdock_facts")
        self._eos_ids = plan.ids.eos
        set_limits(self, self.facts)
        # vLLM generates a token, too.
        self.most_scored = (self.context_tokens or 1 << 62) - 1
        self.sockets = open_sockets()
        core: Any = llm.engine_core
        self._core, self._scheduler = core.engine_core, core.engine_core.scheduler
        self._speculates = llm.vllm_config.speculative_config is not None
        knows_context = self.cache_blocks is not None and not self._speculates
        self._watch = StepWatch(self._core, knows_context=knows_context)
        llm.collective_rpc("wattdock_watch")
        self._faults = faults
        self._sampling: list[SamplingParams] = []
        # Record of each running request, and the request as vLLM's scheduler keeps it, by vLLM's name of the request.
        self._running: dict[str, tuple[RequestRecord, Any]] = {}

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:  # noqa: ARG002
        """Make each prompt's sampling parameters."""
        self._stop = StopStrings(self.tokenizer, workload.stop)
        self._sampling = [
            sampling_params(workload, prompt.position, prompt.max_output_tokens, self._eos_ids) for prompt in prompts
        ]

    def end(self) -> None:
        """Stop vLLM's core, and its workers."""
        self.llm.engine_core.shutdown()
        close_sockets(self.sockets)

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; name a failure by what vLLM's processes report, and end all requests."""
        self._running = {}
        self._watch.open()
        since = self._faults.reported()
        is_dead = False
        try:
            self.llm.collective_rpc("wattdock_open_pass")
            return work()
        except RunnerFault:
            raise
        except Exception as error:
            # Only an executor with worker processes has this attribute.
            lost_worker = getattr(self._core.model_executor, "is_failed", False)
            is_dead = ("EngineDeadError" in fault_of(error).kinds) or bool(lost_worker)
            raise self._named(error, doing, since, is_dead=is_dead) from error
        finally:
            if not is_dead:
                self.llm.abort_request(list(self._running))

    def _named(self, error: Exception, doing: str, since: int, *, is_dead: bool) -> Exception:
        fault, cause = fault_of(error), self._faults.cause(since)
        if lack := next((candidate for candidate in (cause, fault) if candidate and candidate.is_memory), None):
            return OutOfMemory(f"{doing}: {lack.reason}")
        why = f"; first reported: {cause}" if cause else ""
        if is_dead:
            return EngineFailed(f"a process of vLLM's engine died during the pass{why}", WORKER)
        if fault.is_silence:
            limit = f"{limit_s} s" if (limit_s := os.environ.get(ANSWER_LIMIT)) else "vLLM's own limit"
            return EngineFailed(f"vLLM's workers did not answer within {limit} ({ANSWER_LIMIT}){why}", HANG)
        return RuntimeError(f"vLLM failed during the pass: {fault}{why}")

    def drain(self) -> None:
        """Return when every worker's device has done all its work."""
        self.llm.collective_rpc("wattdock_drain")

    def dated(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the steps as the workers dated them, and take the count of drafts."""
        self.drafts = self._watch.drafts if self._speculates else None
        return self._watch.dated(steps, self.llm.collective_rpc("wattdock_dates"))

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Send the engine a request, in the form that a prompt has after vLLM's rendering."""
        name = str(next(_SERIAL))
        rendered = {"type": "token", "prompt_token_ids": prompt.ids}
        self.llm.add_request(name, rendered, self._sampling[prompt.position])
        # The scheduler keeps the request under a longer name; the latest request is this one.
        self._running[name] = request, next(reversed(self._scheduler.requests.values()))

    def step(self, until_ns: int | None) -> list[Answer]:  # noqa: ARG002
        """Run an engine step.

        Raises:
            OutOfMemory: The KV cache cannot hold the requests in flight. vLLM would let a request wait, or stop and
                compute it again: a figure of another workload.
        """
        outputs, at_ns = self.llm.step(), now_ns()
        self.steps.extend(self._watch.after_step(at_ns))
        answers: list[Answer] = []
        for output in outputs:
            request, inside = self._running[output.request_id]
            completion = output.outputs[0]
            if completion.token_ids:
                request.cached_prompt_tokens = output.num_cached_tokens
            reason = None
            # vLLM itself has no tokenizer here, and would turn every token of a measured pass into text.
            is_over = self._stop.end(request.output_ids, completion.token_ids)
            if is_over and not output.finished:
                self.llm.abort_request([output.request_id])
            if is_over or output.finished:
                reason = "stop" if is_over else completion.finish_reason or "abort"
                del self._running[output.request_id]
                if inside.num_preemptions:
                    raise CacheTooSmall(
                        f"the KV cache could not hold what was in flight: vLLM stopped request {request.index} "
                        f"{inside.num_preemptions} time(s) and computed it again; {MORE_ROOM}"
                    )
            answers.append((request, at_ns, completion.token_ids, reason))
        if self._scheduler.waiting:
            self._require_room()
        return answers

    def score(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Have vLLM compute rows as prompts, and tell the likelihood of each id in them.

        Source: `_parse_logprobs` in lm_eval/models/vllm_causallms.py of lm-evaluation-harness 0.4.13.
        """
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
        names = [str(next(_SERIAL)) for _ in rows]

        def scores() -> list[tuple[float, bool]]:
            told: dict[str, list[Any]] = {}
            for name, (ids, _) in zip(names, rows, strict=True):
                self.llm.add_request(name, {"type": "token", "prompt_token_ids": ids}, asked)
            while self.llm.has_unfinished_requests():
                told |= {out.request_id: out.prompt_logprobs for out in self.llm.step() if out.prompt_logprobs}
            return [
                _sum_of(told[name][-tokens:], ids[-tokens:]) for name, (ids, tokens) in zip(names, rows, strict=True)
            ]

        return self.guarded(f"computing the likelihoods of {len(rows)} texts", scores)

    def _require_room(self) -> None:
        """Refuse to go on where the next request waits for the KV cache: fewer would run than the result says.

        A request that waits for its prefill finds its blocks free; a request that vLLM stopped fails at its end.
        """
        request, cache = self._scheduler.waiting.peek_request(), self._scheduler.kv_cache_manager
        # A prompt takes fewer blocks where a prefix cache has some of it, or layers see a part: then one block will do.
        is_plain = self.cache_blocks is not None and not cache.enable_caching
        prompt_blocks = -(-request.num_tokens // self.block_tokens) if is_plain else 1
        needed = prompt_blocks + (cache.watermark_blocks if self._scheduler.running else 0)
        if needed > cache.block_pool.get_num_free_blocks() and not request.num_preemptions:
            raise CacheTooSmall(
                f"the KV cache could not hold what was in flight: {len(self._scheduler.running)} of "
                f"{len(self._running)} requests ran, and the next one waited for {needed} blocks; {MORE_ROOM}"
            )


def _sum_of(chances: Sequence[Mapping[int, Any]], ids: Sequence[int]) -> tuple[float, bool]:
    """Return the log-likelihood of ids, and whether each is the likeliest, of which vLLM tells both at its place."""
    places = zip(chances, ids, strict=True)
    told = [(at[token].logprob, max(chance.logprob for chance in at.values())) for at, token in places]
    return sum(own for own, _ in told), all(own == most for own, most in told)


def sampling_params(workload: Workload, position: int, limit: int, eos_ids: Sequence[int]) -> SamplingParams:
    """Return settings that leave nothing to a checkpoint's defaults; each prompt has its seed."""
    sampling = workload.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=workload.seed + position if sampling.temperature > 0 else None,
        max_tokens=limit,
        **stops(workload, eos_ids),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
