"""Load one causal language model of transformers and say what it really runs with."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar
from wattdock_pytorch_ranks import distributed_config, exchange_named, join, require_split, require_splittable
from wattdock_pytorch_weights import Placement, balanced_placement, draw_model, empty_model

from wattdock_runner.backend import LoadedModel
from wattdock_runner.checkpoint import eos_token_ids, has_tokenizer, ignored_settings_warnings
from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import InvalidRequest, OutOfMemory
from wattdock_runner.gpus import driver_version, require_gpus, torch_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock_runner.backend import Gpu, LoadOrder

T = TypeVar("T")

DEFAULT_CPU_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class PyTorchModel:
    """A loaded model and what a pass needs to know of it.

    Attributes:
        devices: Those that hold parameters; the first takes the inputs.
        eos_ids: Ids that end a sequence, by the checkpoint's own word.
        pad_id: Fills up shorter prompts, always masked.
        ranks: How many processes hold the model together.
    """

    model: Any
    tokenizer: Any
    devices: tuple[torch.device, ...]
    eos_ids: tuple[int, ...]
    pad_id: int
    ranks: int = 1


def load_model(
    order: LoadOrder, report: Callable[[str, float | None], None], start_ns: int
) -> tuple[PyTorchModel, LoadedModel]:
    """Load what `order` says, on the GPUs it names or on the CPU when it names none.

    Args:
        start_ns: When loading began, before this module was imported.

    Raises:
        WrongState: Torch sees other GPUs than asked for.
        InvalidRequest: Transformers refuses the folder, the dtype or the attention implementation.
        OutOfMemory: It does not fit.
        ExchangeFailed: It is one of several ranks, and these cannot exchange data.
    """
    disable_progress_bar()
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    torch.set_num_threads(int(str(order.engine_args.get("cpu_threads", DEFAULT_CPU_THREADS))))
    torch.set_float32_matmul_precision(str(order.engine_args.get("float32_matmul_precision", "highest")))
    report("drawing random weights" if order.random_weights else "reading weights", None)
    if order.rank:
        join(order.rank, "cuda" if gpus else "cpu")
    with exchange_named("loading the model"):
        model = freeing_memory("loading the model", lambda: _build(order, bool(gpus)))
    model.eval()
    defaults = _take_generation_defaults(model, order)
    report("reading the tokenizer", None)
    tokenizer = _tokenizer(order)
    loaded = _as_loaded(model, tokenizer, defaults, order.rank.count if order.rank else 1)
    # No other device: that would open a context on a GPU which another rank, or nobody, uses.
    for device in loaded.devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    leave_out_of_collections()
    span = Span("load", start_ns, now_ns(), drained=True)
    return loaded, _describe(loaded, order, gpus, defaults, span)


def _build(order: LoadOrder, has_gpu: bool) -> Any:
    """Return the model on its devices."""
    options: dict[str, Any] = {"trust_remote_code": order.trust_remote_code}
    attention = order.engine_args.get("attn_implementation")
    try:
        config = AutoConfig.from_pretrained(order.model_path, local_files_only=True, **options)
        options["dtype"] = _dtype(order, config, has_gpu)
        options |= {"attn_implementation": attention} if attention else {}
        if order.rank:
            require_splittable(config, order.rank.count)
        placement = _placement(order, config, options, has_gpu)
        is_drawn = order.random_weights is not None
        model = empty_model(config, order.rank, **options) if is_drawn else _read_weights(order, placement, options)
        if order.rank:
            require_split(model, order.rank.count)
        return draw_model(model, placement, order.random_weights) if order.random_weights else model
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot load {order.model_path}: {error}") from error


def _dtype(order: LoadOrder, config: Any, has_gpu: bool) -> Any:
    """Return a torch dtype, or "auto" where only the checkpoint's files know."""
    if order.dtype != "auto":
        return getattr(torch, order.dtype)
    if not has_gpu:
        return torch.float32
    own = getattr(config, "dtype", None)
    return own or (torch.float32 if order.random_weights else "auto")


def _placement(order: LoadOrder, config: Any, options: dict[str, Any], has_gpu: bool) -> Placement:
    if not has_gpu:
        return {"": "cpu"}
    if order.rank:
        return {"": order.rank.index}
    if order.engine_args.get("device_map") != "auto":
        return {"": 0}
    known = {**options, "dtype": torch.bfloat16} if options["dtype"] == "auto" else options
    return balanced_placement(empty_model(config, None, **known))


def _read_weights(order: LoadOrder, placement: Placement, options: dict[str, Any]) -> Any:
    # Transformers reads each rank's part alone, to the rank's own device.
    options |= {"distributed_config": distributed_config(order.rank)} if order.rank else {"device_map": placement}
    model, info = AutoModelForCausalLM.from_pretrained(
        order.model_path, local_files_only=True, output_loading_info=True, **options
    )
    # Transformers would fill a gap with freshly drawn weights and a warning.
    if missing := sorted(info["missing_keys"]):
        raise InvalidRequest(f"{order.model_path} lacks {len(missing)} parameters, the first is {missing[0]}")
    return model


def _take_generation_defaults(model: Any, order: LoadOrder) -> GenerationConfig:
    """Return the checkpoint's generation settings and make the model forget them.

    `generate` fills every field that is left open from the model's own, so nothing may stay there.
    """
    own: GenerationConfig = model.generation_config
    # A model built from a config alone never read this file, which also knows the ids that end a sequence.
    if (order.model_path / "generation_config.json").is_file():
        own = GenerationConfig.from_pretrained(order.model_path, local_files_only=True)
    model.generation_config = GenerationConfig()
    return own


def _tokenizer(order: LoadOrder) -> Any:
    if not has_tokenizer(order.model_path):
        return None
    return AutoTokenizer.from_pretrained(
        order.model_path, local_files_only=True, trust_remote_code=order.trust_remote_code
    )


def _as_loaded(model: Any, tokenizer: Any, defaults: GenerationConfig, ranks: int) -> PyTorchModel:
    eos = defaults.eos_token_id
    if eos is None:
        eos = getattr(model.config.get_text_config(), "eos_token_id", None)
    return PyTorchModel(
        model,
        tokenizer,
        devices=tuple(dict.fromkeys(parameter.device for parameter in model.parameters())),
        eos_ids=eos_token_ids(eos),
        pad_id=defaults.pad_token_id if isinstance(defaults.pad_token_id, int) else 0,
        ranks=ranks,
    )


def _describe(
    loaded: PyTorchModel, order: LoadOrder, gpus: tuple[Gpu, ...], defaults: GenerationConfig, span: Span
) -> LoadedModel:
    model = loaded.model
    parameters = list(model.parameters())
    used = sorted({parameter.device.index for parameter in parameters if parameter.device.type == "cuda"})
    layers = _layers_per_gpu(model, gpus)
    devices_by_name = getattr(model, "hf_device_map", None) or {"": str(parameters[0].device)}
    return LoadedModel(
        visible_gpus=gpus,
        used_gpu_uuids=tuple(gpus[index].uuid for index in used),
        effective_engine_args={
            "dtype": str(model.dtype).removeprefix("torch."),
            "attn_implementation": model.config._attn_implementation,
            "device_map": {name: str(device) for name, device in devices_by_name.items()},
            "tp_plan": "auto" if order.rank else None,
            "tp_size": loaded.ranks,
            "cpu_threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "eos_token_ids": list(loaded.eos_ids),
            "trust_remote_code": order.trust_remote_code,
        },
        parallelism=_parallelism(loaded, len(used), layers),
        parameter_count=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        driver_version=driver_version(),
        cuda_version=torch.version.cuda,
        nccl_version=".".join(map(str, torch.cuda.nccl.version())) if gpus else None,
        warnings=ignored_settings_warnings(defaults.to_diff_dict()),
        spans=(span,),
    )


def _parallelism(loaded: PyTorchModel, gpus: int, layers: dict[str, int]) -> dict[str, Any]:
    if loaded.ranks > 1:
        return {"kind": "tensor", "tensor_parallel_size": loaded.ranks, "devices": layers}
    return {"kind": "device_map" if gpus > 1 else "none", "devices": layers}


def _layers_per_gpu(model: Any, gpus: tuple[Gpu, ...]) -> dict[str, int]:
    """Return how many of the model's unsplittable layers each used GPU holds, by UUID."""
    kinds = set(model._no_split_modules or ())
    counts: dict[str, int] = {}
    for module in model.modules():
        device = next((parameter.device for parameter in module.parameters()), None)
        if type(module).__name__ in kinds and device is not None and device.type == "cuda":
            uuid = gpus[device.index].uuid
            counts[uuid] = counts.get(uuid, 0) + 1
    return counts


def freeing_memory(what: str, work: Callable[[], T]) -> T:
    """Return `work()`, with running out of memory named and what it held given back first.

    Raises:
        OutOfMemory: Says during what, and the allocator's own sentence.
    """
    try:
        return work()
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = str(error) or "host memory is used up"
    except RuntimeError as error:
        # The CPU allocator has no exception class of its own.
        if "DefaultCPUAllocator" not in str(error):
            raise
        reason = str(error)
    # Only out here has the exception let go of the frames that hold tensors.
    free_memory()
    raise OutOfMemory(f"out of memory while {what}: {reason}")


def leave_out_of_collections() -> None:
    """Keep Python's garbage collector from looking at what is loaded, until memory is freed.

    A full collection of it takes tenths of a second, in whichever pass the recorder's objects happen to bring it about.
    vLLM does the same when its engine has started.
    """
    gc.collect()
    gc.freeze()


def free_memory() -> None:
    """Collect garbage and give cached device memory back."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
