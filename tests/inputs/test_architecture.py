"""Arithmetic counted from token counts, beside what torch counts operation by operation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, printed_by
from hypothesis import given
from hypothesis import strategies as st

from wattdock.inputs import Architecture, UnknownArchitectureError, presets

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
CONFIGS: dict[str, dict[str, Any]] = {
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
    "eight billion": dict(presets()["llama-3.1-8b"].config),
}


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_every_form_of_decoder_is_counted_exactly_as_torch_counts_it() -> None:
    """torch multiplies the whole square of a prompt's attention, so that convention is compared."""
    lengths = [(7, 5), (1, 1), (40, 3)]
    cases = [(name, prompt, output) for name in CONFIGS for prompt, output in lengths]
    given_to_torch = [{"config": CONFIGS[name], "prompt_tokens": s, "output_tokens": t} for name, s, t in cases]
    script = Path(__file__).with_name("flop_counter.py")
    counted = printed_by(script, json.dumps(given_to_torch), python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER)
    ours = [
        Architecture.from_config(CONFIGS[name]).request_flops(prompt_tokens=s, output_tokens=t, causal=False)
        for name, s, t in cases
    ]
    assert dict(zip(cases, ours, strict=True)) == dict(zip(cases, json.loads(counted), strict=True))


def test_the_causal_convention_leaves_out_what_a_prompt_s_tokens_cannot_see() -> None:
    """Half of the prompt's square, without its diagonal, in every layer and head."""
    model = Architecture.from_config(CONFIGS["dense"])
    whole = model.request_flops(prompt_tokens=100, output_tokens=9, causal=False)
    assert whole - model.request_flops(prompt_tokens=100, output_tokens=9) == 4 * 3 * 4 * 16 * (100 * 99 // 2)


@given(prompt=st.integers(2, 300), output=st.integers(1, 50), cached=st.integers(0, 299))
def test_a_cached_prompt_costs_what_is_left_of_it(prompt: int, output: int, cached: int) -> None:
    """A request with a cached beginning and the request that filled the cache add up to the whole."""
    model = Architecture.from_config(CONFIGS["grouped queries"])
    cached = min(cached, prompt - 1)
    whole = model.request_flops(prompt_tokens=prompt, output_tokens=output)
    rest = model.request_flops(prompt_tokens=prompt, output_tokens=output, cached_prompt_tokens=cached)
    beginning = model.request_flops(prompt_tokens=cached, output_tokens=1) - 2 * model.embedding if cached else 0
    assert whole == rest + beginning


def test_experts_that_a_token_is_not_routed_to_are_weights_and_not_work() -> None:
    """Four experts, two of them met: the total has two more per layer."""
    model = Architecture.from_config(CONFIGS["experts"])
    assert model.total_weights - model.embedding - model.active_weights == 3 * 2 * 3 * 64 * 96


def test_a_tied_embedding_is_computed_and_held_once() -> None:
    """The output projection is work; a table looked up is not."""
    tied, own = Architecture.from_config(CONFIGS["tied embeddings"]), Architecture.from_config(CONFIGS["dense"])
    assert tied.active_weights == own.active_weights
    assert own.total_weights - tied.total_weights == 64 * 128


def test_learned_positions_are_held() -> None:
    """GPT-2's table of 1024 positions."""
    gpt2 = Architecture.from_config(CONFIGS["learned positions"])
    assert gpt2.total_weights == 3 * 12 * 64**2 + 64 * 128 + 64 * 1024


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
    assert [layer.window for layer in Architecture.from_config(SMALL | config).layers] == windows


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba"}, "'mamba' is not among"),
        ({**CONFIGS["dense"], "sliding_window": 4096}, "Llama has no window, .* says 4096"),
        ({"model_type": "llama", "num_hidden_layers": 2}, "does not tell hidden_size"),
        ({**SMALL, **EXPERTS, "model_type": "gpt_oss", "num_local_experts": 4}, "does not tell sliding_window"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(config: dict[str, Any], reason: str) -> None:
    """A guess would look like a figure."""
    with pytest.raises(UnknownArchitectureError, match=reason):
        Architecture.from_config(config)


def test_keys_and_values_are_read_once_per_later_token() -> None:
    """Three tokens after a prompt of ten: the second reads 11 positions, the third 12; 2 × 4 heads × 16 × 3 layers."""
    model = Architecture.from_config(CONFIGS["dense"])
    assert model.kv_bytes_read(prompt_tokens=10, output_tokens=3, bytes_per_value=2) == 23 * 2 * 4 * 16 * 3 * 2


@given(prompt=st.integers(1, 60), output=st.integers(1, 20), cached=st.integers(0, 59), window=st.integers(1, 90))
def test_a_window_bounds_what_each_position_attends_to(prompt: int, output: int, cached: int, window: int) -> None:
    """Position by position, in the layers that have one; the others see all, and decode reads what it attends to."""
    config = CONFIGS["experts and windows"] | {"sliding_window": window}
    model = Architecture.from_config(config)
    cached = min(cached, prompt - 1)
    layers = tuple(replace(layer, dense=0, active_experts=0) for layer in model.layers)
    alone = replace(model, layers=layers, embedding=0)
    found = alone.request_flops(prompt_tokens=prompt, output_tokens=output, cached_prompt_tokens=cached)
    last = prompt + output - 1
    pairs = sum(2 * min(position + 1, window) + position + 1 for position in range(cached, last))
    assert found == 4 * 4 * 16 * pairs
    read = sum(2 * min(position + 1, window) + position + 1 for position in range(prompt, last))
    assert model.kv_bytes_read(prompt_tokens=prompt, output_tokens=output, bytes_per_value=2) == read * 2 * 2 * 16 * 2
