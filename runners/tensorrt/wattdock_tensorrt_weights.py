"""Write a checkpoint of drawn parameters, for an engine that only reads them from files.

TensorRT-LLM's own `load_format: dummy` draws from a range and a seed of its own, and would not be what a result says.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock_runner.backend import RandomWeights

SHARD_BYTES = 4_000_000_000


def meta_model(config: Any, *, trust_remote_code: bool) -> Any:
    """Return the model of a transformers config with all its parameters on the meta device, tied ones tied."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model


def write_checkpoint(model: Any, source: Path, target: Path, dtype: str, weights: RandomWeights) -> None:
    """Write every parameter of `model` (on meta), drawn from U[low, high) by a generator of its own, into `target`.

    Args:
        source: The model's folder; what lies there beside weights is copied.
        dtype: "bfloat16", "float16" or "float32".
    """
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".model", ".py", ".txt"):
            shutil.copyfile(file, target / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # Older readers know the first name, newer ones the second.
    config |= {"torch_dtype": dtype, "dtype": dtype}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    index: dict[str, str] = {}
    for number, shard in enumerate(_shards(model, getattr(torch, dtype), weights)):
        name = f"model-{number:05d}.safetensors"
        save_file(shard, target / name, metadata={"format": "pt"})
        index |= dict.fromkeys(shard, name)
    size_bytes = sum(parameter.numel() for parameter in model.parameters()) * getattr(torch, dtype).itemsize
    listing = {"metadata": {"total_size": size_bytes}, "weight_map": index}
    (target / "model.safetensors.index.json").write_text(json.dumps(listing), encoding="utf-8")


def _shards(model: Any, dtype: torch.dtype, weights: RandomWeights) -> Iterator[dict[str, torch.Tensor]]:
    """Yield drawn parameters by name, a few gigabytes at a time; a tied one once."""
    shard: dict[str, torch.Tensor] = {}
    size_bytes = 0
    for name, parameter in model.named_parameters():
        if shard and size_bytes + parameter.numel() * dtype.itemsize > SHARD_BYTES:
            yield shard
            shard, size_bytes = {}, 0
        shard[name] = draw(name, parameter.shape, dtype, weights)
        size_bytes += parameter.numel() * dtype.itemsize
    yield shard


def draw(name: str, shape: torch.Size, dtype: torch.dtype, weights: RandomWeights) -> torch.Tensor:
    """Return one parameter; equal for equal names and seeds, on every machine."""
    digest = hashlib.sha256(f"{weights.seed}:{name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    # Drawn in float32: a CPU draws bfloat16 from 256 values only, and bit patterns decide what arithmetic costs.
    wide = torch.empty(shape, dtype=torch.float32)
    return wide.uniform_(weights.low, weights.high, generator=generator).to(dtype)
