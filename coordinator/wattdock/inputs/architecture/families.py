"""Families of decoders: from the keys of a stranger's config.json to weights, layer by layer, or why not. Pure.

Source: keys, defaults and parameters as in the configuration and modelling classes of each `model_type` in
transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wattdock.errors import UnknownArchitectureError
from wattdock.inputs.architecture.model import Architecture, Layer
from wattdock_proto.context import model_context, text_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Matrices of an MLP: gate, up and down; or up and down.
GATED, PLAIN = 3, 2
MLA = ("deepseek_v2", "deepseek_v3")
NO_WINDOWS = ("llama", "gemma", "granite", "granitemoe", "qwen3_next", *MLA)
GATED_KINDS = (
    *NO_WINDOWS,
    *("gemma2", "gemma3_text", "gpt_oss", "mistral", "mixtral", "phi3"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
)
# Kinds with windows in all layers but each second or sixth.
FULL_EVERY = {"gpt_oss": 2, "gemma2": 2, "gemma3_text": 6}
# Kinds that norm queries and keys, that norm what a layer adds, too, and that tie their output projection.
QK_NORMS, POST_NORMS = ("qwen3", "qwen3_moe", "qwen3_next", "gemma3_text"), ("gemma2", "gemma3_text")
TIED = ("gemma", "gemma2", "gemma3_text")
# Values of keys that a published config.json leaves out.
WINDOW = dict.fromkeys(("mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"), 4096)
LEFT_OUT: dict[str, dict[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_next": {"head_dim": 256},
}
# Keys with the number of experts; kinds whose classes have no biases, whatever their config.json says.
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
UNBIASED_ATTENTION, UNBIASED_MLP = ("phi3", "qwen2", "qwen2_moe", "mistral", "mixtral"), ("deepseek_v3",)
FIRST_WINDOWED_LAYER, GPT2_POSITIONS = 28, 1024


def _ends(config: Mapping[str, Any], hidden: int, *, tied: bool) -> dict[str, Any]:
    """Return the fields that all families read from the same keys."""
    embedding = hidden * config["vocab_size"]
    return {
        "hidden": hidden,
        "vocab": config["vocab_size"],
        "embedding": embedding,
        "head": 0 if config.get("tie_word_embeddings", tied) else embedding,
        "max_context": model_context(config),
        "dtype": str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        "quantization": dict(config.get("quantization_config") or {}),
    }


def _windows(config: Mapping[str, Any], layers: int) -> list[int | None]:
    """Each layer's window; None where it sees all."""
    kind, kinds = config["model_type"], config.get("layer_types")
    if every := FULL_EVERY.get(kind):
        every = config.get("sliding_window_pattern") or every
        window = config.get("sliding_window", WINDOW[kind]) if kind in WINDOW else config["sliding_window"]
        kinds = kinds or ["" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers)]
        return [window if each == "sliding_attention" else None for each in kinds]
    window = config.get("sliding_window", WINDOW.get(kind))
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return [None] * layers
    if kind in NO_WINDOWS:
        raise UnknownArchitectureError(f"a {kind} model has no window, and this config.json says {window} tokens")
    if kind not in ("qwen2", "qwen2_moe", "qwen3"):
        return [window] * layers
    if kinds:
        return [window if each == "sliding_attention" else None for each in kinds]
    first = config.get("max_window_layers", FIRST_WINDOWED_LAYER)
    return [window if layer >= first else None for layer in range(layers)]


def _gated_mlp(config: Mapping[str, Any], layer: int) -> tuple[Layer, int]:
    """Return the weights of one layer's MLP, and how many values one token has in it."""
    hidden, kind = config["hidden_size"], config["model_type"]
    experts = next((count for key in EXPERTS if (count := config.get(key))), 0)
    dense = layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % config.get("decoder_sparse_step", 1)
    if not experts or dense or layer < (config.get("first_k_dense_replace") or 0):
        width = config["intermediate_size"]
        biases = 2 * width + hidden if config.get("mlp_bias") and kind not in UNBIASED_MLP else 0
        return Layer(dense=GATED * hidden * width, other=biases), GATED * width
    width, routed = config.get("moe_intermediate_size") or config["intermediate_size"], config["num_experts_per_tok"]
    each = GATED * hidden * width
    biases = experts * (2 * width + hidden + 1) if kind == "gpt_oss" else 0
    # Experts that every token meets: DeepSeek's are as wide as some others, Qwen's has a gate.
    gated_width = config["shared_expert_intermediate_size"] if kind in ("qwen2_moe", "qwen3_next") else 0
    shared = GATED * ((config.get("n_shared_experts") or 0) * width + gated_width) + (gated_width > 0)
    values = GATED * (width * routed + gated_width)
    return Layer(hidden * (experts + shared), biases, experts * each, routed * each), values


def _attention(config: Mapping[str, Any], heads: int, kv_heads: int, size: int) -> Layer:
    """Grouped-query attention; gpt-oss adds sinks, and Qwen3-Next a gate as wide as the queries."""
    hidden, kind = config["hidden_size"], config["model_type"]
    queries = heads * (2 if kind == "qwen3_next" else 1)
    everywhere = kind == "gpt_oss" or (config.get("attention_bias") and kind not in UNBIASED_ATTENTION)
    inward = kind == "qwen2" or (kind == "qwen2_moe" and config.get("qkv_bias", True))
    other = (2 * size if kind in QK_NORMS else 0) + (heads if kind == "gpt_oss" else 0)
    other += (queries + 2 * kv_heads) * size if everywhere or inward else 0
    other += hidden if everywhere else 0
    return Layer(dense=hidden * size * (queries + heads + 2 * kv_heads), other=other)


def _latent_attention(config: Mapping[str, Any], heads: int) -> Layer:
    """Multi-head latent attention: queries, too, may come from a latent."""
    hidden, queries, latent = config["hidden_size"], config.get("q_lora_rank"), config["kv_lora_rank"]
    rotary, plain, value = (config[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    wide = heads * (plain + rotary)
    dense = queries * (hidden + wide) if queries else hidden * wide
    dense += hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    biases = (queries or 0) + latent + rotary + hidden if config.get("attention_bias") else 0
    return Layer(dense=dense, other=(queries or 0) + latent + biases)


def _delta_net(config: Mapping[str, Any]) -> Layer:
    """Linear attention of Qwen3-Next: a gated delta rule behind a short convolution."""
    hidden, key_heads, heads = config["hidden_size"], config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    keys, values, kernel = key_heads * key, heads * value, config["linear_conv_kernel_dim"]
    mixed = 2 * keys + values
    dense = hidden * (mixed + values + 2 * heads) + kernel * mixed + values * hidden
    return Layer(dense, 2 * heads + value, attends=False, state=heads * key * value, tail=kernel * mixed)


def _gated(config: Mapping[str, Any]) -> Architecture:
    """Attention of some kind, then a gated MLP, dense or routed to experts."""
    kind = config["model_type"]
    config = {**LEFT_OUT.get(kind, {}), **config}
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or hidden // heads
    sizes = {"key_size": size, "value_size": size}
    if kind in MLA:
        kv_heads, rotary = heads, config["qk_rope_head_dim"]
        sizes = {"key_size": config["qk_nope_head_dim"] + rotary, "value_size": config["v_head_dim"]}
        sizes["latent"] = config["kv_lora_rank"] + rotary
        attention = _latent_attention(config, heads)
    else:
        attention = _attention(config, heads, kv_heads, size)
    mixers = [replace(attention, window=window) for window in _windows(config, layers)]
    if kind == "qwen3_next":
        every, linear = config.get("full_attention_interval", 4), _delta_net(config)
        kinds = config.get("layer_types") or ["" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
        mixers = [linear if each == "linear_attention" else attention for each in kinds]
    mlps = [_gated_mlp(config, layer) for layer in range(layers)]
    norms = hidden * (4 if kind in POST_NORMS else 2)
    return Architecture(
        layers=tuple(
            replace(
                mixer,
                dense=mixer.dense + mlp.dense,
                other=norms + mixer.other + mlp.other,
                experts=mlp.experts,
                active_experts=mlp.active_experts,
            )
            for mixer, (mlp, _) in zip(mixers, mlps, strict=True)
        ),
        heads=heads,
        kv_heads=kv_heads,
        **sizes,
        mlp_width=config.get("moe_intermediate_size") or config["intermediate_size"],
        mlp_values=max(values for _, values in mlps),
        final=hidden,
        **_ends(config, hidden, tied=kind in TIED),
    )


def _plain(layers: int, *, heads: int, kv_heads: int, width: int, other: int, **ends: Any) -> Architecture:
    """Equal layers of attention and a plain MLP, with `other` norms and biases each, and their `_ends`."""
    size = ends["hidden"] // heads
    dense = 2 * ends["hidden"] * size * (heads + kv_heads) + PLAIN * ends["hidden"] * width
    return Architecture(
        layers=(Layer(dense, other),) * layers,
        heads=heads,
        kv_heads=kv_heads,
        key_size=size,
        value_size=size,
        mlp_width=width,
        mlp_values=PLAIN * width,
        **ends,
    )


def _phi(config: Mapping[str, Any]) -> Architecture:
    """Attention and a plain MLP side by side behind one norm, biases everywhere, the output projection included."""
    hidden, heads, width = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    kv_heads, size = config.get("num_key_value_heads") or heads, hidden // heads
    norms = 2 * hidden + (4 * size if config.get("qk_layernorm") else 0)
    other = norms + (heads + 2 * kv_heads) * size + width + 2 * hidden
    ends = {"final": 2 * hidden + config["vocab_size"], **_ends(config, hidden, tied=False)}
    return _plain(config["num_hidden_layers"], heads=heads, kv_heads=kv_heads, width=width, other=other, **ends)


def _falcon(config: Mapping[str, Any]) -> Architecture:
    """Attention and a plain MLP side by side; multi-query in the first design, grouped in the second."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    grouped = config.get("new_decoder_architecture", False)
    kv_heads = config.get("num_kv_heads") or heads if grouped else 1 if config.get("multi_query", True) else heads
    size, width = hidden // heads, config.get("ffn_hidden_size") or 4 * hidden
    norms = 1 if not grouped and config.get("parallel_attn", True) else config.get("num_ln_in_parallel_attn") or 2
    biases = (heads + 2 * kv_heads) * size + width + 2 * hidden if config.get("bias") else 0
    ends = {"other": 2 * norms * hidden + biases, "final": 2 * hidden, **_ends(config, hidden, tied=True)}
    return _plain(config["num_hidden_layers"], heads=heads, kv_heads=kv_heads, width=width, **ends)


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    """Multi-head attention, a plain MLP, learned positions, biases everywhere."""
    hidden, heads = config["n_embd"], config["n_head"]
    width, positions = config.get("n_inner") or 4 * hidden, hidden * config.get("n_positions", GPT2_POSITIONS)
    ends = {"final": 2 * hidden + positions, "positions": positions, **_ends(config, hidden, tied=True)}
    return _plain(config["n_layer"], heads=heads, kv_heads=heads, width=width, other=9 * hidden + width, **ends)


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Architecture]] = {
    **dict.fromkeys(GATED_KINDS, _gated),
    "falcon": _falcon,
    "gpt2": _gpt2,
    "phi": _phi,
}

# More layers than any model has, public models some hundred: engines make lists of them.
MOST_LAYERS = 1_000
# More parameters than any model has, public models some 10^12.
MOST_PARAMETERS = 10**15


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes, of a multimodal model that of its language model.

    Raises:
        UnknownArchitectureError: The model type is unknown, or has no windows where the config sets one, or
            config.json leaves out a figure or says an impossible one.
    """
    whole = text_config(config)
    # Only a null window means something.
    config = {key: value for key, value in whole.items() if value is not None or key == "sliding_window"}
    if (kind := str(config.get("model_type", ""))) not in FAMILIES:
        raise UnknownArchitectureError(f"model_type {kind!r} is not known here: no FLOPs, and no memory forecast")
    try:
        layers, layer_types = config.get("num_hidden_layers", config.get("n_layer", 0)), config.get("layer_types", ())
        if layers > MOST_LAYERS or len(layer_types) not in (0, layers):
            raise UnknownArchitectureError(f"config.json says {layers:,} layers and {len(layer_types):,} layer_types")
        model = FAMILIES[kind](config)
        sizes = (model.hidden, model.vocab, model.heads, model.kv_heads, model.key_size, model.value_size)
        windows = (layer.window or 1 for layer in model.layers)
        is_possible = min(*sizes, model.mlp_width, *windows) > 0 and model.parameters <= MOST_PARAMETERS
    except KeyError as error:
        raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UnknownArchitectureError(f"config.json says what cannot be: {error}") from error
    if not is_possible:
        raise UnknownArchitectureError("config.json says sizes that cannot be")
    return model
