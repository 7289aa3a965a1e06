"""What vLLM is loaded with, and what it then runs with: the same in the runner's process and behind its own server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

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
from vllm.platforms import current_platform
from wattdock_vllm import SERVE, VllmBackend, attention_backend, defaults_for
from wattdock_vllm_worker import EXTENSION

from wattdock_runner import checkpoint
from wattdock_runner.errors import WORKER, EngineFailed, InvalidRequest, OutOfMemory, WrongState
from wattdock_runner.gpus import cuda_versions, nvml_uuid, parallelism, require_gpus
from wattdock_runner.linear import unpacked_warnings
from wattdock_runner.process import package_version
from wattdock_runner.values import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_vllm_processes import Fault

    from wattdock_runner.serving import Engine
    from wattdock_runner.values import LoadOrder, Report, Workload

CACHE_ARGUMENTS = "kv_cache_memory_bytes or gpu_memory_utilization"


class LoadPlan(NamedTuple):
    """What a load begins with; `parameters` is None where transformers has no class, `tokenizer` where it has none.

    `gpus` are UUIDs.
    """

    gpus: tuple[str, ...]
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


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that vLLM sees, in its order, without opening a context on any."""
    if not current_platform.is_cuda():
        return ()
    platform: Any = current_platform
    return tuple(nvml_uuid(platform.get_device_uuid(index)) for index in range(torch.cuda.device_count()))


def engine_settings(order: LoadOrder, config: Any, *, on_gpu: bool) -> dict[str, Any]:
    """Return all arguments of vLLM's EngineArgs."""
    engine_args = dict(order.engine_args)
    engine_args.pop(SERVE, None)
    kv_cache_is_set = "VLLM_CPU_KVCACHE_SPACE" in os.environ
    settings = defaults_for(engine_args, on_gpu=on_gpu, kv_cache_is_set=kv_cache_is_set) | engine_args
    if place := order.place:
        settings |= {"nnodes": place.nodes, "node_rank": place.rank, "distributed_executor_backend": "mp"}
        settings |= {"master_addr": place.head_address, "master_port": place.head_port}
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
    linear, here = by_worker[0]["linear"], plan.gpus
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
        visible_gpu_uuids=plan.gpus,
        # Workers of other nodes have GPUs that are not seen here.
        used_gpu_uuids=(*(uuid for uuid in here if uuid in layers_by_gpu), *(layers_by_gpu.keys() - set(here))),
        effective_engine_args=effective,
        parallelism=parallelism(tensor, pipeline, layers_by_gpu),
        parameter_count=plan.parameters,
        weight_bytes=weight_bytes,
        warnings=(*plan.ids.warnings, *unpacked_warnings(order, linear, "vLLM")),
        **cuda_versions(torch, plan.gpus),
    )


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


def stops(workload: Workload, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Return the settings under which a request ends at these ids alone, whatever vLLM reads from the folder."""
    return {"ignore_eos": True, "stop_token_ids": [] if workload.ignore_eos else list(eos_ids)}
