"""Arithmetic counted from token counts, beside what torch counts operation by operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.architectures import CONFIGS, EXPERTS, LATENT, LENGTHS, SMALL, WITH_FLOPS
from refused import raises

from wattdock.errors import UnknownArchitectureError
from wattdock.inputs.architecture import architecture_of


@pytest.mark.parametrize("name", WITH_FLOPS)
def test_every_form_of_decoder_is_counted_exactly_as_torch_counts_it(
    name: str, theirs: dict[str, dict[str, Any]]
) -> None:
    """But for what a prompt's tokens cannot see: torch multiplies the whole square of a prompt's attention.

    From a latent, transformers makes all earlier keys and values anew in each decode step.
    """
    config = CONFIGS[name]
    model = architecture_of(config)
    expansion = 0
    if model.latent:
        expansion = config["kv_lora_rank"] * model.heads * (config["qk_nope_head_dim"] + model.value_size)
    each = 2 * model.heads * (model.key_size + model.value_size)
    ours = [
        model.request_flops(prompt_tokens=prompt, output_tokens=out)
        + sum(each * unseen_pairs(prompt, layer.window) for layer in model.layers)
        + 2 * expansion * len(model.layers) * sum(range(prompt, prompt + out - 1))
        for prompt, out in LENGTHS
    ]
    assert ours == theirs[name]["flops"]


def unseen_pairs(prompt: int, window: int | None) -> int:
    """Return how many tokens a prompt's tokens cannot see, later ones and those outside of a window, all together."""
    return sum(prompt - min(seen, window or prompt) for seen in range(1, prompt + 1))


def test_the_causal_convention_leaves_out_what_a_prompt_s_tokens_cannot_see() -> None:
    """Half of the prompt's square, with its diagonal, in every layer and head; of nine tokens eight are fed back."""
    model = architecture_of(CONFIGS["dense"])
    weights, answers = 2 * (model.active_weights - model.embedding) * 108, 2 * model.embedding * 9
    attention = 4 * 3 * 4 * 16 * (100 * 101 // 2 + sum(range(101, 109)))
    assert model.request_flops(prompt_tokens=100, output_tokens=9) == weights + answers + attention


@given(prompt=st.integers(2, 300), output=st.integers(1, 50), cached=st.integers(0, 299))
def test_a_cached_prompt_costs_what_is_left_of_it(prompt: int, output: int, cached: int) -> None:
    """A request with a cached beginning and the request that filled the cache add up to the whole."""
    model = architecture_of(CONFIGS["grouped queries"])
    cached = min(cached, prompt - 1)
    whole = model.request_flops(prompt_tokens=prompt, output_tokens=output)
    rest = model.request_flops(prompt_tokens=prompt, output_tokens=output, cached_prompt_tokens=cached)
    beginning = model.request_flops(prompt_tokens=cached, output_tokens=1) - 2 * model.embedding if cached else 0
    assert whole == rest + beginning


def test_experts_that_a_token_is_not_routed_to_are_weights_and_not_work() -> None:
    """Four experts, two of them met: the total has two more per layer."""
    model = architecture_of(CONFIGS["experts"])
    assert model.total_weights - model.embedding - model.active_weights == 3 * 2 * 3 * 64 * 96


def test_a_step_reads_each_expert_once_and_the_more_the_more_tokens_share_it() -> None:
    """Mixtral 8x7B in 16 bits: two of eight experts for a token alone, nearly all of them for 64; all its 46.7e9."""
    model = architecture_of(CONFIGS["mixtral-8x7b"])
    assert model.weights_read(1) == pytest.approx(model.active_weights)
    reads = [round(2 * model.weights_read(tokens) / 1e9, 1) for tokens in (1, 2, 8, 64)]
    each, rest = 2 * 32 * 3 * 4096 * 14336 / 1e9, 2 * (32 * (2 * 4096 * 128 * 40 + 4096 * 8) + 4096 * 32000) / 1e9
    assert reads == [round(rest + each * experts, 1) for experts in (2, 3.5, 7.199, 8)]
    assert reads[-1] == 93.1
    dense = architecture_of(CONFIGS["dense"])
    assert dense.weights_read(64) == dense.active_weights


def test_deepseek_v3_is_as_large_as_published() -> None:
    """671e9 parameters without the layer that guesses tokens, 37e9 of them active; 576 values per token and layer."""
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    wide = {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129_280}
    many = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "first_k_dense_replace": 3}
    routed = {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1}
    model = architecture_of({"model_type": "deepseek_v3", **latent, **wide, **many, **routed})
    assert (round(model.parameters / 1e9, 1), round(model.active_weights / 1e9, 1)) == (671.0, 36.6)
    assert [model.kv_values(tensor) * len(model.layers) * 2 for tensor in (1, 8)] == [70_272, 70_272]


def test_gemma_3_is_what_its_short_config_leaves_to_transformers() -> None:
    """The published text part of the 4B model, whose five layers of six have a window of 1,024 tokens."""
    said = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    model = architecture_of({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **said}})
    assert (model.parameters, model.heads, model.kv_heads, model.max_context) == (3_880_263_168, 8, 4, 131_072)
    assert [layer.window for layer in model.layers[:7]] == [*[1024] * 5, None, 1024]


def test_linear_attention_has_a_state_for_each_request_instead_of_keys_and_values() -> None:
    """Two layers of three: 4 heads of 8 × 12 in 32 bits, 4 positions of 80 values; read and written at each token."""
    model = architecture_of(CONFIGS["linear attention"])
    assert [(layer.attends, layer.state, layer.tail) for layer in model.layers] == [(False, 384, 320)] * 2 + [
        (True, 0, 0)
    ]
    read = 23 * 2 * 2 * 16 * 2 + 2 * 2 * (384 * 4 + 320 * 2)
    assert model.kv_bytes_read(prompt_tokens=10, output_tokens=3, dtype="bfloat16") == read
    weights = sum(layer.dense + layer.active_experts for layer in model.layers)
    attention, states = 4 * 4 * 16 * 12 * 13 // 2, 2 * 3 * 384 * 2 * 12
    whole = 2 * weights * 12 + 2 * model.embedding * 3 + attention + states
    assert model.request_flops(prompt_tokens=10, output_tokens=3) == whole


def test_a_tied_embedding_is_computed_and_held_once() -> None:
    """The output projection is work; a table looked up is not."""
    tied, own = architecture_of(CONFIGS["tied embeddings"]), architecture_of(CONFIGS["dense"])
    assert tied.active_weights == own.active_weights
    assert own.total_weights - tied.total_weights == 64 * 128


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "mistral"}, [4096] * 3),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 3),
        ({"model_type": "qwen2", "sliding_window": 8}, [None] * 3),
        ({"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True}, [None] * 3),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, [None, 4096, 4096]),
    ],
)
def test_what_a_config_leaves_out_of_its_windows_is_what_transformers_takes(
    config: dict[str, Any], windows: list[int | None]
) -> None:
    """MistralConfig's 4096 tokens; Qwen's are off, and where they are on, its first 28 layers have none."""
    assert [layer.window for layer in architecture_of(SMALL | config).layers] == windows


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2' is not known here"),
        ({"text_config": {"model_type": "brand_new"}}, "model_type 'brand_new' is not known here: no FLOPs, and no"),
        ({**LATENT, "model_type": "deepseek_v3", "kv_lora_rank": None}, "kv_lora_rank"),
        ({**CONFIGS["dense"], "sliding_window": 4096}, "4096"),
        ({"model_type": "llama", "num_hidden_layers": 2}, "hidden_size"),
        ({**SMALL, **EXPERTS, "model_type": "gpt_oss", "num_local_experts": 4}, "sliding_window"),
        ({**SMALL, "model_type": ["llama"]}, "['llama']"),
        ({**SMALL, "model_type": "llama", "hidden_size": "8"}, "cannot be"),
        ({**SMALL, "model_type": "llama", "hidden_size": 10**400}, "cannot be"),
        ({**SMALL, "model_type": "llama", "num_attention_heads": 0}, "cannot be"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": 10**9}, "1,000,000,000"),
        ({**SMALL, "model_type": "qwen3", "layer_types": ["full_attention"]}, "1 layer_types"),
        ({**SMALL, "model_type": "llama", "quantization_config": "fp8"}, "cannot be"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(config: dict[str, Any], reason: str) -> None:
    """A guess would look like a figure."""
    with raises(UnknownArchitectureError, reason):
        architecture_of(config)


@pytest.mark.parametrize(
    ("dtype", "size"), [("torch.float32", 4), ("bfloat16", 2), ("float16", 2), ("fp8_e4m3", 1), ("of engines", 0.5)]
)
def test_keys_and_values_are_read_once_per_later_token_in_the_type_of_the_cache(dtype: str, size: float) -> None:
    """Three tokens after a prompt of ten: the second reads 11 positions, the third 12; 2 × 4 heads × 16 × 3 layers.

    An unknown type is taken for the narrowest, so that the bytes stay the least.
    """
    model = architecture_of(CONFIGS["dense"])
    assert model.kv_bytes_read(prompt_tokens=10, output_tokens=3, dtype=dtype) == 23 * 2 * 4 * 16 * 3 * size


@given(prompt=st.integers(1, 60), output=st.integers(1, 20), cached=st.integers(0, 59), window=st.integers(1, 90))
def test_a_window_bounds_what_each_position_attends_to(prompt: int, output: int, cached: int, window: int) -> None:
    """Position by position, in the layers that have one; the others see all, and decode reads what it attends to."""
    config = CONFIGS["experts and windows"] | {"sliding_window": window}
    model = architecture_of(config)
    cached = min(cached, prompt - 1)
    layers = tuple(replace(layer, dense=0, active_experts=0) for layer in model.layers)
    alone = replace(model, layers=layers, embedding=0)
    found = alone.request_flops(prompt_tokens=prompt, output_tokens=output, cached_prompt_tokens=cached)
    last = prompt + output - 1
    pairs = sum(2 * min(position + 1, window) + position + 1 for position in range(cached, last))
    assert found == 4 * 4 * 16 * pairs
    read = sum(2 * min(position + 1, window) + position + 1 for position in range(prompt, last))
    assert model.kv_bytes_read(prompt_tokens=prompt, output_tokens=output, dtype="bfloat16") == read * 2 * 2 * 16 * 2
