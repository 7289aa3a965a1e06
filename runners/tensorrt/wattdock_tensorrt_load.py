"""Start one TensorRT-LLM engine and say what it really runs with."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

# Read when it is imported and when MPI starts. No usage reports while measuring. MPI finds its own processes over
# loopback, the only network that a runner's container has, where a user without a name may be root.
os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("OMPI_MCA_oob_tcp_if_include", "lo")
os.environ.setdefault("OMPI_MCA_btl_tcp_if_include", "lo")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

import torch
from tensorrt_llm import LLM
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from wattdock_tensorrt_arguments import require_known_cache_settings
from wattdock_tensorrt_describe import effective_engine_args, parallelism
from wattdock_tensorrt_drain import drain
from wattdock_tensorrt_engine import engine_key, kept_engine, runtime_settings, scratch_folder
from wattdock_tensorrt_loop import EngineLoop
from wattdock_tensorrt_weights import meta_model, write_checkpoint
from wattdock_tensorrt_workers import Process, descendants, is_alive, kill, workers_below

from wattdock_runner.backend import LoadedModel
from wattdock_runner.checkpoint import eos_token_ids, has_tokenizer, ignored_settings_warnings
from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory, WrongState
from wattdock_runner.gpus import driver_version, require_gpus, torch_gpus
from wattdock_runner.room import require_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock_tensorrt_api import Llm, SavableLlm

    from wattdock_runner.backend import Gpu, LoadOrder

# TensorRT-LLM has no exception class for these, and they come from another process as text.
MEMORY_WORDS = ("out of memory", "OutOfMemory", "insufficient memory", "Insufficient memory", "not enough memory")
# What it raises for values that it does not take, or not together; pydantic's errors are ValueErrors.
REFUSALS = (AssertionError, NotImplementedError, OSError, TypeError, ValueError)
ENGINE_MODULE = "tensorrt_llm._tensorrt_engine"
# Within the ten seconds that a runner has to end.
SHUTDOWN_S = 8.0
NO_WORKERS = (
    "TensorRT-LLM's worker processes could not be told from others; one that is killed would show as a pass that hangs"
)


@dataclass(frozen=True)
class TensorrtModel:
    """A running engine and what a pass needs to know of it.

    Attributes:
        eos_ids: Ids that end a sequence, by the checkpoint's own word.
        context_tokens: Positions that prompt and answer share; None is not known.
        workers: Its computing processes.
    """

    llm: Llm
    loop: EngineLoop
    tokenizer: Any
    eos_ids: tuple[int, ...]
    vocab_size: int
    context_tokens: int | None
    workers: frozenset[Process]


@dataclass(frozen=True)
class _Checkpoint:
    """What transformers says of a model folder."""

    config: Any
    generation: GenerationConfig
    model: Any
    dtype: str

    @property
    def parameters(self) -> int:
        return sum(int(parameter.numel()) for parameter in self.model.parameters())


def load_model(
    order: LoadOrder, report: Callable[[str, float | None], None], start_ns: int
) -> tuple[TensorrtModel, LoadedModel]:
    """Start an engine as `order` says, on the GPUs it names.

    Args:
        start_ns: When loading began, before this module was imported.

    Raises:
        WrongState: There is no GPU, torch sees others than asked for, or this TensorRT-LLM has no such backend.
        InvalidRequest: TensorRT-LLM refuses the folder, the dtype or an argument's value.
        OutOfMemory: The weights, the engine or the KV cache do not fit.
    """
    checkpoint = _read_checkpoint(order)
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    if not gpus:
        raise WrongState("TensorRT-LLM runs on NVIDIA GPUs only, and none was asked for; set gpus")
    settings = engine_settings(order, checkpoint.dtype)
    sizes = {"tp_size": int(settings["tensor_parallel_size"]), "pp_size": int(settings["pipeline_parallel_size"])}
    require_room(_weight_bytes(order, checkpoint), sizes, gpus, "TensorRT-LLM")
    spans: list[Span] = []
    with _weights(order, checkpoint, report) as folder:
        llm = _start(order, settings | {"model": str(folder)}, gpus, report, spans)
    model = _as_model(llm, order, checkpoint)
    try:
        model.loop.run(drain(llm, model.workers))
        spans.insert(0, Span("load", start_ns, now_ns(), drained=True))
        return model, _describe(model, order, checkpoint, gpus, spans)
    except BaseException:
        stop_engine(model)
        raise


def _read_checkpoint(order: LoadOrder) -> _Checkpoint:
    trusted = order.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(order.model_path, local_files_only=True, trust_remote_code=trusted)
        model = meta_model(config, trust_remote_code=trusted)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot read {order.model_path}: {error}") from error
    own: GenerationConfig = model.generation_config
    if (order.model_path / "generation_config.json").is_file():
        own = GenerationConfig.from_pretrained(order.model_path, local_files_only=True)
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or "bfloat16"
    dtype = str(named).removeprefix("torch.") if order.dtype == "auto" else order.dtype
    return _Checkpoint(config, own, model, dtype)


def engine_settings(order: LoadOrder, dtype: str) -> dict[str, Any]:
    """Return everything that TensorRT-LLM's LLM is told; `backend` says which of its two engines.

    Raises:
        InvalidRequest: A setting of the KV cache does not exist.
    """
    given = dict(order.engine_args)
    cache = dict(given.pop("kv_cache_config", None) or {})  # type: ignore[call-overload]
    require_known_cache_settings(cache)
    return {
        "backend": "pytorch",
        "tensor_parallel_size": given.pop("tp_size", 1),
        "pipeline_parallel_size": given.pop("pp_size", 1),
        **given,
        # A cached prompt is not computed: energy per token would be that of another workload.
        "kv_cache_config": {"enable_block_reuse": False, **cache},
        "model": str(order.model_path),
        "dtype": dtype,
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
    }


def _weight_bytes(order: LoadOrder, checkpoint: _Checkpoint) -> int | None:
    """Return what the weights of all GPUs together take; None where they are quantised."""
    if order.engine_args.get("quant_config") or getattr(checkpoint.config, "quantization_config", None):
        return None
    return checkpoint.parameters * int(getattr(torch, checkpoint.dtype).itemsize)


@contextmanager
def _weights(order: LoadOrder, checkpoint: _Checkpoint, report: Callable[[str, float | None], None]) -> Iterator[Path]:
    """Yield the folder that the engine reads: the model's, or one of drawn weights that is there until it has."""
    if order.random_weights is None:
        yield order.model_path
        return
    report("drawing random weights", None)
    with scratch_folder() as folder:
        needed_bytes = checkpoint.parameters * getattr(torch, checkpoint.dtype).itemsize
        if (free_bytes := shutil.disk_usage(folder).free) < needed_bytes:
            raise OutOfMemory(
                f"drawn weights take {needed_bytes / 1e9:.1f} GB in {folder.parent} until they are loaded, "
                f"and {free_bytes / 1e9:.1f} GB are free; set XDG_CACHE_HOME to a larger disk"
            )
        write_checkpoint(checkpoint.model, order.model_path, folder, checkpoint.dtype, order.random_weights)
        yield folder


def _start(
    order: LoadOrder,
    settings: dict[str, Any],
    gpus: tuple[Gpu, ...],
    report: Callable[[str, float | None], None],
    spans: list[Span],
) -> Llm:
    backend = settings.pop("backend")
    try:
        if backend == "pytorch":
            report("starting the engine", None)
            engine: Llm = LLM(**settings)
            return engine
        return _start_built(order, settings, gpus, report, spans)
    except (MemoryError, *REFUSALS, RuntimeError) as error:
        _raise_named(error, str(settings["model"]))


def _raise_named(error: Exception, model: str) -> NoReturn:
    """Raise what a caller can act on in place of TensorRT-LLM's own errors, which may be the cause of another."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    text = "; ".join(str(each) for each in causes)
    is_memory = any(isinstance(each, (MemoryError, torch.OutOfMemoryError)) for each in causes)
    if is_memory or any(words in text for words in MEMORY_WORDS):
        raise OutOfMemory(f"TensorRT-LLM: {text}") from error
    if isinstance(error, REFUSALS):
        raise InvalidRequest(f"TensorRT-LLM cannot load {model}: {text}") from error
    raise error


def _start_built(
    order: LoadOrder,
    settings: dict[str, Any],
    gpus: tuple[Gpu, ...],
    report: Callable[[str, float | None], None],
    spans: list[Span],
) -> Llm:
    """Start the TensorRT engine, building and keeping it first where there is none; the build is a span of its own."""
    if find_spec(ENGINE_MODULE) is None:
        raise WrongState("this TensorRT-LLM has no TensorRT backend any more (removed after 1.2); use backend: pytorch")
    from tensorrt_llm import _tensorrt_engine

    def build(folder: Path) -> None:
        report("building the engine", None)
        start_ns = now_ns()
        builder: SavableLlm = _tensorrt_engine.LLM(**settings)
        try:
            builder.save(str(folder))
        finally:
            builder.shutdown()
        spans.append(Span("build", start_ns, now_ns()))

    capabilities = [torch.cuda.get_device_capability(index) for index in range(len(gpus))]
    folder, _ = kept_engine(
        engine_key(order, settings, gpus, capabilities),
        build,
        waits=lambda: report("waiting for another runner, which builds this engine", None),
    )
    report("starting the engine", None)
    # The same way whether it was just built or not, so that what is measured is the same.
    engine: Llm = _tensorrt_engine.LLM(**runtime_settings(settings, folder))
    return engine


def _as_model(llm: Llm, order: LoadOrder, checkpoint: _Checkpoint) -> TensorrtModel:
    text_config = checkpoint.config.get_text_config()
    tokenizer = None
    if has_tokenizer(order.model_path):
        tokenizer = AutoTokenizer.from_pretrained(
            order.model_path, local_files_only=True, trust_remote_code=order.trust_remote_code
        )
    return TensorrtModel(
        llm,
        EngineLoop(),
        tokenizer,
        eos_ids=eos_token_ids(checkpoint.generation.eos_token_id),
        vocab_size=text_config.vocab_size,
        context_tokens=llm.args.max_seq_len or getattr(text_config, "max_position_embeddings", None),
        workers=workers_below(os.getpid()),
    )


def _describe(
    model: TensorrtModel, order: LoadOrder, checkpoint: _Checkpoint, gpus: tuple[Gpu, ...], spans: list[Span]
) -> LoadedModel:
    args = model.llm.args
    used = gpus[: args.tensor_parallel_size * args.pipeline_parallel_size]
    effective = effective_engine_args(args) | {
        "backend": order.engine_args.get("backend", "pytorch"),
        "dtype": checkpoint.dtype,
        "eos_token_ids": list(model.eos_ids),
    }
    warnings = ignored_settings_warnings(checkpoint.generation.to_diff_dict())
    return LoadedModel(
        visible_gpus=gpus,
        used_gpu_uuids=tuple(gpu.uuid for gpu in used),
        effective_engine_args=effective,
        parallelism=parallelism(args, used, checkpoint.config.get_text_config().num_hidden_layers),
        parameter_count=checkpoint.parameters,
        weight_bytes=_weight_bytes(order, checkpoint),
        driver_version=driver_version(),
        cuda_version=torch.version.cuda,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())),
        warnings=warnings if model.workers else (*warnings, NO_WORKERS),
        spans=tuple(spans),
    )


def stop_engine(model: TensorrtModel) -> None:
    """End the engine with its processes."""
    everything = descendants(os.getpid())
    # It waits for its workers without end, and one may have been killed.
    patience_s = SHUTDOWN_S if all(map(is_alive, model.workers)) else 0.0
    ending = threading.Thread(target=model.llm.shutdown, name="engine-shutdown", daemon=True)
    ending.start()
    ending.join(patience_s)
    if ending.is_alive():
        kill(everything)
    model.loop.stop()
    gc.collect()
