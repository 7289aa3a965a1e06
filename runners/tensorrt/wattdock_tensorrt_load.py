"""Start one TensorRT-LLM engine and say what it really runs with."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

# Read when it is imported and when MPI starts. No usage reports while measuring. MPI finds its own processes over
# loopback, the only network that a runner's container has, where a user without a name may be root.
os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMPI_MCA_oob_tcp_if_include", "lo")
os.environ.setdefault("OMPI_MCA_btl_tcp_if_include", "lo")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

import torch
from safetensors.torch import save_file
from tensorrt_llm import LLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from wattdock_tensorrt import engine_arguments
from wattdock_tensorrt_engine import MEMORY_WORDS, TensorrtEngine

from wattdock_runner.arguments import json_ready
from wattdock_runner.backend import LoadedModel
from wattdock_runner.checkpoint import (
    draw_uniform,
    eos_token_ids,
    ignored_settings_warnings,
    meta_model,
    read_from_folder,
    read_tokenizer,
)
from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory, WrongState
from wattdock_runner.gpus import cuda_versions, parallelism, require_gpus, torch_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock_runner.backend import Gpu, LoadOrder

# What it raises for values that it does not take, or not together; pydantic's errors are ValueErrors.
REFUSALS = (AssertionError, NotImplementedError, OSError, TypeError, ValueError)
OTHER_NAMES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
NO_WORKERS = (
    "TensorRT-LLM's worker processes could not be told from others; one that is killed would show as a pass that hangs"
)


def load_engine(
    order: LoadOrder, report: Callable[[str, float | None], None], start_ns: int
) -> tuple[TensorrtEngine, LoadedModel]:
    """Start an engine as `order` says, on the GPUs it names.

    Args:
        start_ns: When loading began, before this module was imported.

    Raises:
        WrongState: There is no GPU, or torch sees others than asked for.
        InvalidRequest: TensorRT-LLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    try:
        config = read_from_folder(AutoConfig, order)
        model = meta_model(torch, AutoModelForCausalLM, config, trust_remote_code=order.trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot read {order.model_path}: {error}") from error
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    if not gpus:
        raise WrongState("TensorRT-LLM runs on NVIDIA GPUs only, and none was asked for; set gpus")
    settings = engine_settings(order, config)
    parameters = sum(int(parameter.numel()) for parameter in model.parameters())
    is_quantised = getattr(config, "quantization_config", None) is not None
    weight_bytes = None if is_quantised else parameters * int(getattr(torch, settings["dtype"]).itemsize)
    generation = model.generation_config
    if (order.model_path / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(order.model_path, local_files_only=True)
    llm = _start(order, settings, model, report)
    text, tokenizer = config.get_text_config(), read_tokenizer(AutoTokenizer, order)
    engine = TensorrtEngine(llm, tokenizer, eos_token_ids(generation.eos_token_id), text)
    try:
        engine.drain()
    except BaseException:
        engine.stop()
        raise
    warnings = ignored_settings_warnings(generation.to_diff_dict())
    return engine, LoadedModel(
        visible_gpus=gpus,
        used_gpu_uuids=tuple(gpu.uuid for gpu in _used(llm.args, gpus)),
        effective_engine_args=effective_engine_args(llm.args)
        | {"dtype": settings["dtype"], "eos_token_ids": list(engine.eos_ids)},
        parallelism=_parallelism(llm.args, gpus, text.num_hidden_layers),
        parameter_count=parameters,
        weight_bytes=weight_bytes,
        versions=cuda_versions(torch, gpus),
        warnings=warnings if engine.workers else (*warnings, NO_WORKERS),
        spans=(Span("load", start_ns, now_ns(), drained=True),),
    )


def engine_settings(order: LoadOrder, config: Any) -> dict[str, Any]:
    """Return everything that TensorRT-LLM's LLM is told."""
    given: dict[str, Any] = dict(order.engine_args)
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or "bfloat16"
    return {
        "tensor_parallel_size": given.pop("tp_size", 1),
        "pipeline_parallel_size": given.pop("pp_size", 1),
        **given,
        # A cached prompt is not computed: energy per token would be that of another workload.
        "kv_cache_config": {"enable_block_reuse": False, **(given.get("kv_cache_config") or {})},
        "model": str(order.model_path),
        "dtype": str(named).removeprefix("torch.") if order.dtype == "auto" else order.dtype,
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
    }


def _start(order: LoadOrder, settings: dict[str, Any], model: Any, report: Callable[[str, float | None], None]) -> Any:
    try:
        with _weights(order, model, settings["dtype"], report) as folder:
            report("starting the engine", None)
            return LLM(**settings | {"model": str(folder)})
    except (MemoryError, *REFUSALS, RuntimeError) as error:
        _raise_named(error, str(order.model_path))


def _raise_named(error: Exception, model: str) -> NoReturn:
    """Raise what a caller can act on in place of TensorRT-LLM's own errors, which may be the cause of another."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    text = "; ".join(map(str, causes))
    is_memory = any(isinstance(cause, (MemoryError, torch.OutOfMemoryError)) for cause in causes)
    if is_memory or any(words in text for words in MEMORY_WORDS):
        raise OutOfMemory(f"TensorRT-LLM: {text}") from error
    if isinstance(error, REFUSALS):
        raise InvalidRequest(f"TensorRT-LLM cannot load {model}: {text}") from error
    raise error


@contextmanager
def _weights(order: LoadOrder, model: Any, dtype: str, report: Callable[[str, float | None], None]) -> Iterator[Path]:
    """Yield the folder that the engine reads: the model's, or one of drawn weights that is there until it has.

    TensorRT-LLM's own `load_format: dummy` draws from a range and a seed of its own, which no result could state.
    """
    if order.random_weights is None:
        yield order.model_path
        return
    report("drawing random weights", None)
    # As large as the model: not in a container's small /tmp.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir())
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wattdock-drawn-", dir=cache) as name:
        folder = Path(name)
        for file in order.model_path.iterdir():
            if file.is_file() and file.suffix in (".json", ".model", ".py", ".txt"):
                shutil.copyfile(file, folder / file.name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # Older readers know the first name, newer ones the second.
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype, "dtype": dtype}))
        drawn = {}
        for parameter_name, parameter in model.named_parameters():
            drawn[parameter_name] = torch.empty(parameter.shape, dtype=getattr(torch, dtype))
            draw_uniform(torch, drawn[parameter_name], parameter_name, order.random_weights)
        save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
        yield folder


def effective_engine_args(args: Any) -> dict[str, Any]:
    """Return every engine argument as TensorRT-LLM holds it after its own checks; None where it has none.

    JSON-ready. What its workers make of an argument that was left open, they do not report.
    """
    names = sorted(engine_arguments() or ())
    return {name: json_ready(getattr(args, OTHER_NAMES.get(name, name), None), _simpler) for name in names}


def _simpler(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    return value.model_dump() if hasattr(value, "model_dump") else value


def _used(args: Any, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return gpus[: args.tensor_parallel_size * args.pipeline_parallel_size]


def _parallelism(args: Any, gpus: tuple[Gpu, ...], layers: int) -> dict[str, Any]:
    """Return how the model is split; workers do not say which layers they have where stages share them out."""
    is_whole = args.pipeline_parallel_size == 1
    devices = {gpu.uuid: layers for gpu in _used(args, gpus) if is_whole}
    return parallelism(args.tensor_parallel_size, args.pipeline_parallel_size, devices)
