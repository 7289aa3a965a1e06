"""Configurations of decoders, small ones of every form and those of known models, and what is counted of them."""

from __future__ import annotations

from typing import Any

from wattdock.inputs import presets

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 128,
}
EXPERTS = {"num_experts_per_tok": 2, "num_key_value_heads": 2}
PLAIN = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128}
# Forms of decoders that models have, in small.
FORMS: dict[str, dict[str, Any]] = {
    "dense": {**SMALL, "model_type": "llama"},
    "grouped queries": {**SMALL, "model_type": "llama", "num_key_value_heads": 1},
    "tied embeddings": {**SMALL, "model_type": "llama", "tie_word_embeddings": True},
    "wide heads": {**SMALL, "model_type": "qwen3", "head_dim": 32},
    "experts": {**SMALL, **EXPERTS, "model_type": "mixtral", "num_local_experts": 4, "sliding_window": None},
    "experts in every other layer": {
        **SMALL,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "moe_intermediate_size": 48,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [],
    },
    "experts and windows": {
        **SMALL,
        **EXPERTS,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "windows in every layer": {**SMALL, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 8},
    "windows in later layers": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "windows that are off": {**SMALL, "model_type": "qwen3", "sliding_window": 8},
    "windows and experts in every layer": {
        **SMALL,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "moe_intermediate_size": 48,
        "use_sliding_window": True,
        "sliding_window": 8,
    },
    "multi-query": {**PLAIN, "model_type": "falcon", "multi_query": True},
    "multi-head": {**PLAIN, "model_type": "falcon", "multi_query": False, "parallel_attn": False, "alibi": True},
    "grouped queries, plain MLP": {
        **PLAIN,
        "model_type": "falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 160,
        "tie_word_embeddings": False,
    },
    "learned positions": {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    "biased and tied": {**SMALL, "model_type": "qwen2", "tie_word_embeddings": True},
    "biases everywhere": {**SMALL, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
}
CONFIGS = FORMS | {name: dict(known.config) for name, known in presets().items()}
# Prompt and output tokens of the requests whose operations torch counts.
LENGTHS = [(7, 5), (1, 1), (40, 3)]
WITH_FLOPS = (*FORMS, "llama-3.1-8b")
