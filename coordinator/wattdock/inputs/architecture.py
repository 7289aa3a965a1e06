"""What a decoder-only model is made of, from its config.json: weights, keys and values, and arithmetic. Pure.

Knows no engine and no hardware. A multiplication and an addition count as two operations. Matrix products and attention
are counted; norms, activations, rotary embeddings and softmax are not.

Source: keys, defaults and parameters as in transformers' configuration and modelling classes of each `model_type`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from wattdock.errors import UnknownArchitectureError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Matrices of an MLP: gate, up and down; or up and down.
GATED, PLAIN = 3, 2
LLAMA_LIKE = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss")
# Defaults of keys that a config.json leaves out. Source: transformers' configuration classes of these kinds and GPT-2.
WINDOW = dict.fromkeys(("mistral", "qwen2", "qwen3", "qwen3_moe"), 4096)
FIRST_WINDOWED_LAYER, GPT2_POSITIONS = 28, 1024
# Kinds of rotary positions that reach `factor` times the trained ones; for llama3 and longrope, config.json holds the
# whole reach. Source: `_get_and_verify_max_len` of vLLM 0.32, which takes YaRN's positions, too, for stretched already.
STRETCHED = ("yarn", "linear", "dynamic")
# Keys of config.json that are read here, by the type of their values.
KINDS: dict[type, tuple[str, ...]] = {
    int: (
        *("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim", "ffn_hidden_size"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "num_experts_per_tok"),
        *("num_local_experts", "num_experts", "decoder_sparse_step", "sliding_window", "max_window_layers"),
        *("max_position_embeddings", "num_ln_in_parallel_attn"),
        *("n_embd", "n_head", "n_inner", "n_layer", "n_positions"),
    ),
    list: ("layer_types", "mlp_only_layers"),
    dict: ("quantization_config",),
    str: ("model_type",),
}
# Of these, whole numbers that are 1 or more.
NOT_ZERO = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "decoder_sparse_step"),
    *("n_embd", "n_head", "n_layer"),
)
# Larger figures, and more layers, than any model has: a config.json with them is damaged.
LARGEST, MOST_LAYERS = 10**9, 1_000
# Bytes of one value, by the names that engines and config.json give types.
BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
BYTES |= dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1.0)
# Bytes of a value of an unknown type, for a lower bound: four bits are the fewest that engines offer.
LEAST_BYTES = 0.5


@dataclass(frozen=True)
class Layer:
    """One layer, in numbers of weights.

    Attributes:
        dense: Weights of matrices that every token is multiplied by: attention, a dense MLP, a router.
        other: Norms and biases.
        experts: Weights of all experts' matrices.
        active_experts: Weights of the experts that one token is routed to.
        window: Most tokens that its attention looks back; None is all.
    """

    dense: int
    other: int
    experts: int = 0
    active_experts: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Architecture:
    """A decoder-only model.

    Attributes:
        heads, kv_heads, head_size: Of attention; `kv_heads` equals `heads` for multi-head, is 1 for multi-query.
        mlp_width: What tensor parallelism has to divide in the MLP.
        mlp_values: Values per token alive at once in the widest MLP.
        embedding: Weights of the input embedding.
        head: Weights of the output projection; 0 where tied to the embedding.
        final: Weights before or after all layers: the last norm, a table of learned positions.
        positions: Of these, the table of learned positions.
        max_context: Positions that the model allows; None where config.json leaves it out.
        dtype: The checkpoint's own.
        quantization: The config's `quantization_config`; empty for none.
    """

    FLOPS_METHOD: ClassVar = (
        "2 × block weights × positions computed + 2 × lm_head × output tokens + 4 × layers × heads × head size × "
        "(query, key) pairs; causal: a query meets itself and what came before it, in a layer with a window no "
        "more than that"
    )

    layers: tuple[Layer, ...]
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_width: int
    mlp_values: int
    embedding: int
    head: int
    final: int
    positions: int = 0
    max_context: int | None = None
    dtype: str = "bfloat16"
    quantization: dict[str, object] = field(default_factory=dict, hash=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Return the architecture that a config.json describes.

        Raises:
            UnknownArchitectureError: The model type is unknown, or has no windows where the config sets one, or
                config.json leaves out a figure or says an impossible one.
        """
        text = config.get("text_config")
        whole = {**config, **text} if isinstance(text, dict) else config
        # Only a null window means something.
        config = {key: value for key, value in whole.items() if value is not None or key == "sliding_window"}
        for kind, keys in KINDS.items():
            for key in keys:
                value = config.get(key)
                possible = not isinstance(value, int) or (key in NOT_ZERO) <= value <= LARGEST
                if value is not None and not (isinstance(value, kind) and possible):
                    raise UnknownArchitectureError(f"config.json says {key} = {str(value)[:40]}")
        layers, layer_types = config.get("num_hidden_layers", config.get("n_layer", 0)), config.get("layer_types", ())
        if layers > MOST_LAYERS or len(layer_types) not in (0, layers):
            raise UnknownArchitectureError(f"config.json says {layers:,} layers and {len(layer_types):,} layer_types")
        if (build := FAMILIES.get(config.get("model_type", ""))) is None:
            raise UnknownArchitectureError(
                f"model_type {config.get('model_type')!r} is not among {', '.join(sorted(FAMILIES))}"
            )
        try:
            return build(config)
        except KeyError as error:
            raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error

    @property
    def parameters(self) -> int:
        """All weights, tied weights counted once."""
        blocks = sum(layer.dense + layer.experts + layer.other for layer in self.layers)
        return blocks + self.embedding + self.head + self.final

    @property
    def active_weights(self) -> int:
        """Matrix weights that one output token meets, the output projection included, tied or not."""
        return self._active_block_weights + self.embedding

    @property
    def total_weights(self) -> int:
        """All matrix weights, the input embedding and learned positions included; norms and biases are not."""
        blocks = sum(layer.dense + layer.experts for layer in self.layers)
        return blocks + self.embedding + self.head + self.positions

    @property
    def _active_block_weights(self) -> int:
        return sum(layer.dense + layer.active_experts for layer in self.layers)

    def request_flops(self, *, prompt_tokens: int, output_tokens: int, cached_prompt_tokens: int = 0) -> int:
        """Return the operations that one request needs, over all GPUs together.

        The last output token is never fed back; the output projection is computed once per output token, not for the
        prompt's other positions; what a cache held is not computed.

        Args:
            prompt_tokens: Ids of the prompt, without padding.
            output_tokens: Ids generated, at least 1 (0 gives 0).
            cached_prompt_tokens: Tokens of the prompt, served from a cache; at least one position is always computed.

        Source: Kaplan et al., arXiv 2001.08361, section 2.1 (2 × weights per token), with attention counted exactly.
        """
        if output_tokens < 1:
            return 0
        cached = min(cached_prompt_tokens, prompt_tokens - 1)
        positions = prompt_tokens - cached + output_tokens - 1
        pairs = 0
        for window, layers in self._layers_by_window.items():
            pairs += layers * (_pairs(prompt_tokens + output_tokens - 1, window) - _pairs(cached, window))
        attention = 4 * self.heads * self.head_size * pairs
        return 2 * self._active_block_weights * positions + 2 * self.embedding * output_tokens + attention

    def kv_bytes_read(self, *, prompt_tokens: int, output_tokens: int, dtype: str) -> float:
        """Return the bytes of keys and values that one request's decode steps must read, at least; over all GPUs.

        Each output token after the first reads, in every layer, the keys and values of every position it attends to.

        Args:
            dtype: Type of keys and values, as the engine names it.
        """
        if output_tokens < 1:
            return 0.0
        positions = sum(
            layers * (_pairs(prompt_tokens + output_tokens - 1, window) - _pairs(prompt_tokens, window))
            for window, layers in self._layers_by_window.items()
        )
        return positions * 2 * self.kv_heads * self.head_size * BYTES.get(dtype.removeprefix("torch."), LEAST_BYTES)

    @property
    def _layers_by_window(self) -> Counter[int | None]:
        return Counter(layer.window for layer in self.layers)


def _pairs(positions: int, window: int | None) -> int:
    """(query, key) pairs of the first positions, each with itself and what came before it, within a window."""
    growing = positions if window is None else min(positions, window)
    return growing * (growing + 1) // 2 + (positions - growing) * growing


def _ends(config: Mapping[str, Any], hidden: int, *, tied: bool) -> dict[str, Any]:
    """Return the fields that all families read from the same keys.

    `context_tokens` of the runners' `checkpoint` derives the same `max_context` from transformers' configs; one table
    of cases tests both.
    """
    embedding = hidden * config["vocab_size"]
    max_context: int | None = config.get("max_position_embeddings", config.get("n_positions"))
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if max_context is not None and isinstance(rope, dict):
        reaches, original = [], config.get("original_max_position_embeddings")
        # Each kind of layers may have a scaling of its own; the model reaches as far as all of them do.
        for scaling in [each for each in rope.values() if isinstance(each, dict)] or [rope]:
            trained = original or scaling.get("original_max_position_embeddings") or max_context
            factor = scaling.get("factor") or 1
            stretches = scaling.get("rope_type", scaling.get("type")) in STRETCHED and isinstance(factor, int | float)
            possible = stretches and isinstance(trained, int) and trained <= LARGEST and 1 <= factor <= LARGEST
            reaches.append(max(max_context, int(trained * factor)) if possible else max_context)
        max_context = min(reaches)
    return {
        "hidden": hidden,
        "vocab": config["vocab_size"],
        "embedding": embedding,
        "head": 0 if config.get("tie_word_embeddings", tied) else embedding,
        "max_context": max_context,
        "dtype": str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        "quantization": dict(config.get("quantization_config") or {}),
    }


def _windows(config: Mapping[str, Any], layers: int) -> list[int | None]:
    """Each layer's window; None where it sees all."""
    kind, kinds = config["model_type"], config.get("layer_types")
    if kind == "gpt_oss":
        kinds = kinds or [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
        return [config["sliding_window"] if each == "sliding_attention" else None for each in kinds]
    window = config.get("sliding_window", WINDOW.get(kind))
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return [None] * layers
    if kind == "llama":
        raise UnknownArchitectureError(f"a Llama has no window, and this config.json says {window} tokens")
    if kind not in ("qwen2", "qwen3"):
        return [window] * layers
    if kinds:
        return [window if each == "sliding_attention" else None for each in kinds]
    first = config.get("max_window_layers", FIRST_WINDOWED_LAYER)
    return [window if layer >= first else None for layer in range(layers)]


def _gated_mlp(config: Mapping[str, Any], layer: int) -> tuple[Layer, int]:
    """Return the weights of one layer's MLP, and how many values one token has in it."""
    hidden = config["hidden_size"]
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    step = config.get("decoder_sparse_step", 1)
    if not experts or layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step:
        width = config["intermediate_size"]
        biases = 2 * width + hidden if config.get("mlp_bias") else 0
        return Layer(dense=GATED * hidden * width, other=biases), GATED * width
    width, routed = config.get("moe_intermediate_size") or config["intermediate_size"], config["num_experts_per_tok"]
    each = GATED * hidden * width
    biases = experts * (2 * width + hidden + 1) if config["model_type"] == "gpt_oss" else 0
    return Layer(hidden * experts, biases, experts * each, routed * each), GATED * width * routed


def _llama(config: Mapping[str, Any]) -> Architecture:
    """Grouped-query attention and a gated MLP, dense or routed to experts; gpt-oss adds biases and attention sinks."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or hidden // heads
    kind = config["model_type"]
    everywhere = kind == "gpt_oss" or config.get("attention_bias")
    other = 2 * hidden + (2 * size if kind in ("qwen3", "qwen3_moe") else 0) + (heads if kind == "gpt_oss" else 0)
    other += (heads + 2 * kv_heads) * size if everywhere or kind == "qwen2" else 0
    other += hidden if everywhere and kind != "qwen2" else 0
    attention = 2 * hidden * size * (heads + kv_heads)
    mlps = [_gated_mlp(config, layer) for layer in range(layers)]
    return Architecture(
        layers=tuple(
            replace(mlp, dense=attention + mlp.dense, other=other + mlp.other, window=window)
            for (mlp, _), window in zip(mlps, _windows(config, layers), strict=True)
        ),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        mlp_width=config.get("moe_intermediate_size") or config["intermediate_size"],
        mlp_values=max(values for _, values in mlps),
        final=hidden,
        **_ends(config, hidden, tied=False),
    )


def _falcon(config: Mapping[str, Any]) -> Architecture:
    """Attention and a plain MLP side by side; multi-query in the first design, grouped in the second."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    grouped = config.get("new_decoder_architecture", False)
    kv_heads = config.get("num_kv_heads") or heads if grouped else 1 if config.get("multi_query", True) else heads
    size, width = hidden // heads, config.get("ffn_hidden_size") or 4 * hidden
    norms = 1 if not grouped and config.get("parallel_attn", True) else config.get("num_ln_in_parallel_attn") or 2
    biases = (heads + 2 * kv_heads) * size + width + 2 * hidden if config.get("bias") else 0
    layer = Layer(
        dense=2 * hidden * size * (heads + kv_heads) + PLAIN * hidden * width, other=2 * norms * hidden + biases
    )
    return Architecture(
        layers=(layer,) * config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        mlp_width=width,
        mlp_values=PLAIN * width,
        final=2 * hidden,
        **_ends(config, hidden, tied=True),
    )


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    """Multi-head attention, a plain MLP, learned positions, biases everywhere."""
    hidden, heads = config["n_embd"], config["n_head"]
    width, positions = config.get("n_inner") or 4 * hidden, hidden * config.get("n_positions", GPT2_POSITIONS)
    layer = Layer(dense=4 * hidden * hidden + PLAIN * hidden * width, other=9 * hidden + width)
    return Architecture(
        layers=(layer,) * config["n_layer"],
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        mlp_width=width,
        mlp_values=PLAIN * width,
        final=2 * hidden + positions,
        positions=positions,
        **_ends(config, hidden, tied=True),
    )


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Architecture]] = {
    **dict.fromkeys(LLAMA_LIKE, _llama),
    "falcon": _falcon,
    "gpt2": _gpt2,
}
