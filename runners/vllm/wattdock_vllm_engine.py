"""A vLLM engine: start it, read back what it runs with, step it as the common loop asks."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

# vLLM reads these when it is imported. The engine core runs in this process, so that a step is a function call, and
# because vLLM waits for ever for a core process that was killed. Workers of a split model are processes, and spawned,
# because this process has threads. No usage reports while measuring.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
# The path of a socket has at most 107 characters, which a deep temporary folder exceeds. The working folder is short as
# ".", is the workers' too, and is removed after a runner that was killed.
if os.access(".", os.W_OK):
    os.environ.setdefault("VLLM_RPC_BASE_PATH", ".")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from vllm import SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from wattdock_vllm import SERVE, VllmBackend, attention_backend, defaults_for
from wattdock_vllm_processes import ChildFaults, close_sockets, fault_of, open_sockets
from wattdock_vllm_steps import StepWatch
from wattdock_vllm_worker import EXTENSION

from wattdock_runner import checkpoint
from wattdock_runner.backend import Gpu, LoadedModel
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import (
    HANG,
    WORKER,
    CacheTooSmall,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
    RunnerFault,
    WrongState,
)
from wattdock_runner.gpus import cuda_versions, nvml_uuid, parallelism, require_gpus
from wattdock_runner.linear import unpacked_warnings
from wattdock_runner.process import package_version
from wattdock_runner.serving import Engine
from wattdock_runner.stop_strings import StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_vllm_processes import Fault

    from wattdock_runner.backend import LoadOrder, Report, Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord, Step
    from wattdock_runner.serving import Answer

T = TypeVar("T")
# Numbers that name requests; a name must be unique among all requests that the engine still knows.
_SERIAL = count()
# The variable that says after how many seconds vLLM gives up on workers that do not answer.
ANSWER_LIMIT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
CACHE_ARGUMENTS = "kv_cache_memory_bytes or gpu_memory_utilization"
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


class LoadPlan(NamedTuple):
    """What a load begins with; `parameters` is None where transformers has no class, `tokenizer` where it has none."""

    gpus: tuple[Gpu, ...]
    settings: dict[str, Any]
    parameters: int | None
    tokenizer: Any
    ids: checkpoint.SpecialIds


def plan_load(order: LoadOrder, report: Report) -> LoadPlan:
    """Return the GPUs there are, and all arguments of the engine.

    Raises:
        WrongState, InvalidRequest: As `load_engine`.
    """
    gpus = visible_gpus()
    require_gpus(order.gpu_uuids, gpus, "vLLM")
    if not gpus and not current_platform.is_cpu():
        raise WrongState("this build of vLLM needs a GPU; for a CPU, install the backend's requirements-cpu.txt")
    config = checkpoint.read_config(AutoConfig, order)
    # With `quantization`, vLLM reads both itself. Source: `get_quant_config` of vLLM 0.32.
    unread = () if order.engine_args.get("quantization") else checkpoint.LEGACY_CONFIGS
    checkpoint.require_known_quantisation(order, config, unread)
    settings = engine_settings(order, config, on_gpu=bool(gpus))
    report("drawing random weights" if order.random_weights else "reading weights")
    tokenizer = checkpoint.read_tokenizer(AutoTokenizer, order)
    ids = checkpoint.special_ids(order, config, tokenizer)
    return LoadPlan(gpus, settings, parameter_count(config, order), tokenizer, ids)


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that vLLM sees, in its order, without opening a context on any."""
    if not current_platform.is_cuda():
        return ()
    platform: Any = current_platform
    return tuple(
        Gpu(
            nvml_uuid(platform.get_device_uuid(index)),
            platform.get_device_name(index),
            platform.get_device_total_memory(index),
        )
        for index in range(torch.cuda.device_count())
    )


def engine_settings(order: LoadOrder, config: Any, *, on_gpu: bool) -> dict[str, Any]:
    """Return all arguments of vLLM's EngineArgs."""
    engine_args = dict(order.engine_args)
    engine_args.pop(SERVE, None)
    kv_cache_is_set = "VLLM_CPU_KVCACHE_SPACE" in os.environ
    settings = defaults_for(engine_args, on_gpu=on_gpu, kv_cache_is_set=kv_cache_is_set) | engine_args
    if weights := order.random_weights:
        settings["load_format"] = "dummy"
        settings["model_loader_extra_config"] = {"low": weights.low, "high": weights.high, "seed": weights.seed}
    return settings | {
        "model": str(order.model_path),
        # vLLM would narrow a checkpoint's float32 to 16 bits.
        "dtype": checkpoint.dtype_of(order, config, on_gpu=on_gpu) or "auto",
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
        "worker_extension_cls": EXTENSION,
    }


def parameter_count(config: Any, order: LoadOrder) -> int | None:
    """Return the number of parameters, tied parameters counted once; None where transformers has no such class.

    Counted without vLLM's workers, which pack, split and repeat parameters.
    """
    try:
        empty = checkpoint.meta_model(torch, AutoModelForCausalLM, config, trust_remote_code=order.trust_remote_code)
    except (ValueError, ImportError):
        return None
    return checkpoint.parameter_count(empty)


def refusal(fault: Fault, settings: Mapping[str, Any], error: Exception) -> Exception:
    """Return what to raise for an engine that did not start."""
    if fault.is_memory:
        return OutOfMemory(f"vLLM: {fault.reason}")
    if fault.is_refusal:
        version = package_version(VllmBackend.framework_package)
        return InvalidRequest(f"vllm {version} cannot load {settings['model']}: {fault.message}")
    if str(error) == fault.message:
        return error
    return EngineFailed(f"a process of vLLM's engine did not start: {fault}", WORKER)


def describe(by_worker: Sequence[Mapping[str, Any]], order: LoadOrder, plan: LoadPlan) -> LoadedModel:
    """Return what an engine runs with.

    Args:
        by_worker: What `wattdock_facts` returned in each worker.
    """
    engine = by_worker[0]["engine"]
    tensor, pipeline = engine["split"]
    layers_by_gpu = {nvml_uuid(worker["uuid"]): worker["layers"] for worker in by_worker if worker["uuid"] is not None}
    linear = by_worker[0]["linear"]
    drafting: Any = order.engine_args.get("speculative_config")
    effective = engine["settings"] | {
        **linear,
        # The draft model's place on this machine says nothing: the result has its name and its files' digests.
        "speculative_config": drafting and {name: value for name, value in drafting.items() if name != "model"},
        SERVE: bool(order.engine_args.get(SERVE)),
        # Each worker chooses for each layer; the configuration only has what was requested.
        "attention_backend": attention_backend(worker["attention"] for worker in by_worker),
        "eos_token_ids": list(plan.ids.eos),
    }
    if order.random_weights:
        drew_whole = {worker["drew_whole"] for worker in by_worker}
        # Only of whole tensors has every split the same model.
        drawn = "mixed" if len(drew_whole) > 1 else "whole" if drew_whole == {True} else "per shard"
        effective["random_weights_drawn"] = drawn
    weight_bytes = None if plan.parameters is None else plan.parameters * engine["value_bytes"]
    if engine["is_quantised"]:
        weight_bytes = sum(worker["weight_bytes"] for worker in by_worker)
    return LoadedModel(
        visible_gpus=plan.gpus,
        used_gpu_uuids=tuple(gpu.uuid for gpu in plan.gpus if gpu.uuid in layers_by_gpu),
        effective_engine_args=effective,
        parallelism=parallelism(tensor, pipeline, layers_by_gpu),
        parameter_count=plan.parameters,
        weight_bytes=weight_bytes,
        warnings=(*plan.ids.warnings, *unpacked_warnings(order, linear, "vLLM")),
        **cuda_versions(torch, plan.gpus),
    )


def release() -> None:
    """Free what engines that nothing refers to any more held in this process; vLLM collects garbage for it."""
    cleanup_dist_env_and_memory()


def set_limits(engine: Engine, by_worker: Sequence[Mapping[str, Any]]) -> None:
    """Give an engine the limits that vLLM tells, in its process or behind its server.

    Args:
        by_worker: As `describe`.
    """
    limits = by_worker[0]["engine"]
    engine.vocab_size, engine.context_tokens = limits["vocab_size"], limits["context_tokens"]
    engine.max_in_flight, engine.in_flight_argument = limits["max_in_flight"], "max_num_seqs"
    engine.cache_blocks, engine.block_tokens = limits["cache_blocks"], limits["block_tokens"]
    engine.cache_arguments = CACHE_ARGUMENTS


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


def stops(workload: Workload, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Return the settings under which a request ends at these ids alone, whatever vLLM reads from the folder."""
    return {"ignore_eos": True, "stop_token_ids": [] if workload.ignore_eos else list(eos_ids)}


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
