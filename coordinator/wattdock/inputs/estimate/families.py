"""From a config.json to an Architecture, one function per family of models. Pure.

Source: keys, defaults and parameters as in transformers' configuration and modelling classes of each `model_type`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.inputs.estimate.architecture import Architecture, Layer, UnknownArchitectureError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GATED, PLAIN = 3, 2
# What a config.json means that leaves it out. Source: transformers' configuration classes of these kinds, and of GPT-2.
WINDOW = dict.fromkeys(("mistral", "qwen2", "qwen3", "qwen3_moe"), 4096)
FIRST_WINDOWED_LAYER, GPT2_POSITIONS = 28, 1024


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes.

    Raises:
        UnknownArchitectureError: Its kind is not known here or has no windows and this one says so, or it leaves out a
            figure.
    """
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config
    if (build := FAMILIES.get(config.get("model_type", ""))) is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnknownArchitectureError(f"model_type {config.get('model_type')!r} is not among {known}")
    try:
        return build(config)
    except KeyError as error:
        raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error


def _ends(config: Mapping[str, Any], hidden: int, *, tied: bool) -> dict[str, Any]:
    """What every family's architecture says alike."""
    embedding = hidden * config["vocab_size"]
    return {
        "hidden": hidden,
        "vocab": config["vocab_size"],
        "embedding": embedding,
        "head": 0 if config.get("tie_word_embeddings", tied) else embedding,
        "max_context": config.get("max_position_embeddings", config.get("n_positions")),
        "dtype": str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        "quantization": dict(config.get("quantization_config") or {}),
    }


def _windows(config: Mapping[str, Any], layers: int) -> list[int | None]:
    """Each layer's window; None where it sees all."""
    kind = config["model_type"]
    window = config.get("sliding_window", WINDOW.get(kind))
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return [None] * layers
    if kind == "llama":
        raise UnknownArchitectureError(f"a Llama has no window, and this one's config.json says {window} tokens")
    if kind not in ("qwen2", "qwen3"):
        return [window] * layers
    if kinds := config.get("layer_types"):
        return [window if one == "sliding_attention" else None for one in kinds]
    first = config.get("max_window_layers", FIRST_WINDOWED_LAYER)
    return [window if layer >= first else None for layer in range(layers)]


def _llama(config: Mapping[str, Any]) -> Architecture:
    """Grouped-query attention and a gated MLP, dense or routed to experts."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or hidden // heads
    kind = config["model_type"]
    bias = 1 if kind == "qwen2" or config.get("attention_bias") else 0
    out_bias = hidden if kind != "qwen2" and config.get("attention_bias") else 0
    head_norms = 2 * size if kind in ("qwen3", "qwen3_moe") else 0
    windows = _windows(config, layers)
    mlps = [_mlp(config, layer) for layer in range(layers)]
    routed = max(mlps, key=lambda one: one["values"])
    return Architecture(
        layers=tuple(
            Layer(
                attention=2 * hidden * heads * size + bias * heads * size,
                key_value=2 * kv_heads * size * (hidden + bias),
                mlp=mlp["dense"],
                experts=mlp["experts"],
                whole=2 * hidden + head_norms + out_bias + mlp["router"],
                met=2 * hidden * size * (heads + kv_heads) + mlp["met"],
                unmet=mlp["unmet"],
                kv_values=2 * kv_heads * size,
                window=window,
            )
            for mlp, window in zip(mlps, windows, strict=True)
        ),
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=routed["width"],
        head_values=heads * size,
        mlp_values=routed["values"],
        expert_values=routed["routed"],
        final=hidden,
        **_ends(config, hidden, tied=False),
    )


def _mlp(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    """One layer's gated MLP: numbers of weights, and values that one token has in it."""
    hidden = config["hidden_size"]
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    step = config.get("decoder_sparse_step", 1)
    if not experts or layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step:
        width = config["intermediate_size"]
        biases = (2 * width + hidden) if config.get("mlp_bias") else 0
        matrices = GATED * hidden * width
        return {
            "dense": matrices + biases,
            "met": matrices,
            "width": width,
            "values": GATED * width,
            **dict.fromkeys(("experts", "router", "unmet", "routed"), 0),
        }
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    return {"dense": 0, "width": width, **_experts(hidden, width, experts, config["num_experts_per_tok"])}


def _experts(hidden: int, width: int, experts: int, chosen: int) -> dict[str, int]:
    """Gated experts of one width and their router, of which a token meets `chosen`."""
    one, router = GATED * hidden * width, hidden * experts
    return {
        "experts": experts * one,
        "router": router,
        "met": router + chosen * one,
        "unmet": (experts - chosen) * one,
        "values": GATED * width * chosen,
        "routed": hidden * chosen,
    }


def _gpt_oss(config: Mapping[str, Any]) -> Architecture:
    """Alternating windows, attention sinks, biases everywhere, experts in every layer."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads, size, experts = config["num_key_value_heads"], config["head_dim"], config["num_local_experts"]
    width, mlp = config["intermediate_size"], _mlp(config, 0)
    kinds = config.get("layer_types") or [("sliding_attention", "full_attention")[one % 2] for one in range(layers)]
    return Architecture(
        layers=tuple(
            Layer(
                attention=(2 * hidden + 1) * heads * size + heads,
                key_value=2 * kv_heads * size * (hidden + 1),
                mlp=experts * (2 * width + hidden),
                experts=mlp["experts"],
                whole=3 * hidden + experts * (hidden + 1),
                met=2 * hidden * size * (heads + kv_heads) + mlp["met"],
                unmet=mlp["unmet"],
                kv_values=2 * kv_heads * size,
                window=config["sliding_window"] if kind == "sliding_attention" else None,
            )
            for kind in kinds
        ),
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=width,
        head_values=heads * size,
        mlp_values=mlp["values"],
        expert_values=mlp["routed"],
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
    bias = 1 if config.get("bias") else 0
    layer = Layer(
        attention=2 * hidden * heads * size + bias * heads * size,
        key_value=2 * kv_heads * size * (hidden + bias),
        mlp=PLAIN * hidden * width + bias * width,
        whole=2 * norms * hidden + 2 * bias * hidden,
        met=2 * hidden * size * (heads + kv_heads) + PLAIN * hidden * width,
        kv_values=2 * kv_heads * size,
        kv_repeated=heads // kv_heads if grouped else 1,
    )
    return Architecture(
        layers=(layer,) * config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=width,
        head_values=heads * size,
        mlp_values=PLAIN * width,
        branches=1 if config.get("parallel_attn", True) else 0,
        final=2 * hidden,
        **_ends(config, hidden, tied=True),
    )


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    """Multi-head attention, a plain MLP, learned positions."""
    hidden, heads = config["n_embd"], config["n_head"]
    width, positions = config.get("n_inner") or 4 * hidden, hidden * config.get("n_positions", GPT2_POSITIONS)
    layer = Layer(
        attention=2 * hidden * hidden + hidden,
        key_value=2 * hidden * (hidden + 1),
        mlp=PLAIN * hidden * width + width,
        whole=6 * hidden,
        met=4 * hidden * hidden + PLAIN * hidden * width,
        kv_values=2 * hidden,
    )
    return Architecture(
        layers=(layer,) * config["n_layer"],
        heads=heads,
        kv_heads=heads,
        mlp_width=width,
        head_values=hidden,
        mlp_values=PLAIN * width,
        final=2 * hidden + positions,
        positions=positions,
        **_ends(config, hidden, tied=True),
    )


def _striped_hyena(config: Mapping[str, Any]) -> Architecture:
    """Convolutions with a state of fixed size in most layers, attention in some; filters are left out (< 0.1 %)."""
    hidden, heads, width = config["hidden_size"], config["num_attention_heads"], config["inner_mlp_size"]
    attending = set(config["attn_layer_idxs"])
    return Architecture(
        layers=tuple(
            Layer(
                attention=2 * hidden * hidden,
                key_value=2 * hidden * hidden,
                mlp=GATED * hidden * width,
                whole=2 * hidden,
                kv_values=2 * hidden if layer in attending else 0,
            )
            for layer in range(config["num_hidden_layers"])
        ),
        heads=heads,
        kv_heads=heads,
        mlp_width=width,
        head_values=hidden,
        mlp_values=GATED * width,
        final=hidden,
        **_ends(config, hidden, tied=True),
    )


def _deepseek(config: Mapping[str, Any]) -> Architecture:
    """Latent attention (MLA): one compressed vector per token, shared by all heads; experts after the first layers."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    query = heads * (config["qk_nope_head_dim"] + rope)
    out = heads * config["v_head_dim"]
    low = config.get("q_lora_rank")
    queries, low_whole = (low * query, hidden * low + low) if low else (hidden * query, 0)
    up = latent * heads * (config["qk_nope_head_dim"] + config["v_head_dim"])
    mlps = [_deepseek_mlp(config, layer) for layer in range(config["num_hidden_layers"])]
    routed = max(mlps, key=lambda one: one["values"])
    return Architecture(
        layers=tuple(
            Layer(
                attention=queries + up + hidden * out,
                key_value=0,
                mlp=mlp["dense"],
                experts=mlp["experts"],
                whole=2 * hidden + low_whole + hidden * (latent + rope) + latent + mlp["router"],
                kv_values=latent + rope,
                kv_divides=False,
            )
            for mlp in mlps
        ),
        heads=heads,
        kv_heads=heads,
        mlp_width=config["moe_intermediate_size"],
        head_values=out,
        mlp_values=routed["values"],
        expert_values=routed["routed"],
        final=hidden,
        **_ends(config, hidden, tied=False),
    )


def _deepseek_mlp(config: Mapping[str, Any], layer: int) -> dict[str, int]:
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    if layer < config.get("first_k_dense_replace", 0):
        dense = config["intermediate_size"]
        return {"dense": GATED * hidden * dense, "experts": 0, "router": 0, "values": GATED * dense, "routed": 0}
    # transformers keeps the routing correction of DeepSeek-V3 as a buffer, not a parameter.
    routed = _experts(hidden, width, config["n_routed_experts"], config["num_experts_per_tok"])
    return {"dense": (config.get("n_shared_experts") or 0) * GATED * hidden * width, **routed}


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Architecture]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), _llama),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _deepseek),
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "stripedhyena2": _striped_hyena,
}
