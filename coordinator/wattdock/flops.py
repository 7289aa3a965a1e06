"""Arithmetic of a decoder-only model: from its config.json and token counts to floating-point operations.

Pure; knows no engine and no hardware. A multiplication and an addition count as two operations. Matrix products and
attention are counted; norms, activations, rotary embeddings and softmax are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

METHOD = (
    "2 × block weights × positions computed + 2 × lm_head × output tokens + 4 × layers × heads × head size × "
    "(query, key) pairs; causal: a query meets itself and what came before it, in a layer with a window no "
    "more than that"
)
GATED, PLAIN = 3, 2
# What a config.json means that leaves it out. Source: transformers' configuration classes of these kinds, and of GPT-2.
WINDOW = dict.fromkeys(("mistral", "qwen2", "qwen3", "qwen3_moe"), 4096)
FIRST_WINDOWED_LAYER, GPT2_POSITIONS = 28, 1024


class UnknownArchitectureError(Exception):
    """This architecture's arithmetic is not known here; the message is the reason a result gives."""


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

    Source: keys, defaults and matrices as in transformers' configuration and modelling classes for `MODEL_TYPES`.
    """
    if (build := MODEL_TYPES.get(kind := config.get("model_type", ""))) is None:
        raise UnknownArchitectureError(f"model_type {kind!r} is not among {', '.join(MODEL_TYPES)}")
    try:
        return build(config)
    except KeyError as error:
        raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error


def _llama(config: Mapping[str, Any]) -> Decoder:
    """Grouped-query attention and a gated MLP of three matrices, dense or routed to experts."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    attention = 2 * hidden * head_size * (heads + kv_heads)
    mlps = [_mlp_weights(config, layer) for layer in range(layers)]
    windowed_layers, window = _windows(config, layers)
    head = hidden * config["vocab_size"]
    return Decoder(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        active_block_weights=layers * attention + sum(active for active, _ in mlps),
        total_block_weights=layers * attention + sum(total for _, total in mlps),
        head_weights=head,
        embedding_weights=0 if config.get("tie_word_embeddings") else head,
        windowed_layers=windowed_layers,
        window=window,
    )


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int, int | None]:
    """How many layers have a window, and of how many tokens."""
    kind = config["model_type"]
    window = config.get("sliding_window", WINDOW.get(kind))
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return 0, None
    if kind == "llama":
        raise UnknownArchitectureError(f"a Llama has no window, and this one's config.json says {window} tokens")
    if kind not in ("qwen2", "qwen3"):
        return layers, window
    if kinds := config.get("layer_types"):
        return kinds.count("sliding_attention"), window
    return max(layers - config.get("max_window_layers", FIRST_WINDOWED_LAYER), 0), window


def _mlp_weights(config: Mapping[str, Any], layer: int) -> tuple[int, int]:
    """Weights of one layer's MLP that a token meets, and all of them; a router is met by every token."""
    hidden = config["hidden_size"]
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    step = config.get("decoder_sparse_step", 1)
    if not experts or layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step:
        dense = GATED * hidden * config["intermediate_size"]
        return dense, dense
    one = GATED * hidden * (config.get("moe_intermediate_size") or config["intermediate_size"])
    router = hidden * experts
    return router + config["num_experts_per_tok"] * one, router + experts * one


def _gpt_oss(config: Mapping[str, Any]) -> Decoder:
    """A Llama's matrices with experts in every layer, and a window in every other one."""
    for name in ("head_dim", "num_key_value_heads", "num_local_experts"):
        config[name]  # what a Llama makes of its absence is not what this kind does
    layers, window = config["num_hidden_layers"], config["sliding_window"]
    kinds = config.get("layer_types") or [("sliding_attention", "full_attention")[one % 2] for one in range(layers)]
    return replace(_llama(config), windowed_layers=kinds.count("sliding_attention"), window=window)


def _falcon(config: Mapping[str, Any]) -> Decoder:
    """A plain MLP of two matrices; one head of keys and values in the first design, groups in the second."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    grouped = config.get("new_decoder_architecture", False)
    kv_heads = config.get("num_kv_heads") or heads if grouped else 1 if config.get("multi_query", True) else heads
    return _plain(
        config,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
        width=config.get("ffn_hidden_size") or 4 * hidden,
    )


def _gpt2(config: Mapping[str, Any]) -> Decoder:
    """Multi-head attention, a plain MLP of two matrices, and a table of positions."""
    hidden, heads = config["n_embd"], config["n_head"]
    width = config.get("n_inner") or 4 * hidden
    found = _plain(config, layers=config["n_layer"], heads=heads, kv_heads=heads, hidden=hidden, width=width)
    positions = hidden * config.get("n_positions", GPT2_POSITIONS)
    return replace(found, embedding_weights=found.embedding_weights + positions)


def _plain(config: Mapping[str, Any], *, layers: int, heads: int, kv_heads: int, hidden: int, width: int) -> Decoder:
    """A decoder with an MLP of two matrices, its output projection tied to the embedding unless it says otherwise."""
    size = hidden // heads
    blocks = layers * (2 * hidden * size * (heads + kv_heads) + PLAIN * hidden * width)
    head = hidden * config["vocab_size"]
    return Decoder(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        active_block_weights=blocks,
        total_block_weights=blocks,
        head_weights=head,
        embedding_weights=0 if config.get("tie_word_embeddings", True) else head,
    )


# Kinds of models whose arithmetic was counted operation by operation and found equal.
MODEL_TYPES: dict[str, Callable[[Mapping[str, Any]], Decoder]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), _llama),
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
}


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
