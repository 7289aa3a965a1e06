"""Arithmetic of a decoder-only model: from its config.json and token counts to floating-point operations.

Pure; knows no engine and no hardware. A multiplication and an addition count as two operations. Matrix products and
attention are counted; norms, activations, rotary embeddings and softmax are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock.inputs.estimate.architecture import UnknownArchitectureError
from wattdock.inputs.estimate.families import architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

METHOD = (
    "2 × block weights × positions computed + 2 × lm_head × output tokens + 4 × layers × heads × head size × "
    "(query, key) pairs; causal: a query meets itself and what came before it, in a layer with a window no "
    "more than that"
)
# Kinds of models whose arithmetic was counted operation by operation and found equal.
MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "falcon", "gpt2", "gpt_oss")


@dataclass(frozen=True)
class Decoder:
    """What decides a decoder's arithmetic.

    Attributes:
        layers, heads, kv_heads, head_size: Of attention.
        windowed_layers, window: How many layers attend to so many tokens at most, the query's own included.
        active_block_weights: Weights of all layers' matrices that one token meets; of experts, those it is routed to.
        total_block_weights: Weights of all layers' matrices.
        head_weights: Of the output projection; counted where it is tied to the embedding too, for it is computed.
        embedding_weights: Looked up, not computed: of the input embedding, 0 where tied, and of learned positions.
    """

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    active_block_weights: int
    total_block_weights: int
    head_weights: int
    embedding_weights: int
    windowed_layers: int = 0
    window: int | None = None

    @property
    def active_weights(self) -> int:
        """Matrix weights that one output token meets, the output projection included."""
        return self.active_block_weights + self.head_weights

    @property
    def total_weights(self) -> int:
        """All matrix weights, the input embedding and learned positions included; norms and biases are not."""
        return self.total_block_weights + self.head_weights + self.embedding_weights


def decoder(config: Mapping[str, Any]) -> Decoder:
    """Return the decoder that a config.json describes.

    Raises:
        UnknownArchitectureError: It is of another kind, has windows that its kind has not, or leaves out a figure.
    """
    if (kind := config.get("model_type", "")) not in MODEL_TYPES:
        raise UnknownArchitectureError(f"model_type {kind!r} is not among {', '.join(MODEL_TYPES)}")
    model = architecture(config)
    windows = [layer.window for layer in model.layers if layer.window is not None]
    met = sum(layer.met for layer in model.layers)
    return Decoder(
        layers=len(model.layers),
        heads=model.heads,
        kv_heads=model.kv_heads,
        # A head's keys and values are kept once each.
        head_size=model.layers[0].kv_values // (2 * model.kv_heads),
        active_block_weights=met,
        total_block_weights=met + sum(layer.unmet for layer in model.layers),
        head_weights=model.embedding,
        embedding_weights=(model.embedding if model.head else 0) + model.positions,
        windowed_layers=len(windows),
        window=max(windows, default=None),
    )


def request_flops(
    model: Decoder, *, prompt_tokens: int, output_tokens: int, cached_prompt_tokens: int = 0, causal: bool = True
) -> int:
    """Return the operations that one request needs, over all GPUs together.

    The last output token is never fed back; the output projection is computed once per output token, not for the
    prompt's other positions; what a cache held is not computed.

    Args:
        prompt_tokens: Ids of the prompt, without padding.
        output_tokens: Ids generated, at least 1 (0 gives 0).
        cached_prompt_tokens: Of the prompt, served from a cache; at least one position is always computed.
        causal: Count (query, key) pairs that attention needs; False counts prefill's whole square, as torch's
            FlopCounterMode does.

    Source: Kaplan et al., arXiv 2001.08361, section 2.1 (2 × weights per token), with attention counted exactly.
    """
    if output_tokens < 1:
        return 0
    cached = min(cached_prompt_tokens, prompt_tokens - 1)
    positions = prompt_tokens - cached + output_tokens - 1
    asked = (prompt_tokens, output_tokens, cached)
    everywhere = _pairs(*asked, window=None, causal=causal)
    within = _pairs(*asked, window=model.window, causal=causal)
    pairs = (model.layers - model.windowed_layers) * everywhere + model.windowed_layers * within
    attention = 4 * model.heads * model.head_size * pairs
    return 2 * model.active_block_weights * positions + 2 * model.head_weights * output_tokens + attention


def _pairs(prompt_tokens: int, output_tokens: int, cached: int, *, window: int | None, causal: bool) -> int:
    """(query, key) pairs of the positions `cached` … the last but one, in one layer."""
    decode = _decode_pairs(prompt_tokens, output_tokens, window)
    if not causal:
        return (prompt_tokens - cached) * prompt_tokens + decode
    return _pairs_up_to(prompt_tokens, window) - _pairs_up_to(cached, window) + decode


def _decode_pairs(prompt_tokens: int, output_tokens: int, window: int | None) -> int:
    """Pairs of the positions after the prompt, the last one left out: it is never fed back."""
    return _pairs_up_to(prompt_tokens + output_tokens - 1, window) - _pairs_up_to(prompt_tokens, window)


def _pairs_up_to(positions: int, window: int | None) -> int:
    """Pairs of the first positions, each with itself and what came before it, of a window's size at most."""
    growing = positions if window is None else min(positions, window)
    return growing * (growing + 1) // 2 + (positions - growing) * growing


def kv_bytes_read(model: Decoder, *, prompt_tokens: int, output_tokens: int, bytes_per_value: float) -> float:
    """Return the bytes of keys and values that one request's decode steps must read, at least; over all GPUs.

    Each output token after the first reads keys and values of every position that it attends to once, in every layer.
    """
    if output_tokens < 1:
        return 0.0
    everywhere = _decode_pairs(prompt_tokens, output_tokens, None)
    within = _decode_pairs(prompt_tokens, output_tokens, model.window)
    positions = (model.layers - model.windowed_layers) * everywhere + model.windowed_layers * within
    return positions * 2 * model.kv_heads * model.head_size * bytes_per_value
