"""Start one vLLM engine and say what it really runs with."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

# Read by vLLM when it is imported. The engine core runs in this process, so that a step is a function call, and because
# vLLM goes on waiting for a core process that was killed. Workers of a split model are processes of their own, spawned,
# since this process has threads. No usage reports while measuring.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
# A socket's path ends at 107 characters, which a deep temporary folder exceeds. The working folder is shared with the
# workers, is a name of one character, and goes away with a runner that was killed.
if os.access(".", os.W_OK):
    os.environ.setdefault("VLLM_RPC_BASE_PATH", ".")

import torch
from transformers import AutoConfig, AutoTokenizer
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from wattdock_vllm import attention_backend, defaults_for, effective_engine_args, engine_arguments
from wattdock_vllm_engine import VllmEngine
from wattdock_vllm_processes import ChildFaults, close_sockets, fault_of, open_sockets
from wattdock_vllm_worker import EXTENSION, checkpoint_shapes

from wattdock_runner.backend import Gpu, LoadedModel
from wattdock_runner.checkpoint import eos_token_ids, ignored_settings_warnings, read_from_folder, read_tokenizer
from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory, WrongState
from wattdock_runner.gpus import cuda_versions, nvml_uuid, parallelism, require_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock_runner.backend import LoadOrder


def load_engine(
    order: LoadOrder, report: Callable[[str, float | None], None], start_ns: int
) -> tuple[VllmEngine, LoadedModel]:
    """Start an engine as `order` says, on the GPUs it names or on the CPU when it names none.

    Args:
        start_ns: When loading began, before this module was imported.

    Raises:
        WrongState: vLLM sees other GPUs than asked for, or is to run on a CPU and was built for GPUs.
        InvalidRequest: vLLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    gpus = visible_gpus()
    require_gpus(order.gpu_uuids, gpus, "vLLM")
    if not gpus and not current_platform.is_cpu():
        raise WrongState("this build of vLLM needs a GPU; for a CPU, install the backend's requirements-cpu.txt")
    try:
        config = read_from_folder(AutoConfig, order)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"transformers cannot read the config of {order.model_path}: {error}") from error
    settings = engine_settings(order, config, on_gpu=bool(gpus))
    parameters = parameter_count(config, order)
    report("drawing random weights" if order.random_weights else "reading weights", None)
    engine = _start(settings, order, report)
    span = Span("load", start_ns, now_ns(), drained=True)
    return engine, _describe(engine.llm, order, gpus, parameters, span)


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
    """Return everything that vLLM's EngineArgs gets.

    Raises:
        InvalidRequest: `load_format` contradicts the kind of weights.
    """
    given = dict(order.engine_args)
    is_dummy = given.get("load_format") == "dummy"
    if is_dummy and order.random_weights is None:
        raise InvalidRequest("load_format 'dummy' would pass for the model's own weights; use model: shape:NAME")
    settings = defaults_for(given, on_gpu=on_gpu, kv_cache_is_set="VLLM_CPU_KVCACHE_SPACE" in os.environ) | given
    if weights := order.random_weights:
        if not is_dummy and "load_format" in given:
            raise InvalidRequest(f"random weights are not read: load_format {given['load_format']!r} cannot be served")
        settings["load_format"] = "dummy"
        settings["model_loader_extra_config"] = {"low": weights.low, "high": weights.high, "seed": weights.seed}
    return settings | {
        "model": str(order.model_path),
        "dtype": _dtype(order, config, on_gpu=on_gpu),
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
        "worker_extension_cls": EXTENSION,
    }


def _dtype(order: LoadOrder, config: Any, *, on_gpu: bool) -> str:
    """Return the checkpoint's own dtype for "auto", where vLLM would narrow float32 to 16 bits."""
    if order.dtype != "auto":
        return order.dtype
    if not on_gpu:
        return "float32"
    own = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    return "auto" if own is None else str(own).removeprefix("torch.")


def parameter_count(config: Any, order: LoadOrder) -> int | None:
    """Return how many parameters the model has, each tied one counted once; None where transformers has no such class.

    Counted without vLLM's workers, which pack, split and repeat parameters.
    """
    try:
        shapes = checkpoint_shapes(config, trust_remote_code=order.trust_remote_code)
    except (ValueError, ImportError):
        return None
    return sum(int(shape.numel()) for shape in shapes.values())


def _start(settings: dict[str, Any], order: LoadOrder, report: Callable[[str, float | None], None]) -> VllmEngine:
    faults = ChildFaults()
    try:
        # LLM_CLASS takes the batch limits of offline use, which has no server to keep responsive.
        llm = LLMEngine.from_engine_args(EngineArgs(**settings), usage_context=UsageContext.LLM_CLASS)
    # vLLM raises a plain Exception where a worker did not start.
    except Exception as error:
        fault = faults.cause() or fault_of(error)
        if fault.is_memory:
            raise OutOfMemory(f"vLLM: {fault.message or fault.kinds[0]}") from error
        if fault.is_refusal:
            raise InvalidRequest(f"vLLM cannot load {settings['model']}: {fault.message}") from error
        if str(error) != fault.message:
            raise RuntimeError(f"a process of vLLM's engine did not start: {fault}") from error
        raise
    report("reading the tokenizer", None)
    engine = VllmEngine(llm, faults, read_tokenizer(AutoTokenizer, order))
    engine.drain()
    return engine


def _describe(
    llm: LLMEngine, order: LoadOrder, gpus: tuple[Gpu, ...], parameters: int | None, span: Span
) -> LoadedModel:
    config = llm.vllm_config
    places = llm.collective_rpc("wattdock_place")
    layers_by_gpu = {nvml_uuid(uuid): layers for uuid, layers in places if uuid is not None}
    generation = config.model_config.try_get_generation_config()
    effective = effective_engine_args(config, engine_arguments() or ()) | {
        # Chosen in each worker, layer by layer; the configuration holds what was asked.
        "attention_backend": attention_backend(llm.collective_rpc("wattdock_attention")),
        "eos_token_ids": list(eos_token_ids(generation.get("eos_token_id"))),
    }
    if order.random_weights:
        effective["random_weights_drawn"] = drawn(llm)
    is_quantised = config.model_config.quantization is not None
    split = config.parallel_config
    return LoadedModel(
        visible_gpus=gpus,
        used_gpu_uuids=tuple(gpu.uuid for gpu in gpus if gpu.uuid in layers_by_gpu),
        effective_engine_args=effective,
        parallelism=parallelism(split.tensor_parallel_size, split.pipeline_parallel_size, layers_by_gpu),
        parameter_count=parameters,
        weight_bytes=None if parameters is None or is_quantised else parameters * config.model_config.dtype.itemsize,
        versions=cuda_versions(torch, gpus),
        warnings=ignored_settings_warnings(generation),
        spans=(span,),
    )


def drawn(llm: LLMEngine) -> str:
    """Return how random weights were drawn: whole, so that every split has one model, or by each worker its shards."""
    whole = set(llm.collective_rpc("wattdock_drew_whole"))
    return "mixed" if len(whole) > 1 else "whole" if whole == {True} else "per shard"


def end_engine(llm: LLMEngine | None) -> None:
    """Stop the engine and its processes; None where one may have begun to load and did not start."""
    sockets = open_sockets()
    if llm is not None:
        llm.engine_core.shutdown()
    close_sockets(sockets)


def free_memory() -> None:
    """Give back what engines that nobody holds any more had in this process."""
    gc.collect()
    cleanup_dist_env_and_memory()
