"""Read a config.json of a stranger into an architecture, or say why it is unknown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.errors import UnknownArchitectureError
from wattdock.inputs.architecture.families import FAMILIES
from wattdock_proto.context import LARGEST, text_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.inputs.architecture.model import Architecture

# Keys of config.json that are read here, by the type of their values.
KINDS: dict[type, tuple[str, ...]] = {
    int: (
        *("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim", "ffn_hidden_size"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "num_experts_per_tok"),
        *("num_local_experts", "num_experts", "decoder_sparse_step", "sliding_window", "max_window_layers"),
        *("max_position_embeddings", "num_ln_in_parallel_attn"),
        *("n_routed_experts", "n_shared_experts", "first_k_dense_replace", "shared_expert_intermediate_size"),
        *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
        *("linear_conv_kernel_dim", "full_attention_interval", "sliding_window_pattern"),
        *("n_embd", "n_head", "n_inner", "n_layer", "n_positions"),
    ),
    list: ("layer_types", "mlp_only_layers"),
    dict: ("quantization_config",),
    str: ("model_type",),
}
# Of these, whole numbers that are 1 or more.
NOT_ZERO = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "decoder_sparse_step"),
    *("full_attention_interval", "sliding_window_pattern"),
    *("n_embd", "n_head", "n_layer"),
)
# More layers than any model has, public models some hundred: engines make lists of them.
MOST_LAYERS = 1_000


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes, of a multimodal model that of its language model.

    Raises:
        UnknownArchitectureError: The model type is unknown, or has no windows where the config sets one, or
            config.json leaves out a figure or says an impossible one.
    """
    whole = text_config(config)
    # Only a null window means something.
    config = {key: value for key, value in whole.items() if value is not None or key == "sliding_window"}
    # Another kind may give these keys another meaning.
    if isinstance(kind := config.get("model_type", ""), str) and kind not in FAMILIES:
        raise UnknownArchitectureError(f"model_type {kind!r} is not known here: no FLOPs, and no memory forecast")
    for expected, keys in KINDS.items():
        for key in keys:
            value = config.get(key)
            possible = not isinstance(value, int) or (key in NOT_ZERO) <= value <= LARGEST
            if value is not None and not (isinstance(value, expected) and possible):
                raise UnknownArchitectureError(f"config.json says {key} = {str(value)[:40]}")
    layers, layer_types = config.get("num_hidden_layers", config.get("n_layer", 0)), config.get("layer_types", ())
    if layers > MOST_LAYERS or len(layer_types) not in (0, layers):
        raise UnknownArchitectureError(f"config.json says {layers:,} layers and {len(layer_types):,} layer_types")
    try:
        return FAMILIES[kind](config)
    except KeyError as error:
        raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error
