"""Which splits a model allows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.config import Split
    from wattdock.inputs.estimate.architecture import Architecture

# Not more GPUs than one host has.
MOST = 64


def tensor_sizes(model: Architecture, *, repeats_kv_heads: bool) -> list[int]:
    """Return the legal numbers of GPUs for tensor parallelism.

    Heads and the MLP's width have to divide; so do key/value heads, or, for engines that repeat them, the other way
    round: each GPU then holds one.

    Source: vLLM, ModelConfig.verify_with_parallel_config; transformers, the "colwise" plan of attention layers.
    """
    latent = any(not layer.kv_divides for layer in model.layers)

    def divides(size: int) -> bool:
        kv = latent or model.kv_heads % size == 0 or (repeats_kv_heads and size % model.kv_heads == 0)
        return model.heads % size == 0 and model.mlp_width % size == 0 and kv

    return [size for size in range(1, MOST + 1) if divides(size)]


def check_split(model: Architecture, split: Split, *, repeats_kv_heads: bool) -> None:
    """Raise unless a model can be split so.

    Raises:
        ConfigError: Names what does not divide, and the legal sizes.
    """
    legal = tensor_sizes(model, repeats_kv_heads=repeats_kv_heads)
    if split.tensor not in legal:
        raise ConfigError(
            f"tensor parallelism over {split.tensor} GPUs is not possible: the model has {model.heads} heads, "
            f"{model.kv_heads} key/value heads and an MLP of width {model.mlp_width}; legal are "
            f"{', '.join(map(str, legal))}"
        )
    if split.pipeline > len(model.layers):
        raise ConfigError(
            f"{split.pipeline} pipeline stages are more than the model's {len(model.layers)} layers; use fewer"
        )
