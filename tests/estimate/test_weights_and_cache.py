"""Weights and keys and values, beside what transformers counts and what can be reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, printed_by
from hypothesis import given
from hypothesis import strategies as st

from wattdock.config.placement import EngineMemory, Split
from wattdock.inputs.estimate.architecture import UnknownArchitectureError
from wattdock.inputs.estimate.estimate import sized
from wattdock.inputs.estimate.families import architecture
from wattdock.inputs.estimate.memory import activation_bytes, kv_bytes, stages, weight_bytes
from wattdock.inputs.estimate.precision import Precision
from wattdock.inputs.models.shapes import presets

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
MLA: dict[str, Any] = SMALL | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
}
# Forms that no known model has.
FORMS: dict[str, dict[str, Any]] = {
    "qwen2, biased and tied": SMALL | {"model_type": "qwen2", "tie_word_embeddings": True},
    "llama with biases": SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "experts in every other layer": SMALL
    | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    | {"decoder_sparse_step": 2, "mlp_only_layers": [], "head_dim": 16},
    "multi-query falcon": {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    | {"model_type": "falcon", "num_attention_heads": 4, "multi_query": True, "new_decoder_architecture": False},
    "latent attention": MLA | {"model_type": "deepseek_v3", "q_lora_rank": 24},
    "latent attention, queries whole": MLA | {"model_type": "deepseek_v2", "q_lora_rank": None},
}
KNOWN = {name: one for name, one in presets().items() if one.servable}
CONFIGS = {name: one.config for name, one in KNOWN.items()} | FORMS


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, int | None]]:
    """Return what transformers makes of every known model and form."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no PyTorch environment at {PYTORCH_PYTHON}")
    script = Path(__file__).parents[1] / "transformers_counter.py"
    counted = printed_by(script, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER, given=json.dumps(CONFIGS))
    found: dict[str, dict[str, int | None]] = json.loads(counted)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_has_exactly_the_parameters_that_transformers_makes(
    name: str, theirs: dict[str, dict[str, int | None]]
) -> None:
    """One wrong figure, or one matrix forgotten, would show here."""
    assert architecture(CONFIGS[name]).parameters == theirs[name]["parameters"]
    if name in KNOWN:
        assert KNOWN[name].parameters == theirs[name]["parameters"]


@pytest.mark.parametrize("name", [name for name in CONFIGS if CONFIGS[name]["model_type"] != "gpt2"])
def test_keys_and_values_are_as_large_as_transformers_own_cache(
    name: str, theirs: dict[str, dict[str, int | None]]
) -> None:
    """Of two prompts of 300 tokens; a window keeps one token less than it looks back at."""
    ours = kv_bytes(
        architecture(CONFIGS[name]), Split(), requests=2, context_tokens=300, bytes_per_value=2, repeated=True
    )
    assert sum(ours) == pytest.approx(theirs[name]["kv_bytes"], rel=0.003 if "gpt-oss" in name else 1e-12)


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "alia-40b", "falcon-40b", "falcon-180b"]
)
def test_activations_of_a_prefill_are_what_was_alive_in_transformers_own(
    name: str, theirs: dict[str, dict[str, int | None]]
) -> None:
    """The most bytes at a time, over all tensors that its code makes; kernels' own workspaces are not among them."""
    engine = EngineMemory(keeps_repeated_heads=True)
    model = architecture(CONFIGS[name])
    ours = activation_bytes(model, Split(), engine, requests=2, prompt_tokens=300, bytes_per_value=2)
    assert ours == pytest.approx(theirs[name]["activation_bytes"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind", "per_token"),
    [
        # 2 × layers × key/value heads × head size × 2 bytes
        ("llama-3.1-8b", "GQA", 2 * 32 * 8 * 128 * 2),
        ("gpt-sw3-40b", "MHA", 2 * 48 * 64 * 128 * 2),
        ("falcon-180b", "GQA", 2 * 80 * 8 * 64 * 2),
        # Only eight of its fifty layers attend.
        ("evo2-40b", "42 × no cache per token, 8 × MHA", 2 * 8 * 64 * 128 * 2),
    ],
)
def test_keys_and_values_per_token_follow_from_heads(name: str, kind: str, per_token: int) -> None:
    """Reckoned by hand."""
    model = architecture(presets()[name].config)
    assert model.attention_kinds.split(", ") == sorted(kind.split(", "), key=model.attention_kinds.index)
    assert kv_bytes(model, Split(), requests=1, context_tokens=1, bytes_per_value=2) == [per_token]


def test_a_window_keeps_no_more_than_its_tokens_and_a_latent_cache_is_whole_on_every_gpu() -> None:
    """gpt-oss: half of its layers look back 128 tokens; MLA: one vector for all heads."""
    oss = architecture(presets()["gpt-oss-20b"].config)
    assert kv_bytes(oss, Split(), requests=3, context_tokens=1000, bytes_per_value=2) == [
        3 * 2 * (12 * 1000 + 12 * 128) * 2 * 8 * 64
    ]
    latent = architecture(FORMS["latent attention"])
    whole = kv_bytes(latent, Split(), requests=1, context_tokens=10, bytes_per_value=2)
    assert whole == kv_bytes(latent, Split(tensor=2), requests=1, context_tokens=10, bytes_per_value=2)
    assert whole == [3 * 10 * (16 + 8) * 2]


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
    assert [layer.window for layer in architecture(SMALL | config).layers] == windows


def test_one_key_value_head_is_repeated_on_every_gpu() -> None:
    """A multi-query cache gains nothing from tensor parallelism, a grouped one up to the number of its heads."""
    multi_query = architecture(FORMS["multi-query falcon"])
    one, two = (
        kv_bytes(multi_query, Split(tensor=size), requests=1, context_tokens=9, bytes_per_value=2) for size in (1, 2)
    )
    assert one == two
    grouped = architecture(presets()["llama-3.1-8b"].config)
    sizes = [
        kv_bytes(grouped, Split(tensor=size), requests=1, context_tokens=9, bytes_per_value=2)[0]
        for size in (1, 2, 8, 16)
    ]
    assert [sizes[0] / size for size in sizes] == [1, 2, 8, 8]


@given(
    # Nine heads are divided by neither 2 nor 4.
    name=st.sampled_from(sorted(set(KNOWN) - {"tiny-llama", "smollm2-135m"})),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 7),
)
def test_no_split_loses_a_weight_and_none_repeats_much(name: str, tensor: int, pipeline: int) -> None:
    """What is on all GPUs together is the model, with norms repeated and a tied embedding at both ends."""
    model = architecture(presets()[name].config)
    on_gpus = weight_bytes(model, Split(tensor=tensor, pipeline=pipeline), Precision(2, 2, 2, 2))
    total = sum(on_gpus) * tensor
    repeated_embedding = 2 * model.embedding if pipeline > 1 and not model.head else 0
    assert len(on_gpus) == pipeline
    assert sum(map(len, stages(model, Split(pipeline=pipeline)))) == len(model.layers)
    assert 2 * model.parameters <= total * (1 + 1e-9)
    assert total <= 2 * model.parameters * 1.002 + repeated_embedding


def test_choosing_tokens_needs_the_whole_vocabulary_however_the_model_is_split() -> None:
    """A split divides the MLP, not the logits."""
    model = architecture(presets()["llama-3.1-8b"].config)
    engine = EngineMemory(step_tokens=64, logits_rows=1000, logit_bytes=10)
    sizes = {
        activation_bytes(model, Split(tensor=size), engine, requests=1, prompt_tokens=1, bytes_per_value=2)
        for size in (1, 8)
    }
    assert sizes == {1000 * 128256 * 10 + 64 * 4096 * 2}


def test_what_files_hold_is_taken_as_it_is() -> None:
    """A checkpoint in a precision that is not known here is as large as its files."""
    config = presets()["llama-3.1-8b"].config | {"quantization_config": {"quant_method": "some-new-one"}}
    assert sized(config, file_bytes=5_000_000_000).weights == 5_000_000_000
    with pytest.raises(UnknownArchitectureError, match="'some-new-one' are only known from their files"):
        sized(config)


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_eight_bits_are_of_the_layers_matrices_alone(dtype: str) -> None:
    """As engines quantise them: keys and values, embeddings, head and activations stay as they were."""
    config = presets()["llama-3.1-70b"].config
    own, quantised = sized(config), sized(config, dtype=dtype)
    assert (quantised.size.values, quantised.size.rest, quantised.dtype) == (2.0, 2.0, "bfloat16")
    outside = 2 * 128_256 * 8192 * 2
    assert quantised.weights - outside == pytest.approx((own.weights - outside) / 2, rel=1e-3)


def test_experts_in_mxfp4_take_what_the_published_checkpoint_takes() -> None:
    """OpenAI puts gpt-oss-120b at 60.8 GiB and the 20b at 12.8 GiB."""
    for name, gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        config = presets()[name].config | {"quantization_config": {"quant_method": "mxfp4"}}
        assert sized(config).weights / 2**30 == pytest.approx(gib, abs=0.05)
