"""The model of a load on its devices: its weights read or drawn, whole, spread over GPUs, or a rank's part.

Drawn parameters are made on their device: an 8 B model must neither pass through host memory nor be made twice.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import wattdock_pytorch_ranks as ranks
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import __version__ as transformers_version
from transformers.quantizers.auto import AutoHfQuantizer

from wattdock_runner import checkpoint
from wattdock_runner.errors import GPU_MEMORY, InvalidRequest, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock_runner.values import LoadOrder, RandomWeights, Rank

Placement = dict[str, "int | str"]


def load_model(order: LoadOrder, *, on_gpu: bool) -> Any:
    """Return the model of `order` on its devices.

    Raises:
        InvalidRequest: Transformers refuses the folder, the dtype or the attention implementation, or the model cannot
            be split over the order's ranks.
        OutOfMemory: The GPUs have no room for it.
    """
    options: dict[str, Any] = {"trust_remote_code": order.trust_remote_code}
    if attention := order.engine_args.get("attn_implementation"):
        options["attn_implementation"] = attention
    drawn, rank, placement = order.random_weights, order.rank, Placement()
    try:
        config = checkpoint.read_config(AutoConfig, order)
        dtype = checkpoint.dtype_of(order, config, on_gpu=on_gpu)
        # Transformers chooses a dtype by the weights that it reads; there are none to draw.
        options["dtype"] = getattr(torch, dtype) if dtype else torch.float32 if drawn else "auto"
        if rank:
            ranks.require_splittable(config, rank.count)
        if on_gpu and not rank and order.engine_args.get("device_map") == "auto":
            sized = {**options, "dtype": torch.bfloat16} if options["dtype"] == "auto" else options
            placement = balanced_placement(empty_model(config, None, **sized))
        else:
            placement[""] = "cpu" if not on_gpu else rank.index if rank else 0
        if drawn:
            model = empty_model(config, rank, **options)
        else:
            require_quantizer(order, config, placement)
            # Transformers reads each rank's part only, to the rank's device.
            where = {"distributed_config": ranks.distributed_config(rank)} if rank else {"device_map": placement}
            model = read_model(order, config=config, **options, **where)
        if rank:
            ranks.require_split(model, rank.count)
        return draw_model(model, placement, drawn) if drawn else model
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot load {order.model_path}: {error}") from error


def require_quantizer(order: LoadOrder, config: Any, placement: Placement) -> None:
    """Accept whole weights, and quantised weights that transformers can hold here, before any weight is read.

    Transformers ignores a method that it does not know, and would read packed weights as if they were whole.

    Raises:
        InvalidRequest: Holds the method and transformers' own reason: a package or a GPU that it lacks.

    Source: `get_hf_quantizer` in quantizers/auto.py of transformers 5.24, which asks the same validator.
    """
    if not (asked := checkpoint.require_known_quantisation(order, config, checkpoint.LEGACY_CONFIGS)):
        return
    method = asked.get("quant_method") if isinstance(asked, dict) else getattr(asked, "quant_method", None)
    weights = f"the {method or 'quantised'} weights of {order.model_path}"
    refused = f"transformers {transformers_version} cannot hold {weights} here"
    # The validator of fp8 and mxfp4 marks the settings it is given, where it decides to unpack.
    settings = deepcopy(asked)
    try:
        known = AutoHfQuantizer.supports_quant_method(settings)
        if known:
            quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
            quantizer.validate_environment(device_map=placement or None, weights_only=True)
    # Settings that lack a field, or have one too many, end in any of these.
    except (ImportError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InvalidRequest(f"{refused}: {reason}; backend vllm has kernels of its own") from error
    if not known:
        raise InvalidRequest(f"{refused}: it does not know the method; backend vllm has methods of its own")


def read_model(order: LoadOrder, **options: Any) -> Any:
    """Return the folder's model with the folder's weights.

    Raises:
        InvalidRequest: The folder lacks weights, which transformers would draw anew with no more than a warning.
    """
    model, info = AutoModelForCausalLM.from_pretrained(
        order.model_path, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
    )
    if missing := sorted(info["missing_keys"]):
        raise InvalidRequest(f"{order.model_path} lacks {len(missing)} parameters, the first is {missing[0]}")
    return model


def empty_model(config: Any, rank: Rank | None = None, **options: Any) -> Any:
    """Return the model with its parameters on the meta device and its buffers (rotary tables, …) real.

    Args:
        rank: The place of this process in a split model; each parameter is then this rank's part.
    """
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, **options)
    if rank:
        return ranks.split_empty(model, rank)
    model.tie_weights()
    return model


def balanced_placement(model: Any) -> Placement:
    """Return accelerate's balanced spread of `model` (parameters on meta) over the visible GPUs: module → GPU index.

    Raises:
        OutOfMemory: The model does not fit in the GPUs; host memory would make another measurement.
    """
    whole = list(model._no_split_modules or ())
    memory_bytes = get_balanced_memory(model, dtype=model.dtype, no_split_module_classes=whole)
    gpus = {device: size for device, size in memory_bytes.items() if isinstance(device, int)}
    placement: Placement = infer_auto_device_map(
        model, max_memory=gpus, no_split_module_classes=whole, dtype=model.dtype
    )
    if homeless := [name for name, device in placement.items() if not isinstance(device, int)]:
        raise OutOfMemory(f"the model does not fit in {len(gpus)} GPU(s): no room for {homeless[0]!r}", GPU_MEMORY)
    return placement


def draw_model(model: Any, placement: Placement, weights: RandomWeights) -> Any:
    """Give every parameter of `model` (on meta) its device and values from U[low, high), a generator per tensor.

    Tied parameters stay tied; buffers move with their module and keep their values. A rank keeps its part of the values
    that a single process would draw.
    """
    drawn: dict[int, torch.nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in drawn:
                full_name = f"{module_name}.{name}"
                device = device_of(full_name, placement)
                values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                checkpoint.draw_uniform(torch, values, full_name, weights)
                part = ranks.local_part(values, parameter) if ranks.is_split(parameter) else values
                drawn[id(parameter)] = torch.nn.Parameter(part, requires_grad=False)
            module._parameters[name] = drawn[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device_of(f"{module_name}.{name}", placement))
    if len(set(placement.values())) > 1:
        dispatch_model(model, device_map=placement, skip_keys=model._skip_keys_device_placement)
    return model


def device_of(name: str, placement: Mapping[str, int | str]) -> torch.device:
    """Return the device of the longest entry of `placement` that is `name` or one of its parents."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return torch.device(next(placement[parent] for parent in parents if parent in placement))
