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
# Forms whose reference of keys and values, or of operations, differs from what is counted; see the tests.
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2}
LATENT: dict[str, Any] = {
    **PLAIN,
    "intermediate_size": 96,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
NEXT = {
    **SMALL,
    **EXPERTS,
    "model_type": "qwen3_next",
    "num_experts": 4,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
}
MOE = {"num_experts": 4, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80}
FORMS |= {
    "latent attention": {**LATENT, "model_type": "deepseek_v3"},
    "latent attention, whole queries": {
        **LATENT,
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "greedy",
    },
    "latent attention, biased": {**LATENT, "model_type": "deepseek_v3", "attention_bias": True},
    "more norms, tied": {**SMALL, "model_type": "gemma", "head_dim": 24},
    "more norms and windows": {**SMALL, "model_type": "gemma2", "num_key_value_heads": 2, "sliding_window": 8},
    "more norms and windows by a pattern": {**SMALL, **GEMMA3, "num_key_value_heads": 2},
    "fused": {**SMALL, "model_type": "phi3", "num_key_value_heads": 2, "pad_token_id": 0},
    "partly rotary": {**SMALL, "model_type": "phi", "num_key_value_heads": 2, "qk_layernorm": True},
    "multiplied": {**SMALL, "model_type": "granite", "attention_bias": True, "mlp_bias": True},
    "multiplied experts": {**SMALL, **EXPERTS, "model_type": "granitemoe", "num_local_experts": 4},
    "shared experts": {**SMALL, **EXPERTS, **MOE, "model_type": "qwen2_moe"},
    "linear attention": NEXT,
}
CONFIGS = FORMS | {name: dict(known.config) for name, known in presets().items()}
# Prompt and output tokens of the requests whose operations torch counts.
LENGTHS = [(7, 5), (1, 1), (40, 3)]
# Torch counts no products of a recurrence that is written elementwise.
WITH_FLOPS = (*(name for name in FORMS if name != "linear attention"), "llama-3.1-8b")
