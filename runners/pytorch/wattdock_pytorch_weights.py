"""Build a model whose parameters are drawn, directly where they will live; and decide where that is.

An 8 B model must neither pass through host memory nor be initialised twice.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory
from transformers import AutoModelForCausalLM
from wattdock_pytorch_ranks import own_part, split_empty

from wattdock_runner.errors import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock_runner.backend import RandomWeights, Rank

Placement = dict[str, "int | str"]


def empty_model(config: Any, rank: Rank | None = None, **options: Any) -> Any:
    """Return the model with its parameters on the meta device and its buffers (rotary tables, …) real.

    Args:
        rank: One of several processes that hold it together: each parameter is then this one's part.
    """
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, **options)
    if rank:
        return split_empty(model, rank)
    model.tie_weights()
    return model


def balanced_placement(model: Any) -> Placement:
    """Return accelerate's balanced spread of `model` (parameters on meta) over the visible GPUs: module → GPU index.

    Raises:
        OutOfMemory: It does not fit in them; computing from host memory would be another measurement.
    """
    whole = list(model._no_split_modules or ())
    memory_bytes = get_balanced_memory(model, dtype=model.dtype, no_split_module_classes=whole)
    gpus = {device: size for device, size in memory_bytes.items() if isinstance(device, int)}
    placement: Placement = infer_auto_device_map(
        model, max_memory=gpus, no_split_module_classes=whole, dtype=model.dtype
    )
    if left_over := [name for name, device in placement.items() if not isinstance(device, int)]:
        raise OutOfMemory(f"the model does not fit in {len(gpus)} GPU(s): no room for {left_over[0]!r}")
    return placement


def draw_model(model: Any, placement: Placement, weights: RandomWeights) -> Any:
    """Give every parameter of `model` (on meta) its device and values from U[low, high), a generator per tensor.

    Tied parameters stay tied; buffers move with their module and keep their values. A rank keeps its part of the same
    values as one process alone would draw.
    """
    drawn: dict[int, torch.nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in drawn:
                full_name = f"{module_name}.{name}"
                drawn[id(parameter)] = _draw(parameter, full_name, device_of(full_name, placement), weights)
            module._parameters[name] = drawn[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device_of(f"{module_name}.{name}", placement))
    if len(set(placement.values())) > 1:
        dispatch_model(model, device_map=placement, skip_keys=model._skip_keys_device_placement)
    return model


def _draw(parameter: Any, name: str, device: torch.device, weights: RandomWeights) -> torch.nn.Parameter:
    digest = hashlib.sha256(f"{weights.seed}:{name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    # Drawn in float32: a CPU draws bfloat16 from 256 values only, and bit patterns decide what arithmetic costs.
    values = torch.empty(parameter.shape, dtype=torch.float32, device=device)
    values.uniform_(weights.low, weights.high, generator=generator)
    values = values.to(parameter.dtype)
    return torch.nn.Parameter(own_part(values, parameter) if is_split(parameter) else values, requires_grad=False)


def is_split(parameter: Any) -> bool:
    """Whether this process holds a part of a parameter only."""
    return hasattr(parameter, "placements")


def device_of(name: str, placement: Mapping[str, int | str]) -> torch.device:
    """Return the device of the longest entry of `placement` that is `name` or one of its parents."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return torch.device(next(placement[parent] for parent in parents if parent in placement))
