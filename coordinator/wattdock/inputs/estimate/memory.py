"""Bytes on the fullest GPU of a split: weights, keys and values, activations. Pure."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattdock.config import EngineMemory, Split
    from wattdock.inputs.estimate.architecture import Architecture, Layer
    from wattdock.inputs.estimate.precision import Precision


def stages(model: Architecture, split: Split) -> list[tuple[Layer, ...]]:
    """Return each pipeline stage's layers; those left over go to stages in the middle, as vLLM deals them out.

    Source: vLLM, get_pp_indices in vllm/distributed/utils.py.
    """
    count, parts = len(model.layers), split.pipeline
    sizes = [count // parts] * parts
    # Not to the last, which has the output projection, and to the first only when all others have one more.
    for extra in range(2, count % parts + 2):
        sizes[-extra] += 1
    ends = [sum(sizes[: at + 1]) for at in range(parts)]
    return [model.layers[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def weight_bytes(model: Architecture, split: Split, size: Precision) -> list[float]:
    """Return the weights of one GPU of each pipeline stage.

    The embedding lies on the first stage, the output projection (tied or not) on the last; tensor parallelism divides
    both by vocabulary entries.
    """
    found = [sum(_layer_bytes(layer, model, split.tensor, size) for layer in layers) for layers in stages(model, split)]
    found[0] += model.embedding / split.tensor * size.rest
    head = model.head or (model.embedding if split.pipeline > 1 else 0)
    found[-1] += (head / split.tensor + model.final) * size.rest
    return found


def _layer_bytes(layer: Layer, model: Architecture, tensor: int, size: Precision) -> float:
    divided = (layer.attention + layer.mlp) / tensor + layer.key_value / min(tensor, model.kv_heads)
    return divided * size.layers + layer.experts / tensor * size.experts + layer.whole * size.rest


def kv_bytes(
    model: Architecture,
    split: Split,
    *,
    requests: int,
    context_tokens: int,
    bytes_per_value: float,
    repeated: bool = False,
) -> list[float]:
    """Return what one GPU of each pipeline stage keeps for requests of one length.

    Args:
        context_tokens: Of each request, prompt and answer.
        repeated: Heads are kept as often as the model's code in transformers repeats them.
    """

    def kept(layer: Layer) -> float:
        return _kept(layer, model, split.tensor, context_tokens) * (layer.kv_repeated if repeated else 1)

    return [requests * bytes_per_value * sum(map(kept, layers)) for layers in stages(model, split)]


def _kept(layer: Layer, model: Architecture, tensor: int, context_tokens: int) -> float:
    """Values that a layer keeps of one request, on one GPU."""
    tokens = min(context_tokens, layer.window) if layer.window else context_tokens
    # Beyond the number of key/value heads, each GPU has one of them, repeated.
    heads = ceil(model.kv_heads / tensor) / model.kv_heads if layer.kv_divides else 1.0
    return tokens * layer.kv_values * heads


def activation_bytes(
    model: Architecture,
    split: Split,
    engine: EngineMemory,
    *,
    requests: int,
    prompt_tokens: int,
    bytes_per_value: float,
) -> float:
    """Return the largest transient need of one GPU: a step's MLP beside hidden states, its sum, or choosing tokens.

    Choosing tokens needs the whole vocabulary for every request, in single precision, however the model is split.
    """
    tokens = engine.step_tokens if engine.step_tokens is not None else requests * prompt_tokens
    rows = engine.logits_rows if engine.logits_rows is not None else requests
    hidden = tokens * model.hidden * bytes_per_value
    inside = tokens * max(model.mlp_values / split.tensor, model.expert_values) * bytes_per_value
    choosing = rows * model.vocab * engine.logit_bytes
    heads = tokens * model.head_values / split.tensor * bytes_per_value if engine.keeps_head_outputs else 0
    beside_mlp = (engine.hidden_copies + model.branches) * hidden + heads + inside
    summed = engine.norm_copies * hidden + heads if split.tensor > 1 else 0
    return max(beside_mlp, summed, hidden + choosing) + engine.workspace_bytes
