"""Decide where a model's parameters lie, draw them there, and give memory back.

An 8 B model must neither pass through host memory nor be initialised twice.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate import dispatch_model, infer_auto_device_map, init_empty_weights
from accelerate.utils import get_balanced_memory
from transformers import AutoModelForCausalLM
from wattdock_pytorch_ranks import own_part, split_empty

from wattdock_runner.checkpoint import draw_uniform
from wattdock_runner.errors import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wattdock_runner.backend import RandomWeights, Rank

T = TypeVar("T")
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
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    draw_uniform(torch, values, name, weights)
    return torch.nn.Parameter(own_part(values, parameter) if is_split(parameter) else values, requires_grad=False)


def is_split(parameter: Any) -> bool:
    """Whether this process holds a part of a parameter only."""
    return hasattr(parameter, "placements")


def device_of(name: str, placement: Mapping[str, int | str]) -> torch.device:
    """Return the device of the longest entry of `placement` that is `name` or one of its parents."""
    parts = name.split(".")
    parents = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return torch.device(next(placement[parent] for parent in parents if parent in placement))


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
