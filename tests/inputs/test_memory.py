"""Weights, keys and values, and activations, beside what transformers counts and what can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.architectures import CONFIGS
from refused import raises
from seams.inputs import MemoryEstimate, ModelMemory, Requests, StoredWeights

from wattdock.config import EngineMemory, Split
from wattdock.errors import UnknownArchitectureError
from wattdock.inputs import presets
from wattdock.inputs.architecture import architecture_of

# A window keeps one token less than it looks back at, which is much of a small one; transformers' grouped Falcon keeps
# each key/value head several times, which no other engine does.
CACHED = [
    name
    for name, config in CONFIGS.items()
    if config["model_type"] != "gpt2"
    and "falcon-" not in name
    and (name in presets() or "window" not in name)
    and not config.get("new_decoder_architecture")
]


ENGINE = EngineMemory(repeats_kv_heads=True)


def estimate(
    config: dict[str, Any], requests: int = 1, tokens: int = 300, *, split: Split | None = None, **engine: Any
) -> MemoryEstimate:
    """Return what requests of prompts alone take."""
    model = ModelMemory.of(config, replace(ENGINE, **engine), Requests(requests, tokens, tokens))
    return model.estimate(split or Split(), memory_bytes=80e9)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_has_exactly_the_parameters_that_transformers_makes(
    name: str, theirs: dict[str, dict[str, Any]]
) -> None:
    """A wrong figure, or a forgotten matrix, would show here."""
    assert architecture_of(CONFIGS[name]).parameters == theirs[name]["parameters"]
    if name in presets():
        assert presets()[name].parameters == theirs[name]["parameters"]


@pytest.mark.parametrize("name", CACHED)
def test_keys_and_values_are_as_large_as_transformers_own_cache(name: str, theirs: dict[str, dict[str, Any]]) -> None:
    """Of two prompts of 300 tokens; a window keeps one token less than it looks back at."""
    ours = estimate(CONFIGS[name] | {"torch_dtype": "bfloat16"}, 2).kv_cache
    assert ours == pytest.approx(theirs[name]["kv_bytes"], rel=0.003 if "gpt-oss" in name else 1e-12)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "alia-40b"])
def test_activations_of_a_prefill_are_what_was_alive_in_transformers_own(
    name: str, theirs: dict[str, dict[str, Any]]
) -> None:
    """The most bytes at a time, over all tensors that its code makes; kernels' own workspaces are not among them."""
    assert estimate(CONFIGS[name], 2).activations == pytest.approx(theirs[name]["activation_bytes"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        # 2 × layers × key/value heads × head size × 2 bytes
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("gpt-sw3-40b", 2 * 48 * 64 * 128 * 2),
        ("falcon-180b", 2 * 80 * 8 * 64 * 2),
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),
    ],
)
def test_keys_and_values_per_token_follow_from_heads(name: str, per_token: int) -> None:
    """Reckoned by hand."""
    assert ModelMemory.of(CONFIGS[name], ENGINE).kv_bytes(1) == per_token


def test_a_window_keeps_no_more_than_its_tokens() -> None:
    """Half of gpt-oss's layers look back 128 tokens."""
    assert estimate(CONFIGS["gpt-oss-20b"], 3, 1000).kv_cache == 3 * 2 * (12 * 1000 + 12 * 128) * 2 * 8 * 64


@pytest.mark.parametrize(
    ("name", "shares"), [("multi-query", {1: 1, 2: 1}), ("llama-3.1-8b", {1: 1, 2: 2, 8: 8, 16: 8})]
)
def test_a_key_value_head_is_repeated_where_there_are_fewer_than_gpus(name: str, shares: dict[int, int]) -> None:
    """A multi-query cache gains nothing from tensor parallelism, a grouped one up to the number of its heads."""
    model = ModelMemory.of(CONFIGS[name], ENGINE)
    assert {size: model.kv_bytes(1) / model.kv_bytes(1, size) for size in shares} == shares


@given(
    # Nine heads are divided by neither 2 nor 4.
    name=st.sampled_from(sorted(set(presets()) - {"tiny-llama", "smollm2-135m"})),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 7),
)
def test_the_fullest_gpu_holds_its_share_and_not_much_more(name: str, tensor: int, pipeline: int) -> None:
    """At least the mean of all GPUs, at most one layer and one embedding above it."""
    model = ModelMemory.of(CONFIGS[name], ENGINE)
    mean = model.weights_bytes / tensor / pipeline
    fullest = estimate(CONFIGS[name], split=Split(tensor=tensor, pipeline=pipeline))
    layer = max(layer.dense + layer.experts + layer.other for layer in model.model.layers)
    assert fullest.certain == pytest.approx(mean, rel=0.01)
    assert mean * (1 - 1e-9) <= fullest.weights <= mean + 2 * (layer + model.model.embedding) / tensor


def test_choosing_tokens_needs_the_whole_vocabulary_however_the_model_is_split() -> None:
    """A split divides the MLP, not the logits."""
    config = CONFIGS["llama-3.1-8b"]
    sizes = {
        estimate(config, split=Split(tensor=size), step_tokens=64, logits_rows=1000).activations for size in (1, 8)
    }
    assert sizes == {1000 * 128256 * 8 + 64 * 4096 * 2}


def test_what_files_hold_is_taken_as_it_is() -> None:
    """A checkpoint in a precision that is not known here is as large as its files."""
    config = CONFIGS["llama-3.1-8b"] | {"quantization_config": {"quant_method": "some-new-one"}}
    assert ModelMemory.of(config, ENGINE, stored=StoredWeights(5_000_000_000, None)).weights_bytes == 5_000_000_000
    with raises(UnknownArchitectureError, "'some-new-one'"):
        ModelMemory.of(config, ENGINE)


def test_a_type_of_weights_that_only_engines_know_is_unknown_until_the_engine_is_told_another() -> None:
    """PyTorch and vLLM load weights of 64 bits on a CPU, in 32."""
    config = CONFIGS["llama-3.1-8b"] | {"torch_dtype": "float64"}
    with raises(UnknownArchitectureError, "dtype = float64"):
        ModelMemory.of(config, ENGINE)
    assert ModelMemory.of(config, ENGINE, dtype="float32").weights_bytes == 4 * architecture_of(config).parameters


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_eight_bits_are_of_the_layers_matrices_alone(dtype: str) -> None:
    """As engines quantise them: keys and values, embeddings, head and activations stay as they were."""
    config = CONFIGS["llama-3.1-70b"]
    published, quantised = ModelMemory.of(config, ENGINE), ModelMemory.of(config, ENGINE, dtype=dtype)
    assert (quantised.dtype, quantised.quantization) == ("bfloat16", dtype)
    assert quantised.kv_bytes(1) == published.kv_bytes(1)
    outside = 2 * 128_256 * 8192 * 2
    assert quantised.weights_bytes - outside == pytest.approx((published.weights_bytes - outside) / 2, rel=1e-3)


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_experts_in_mxfp4_take_what_the_published_checkpoint_takes(name: str, gib: float) -> None:
    """As OpenAI puts them."""
    assert ModelMemory.of(presets()[name].published_config, ENGINE).weights_bytes / 2**30 == pytest.approx(
        gib, abs=0.05
    )


@pytest.mark.parametrize(
    ("config", "split", "what", "estimated", "vllm"),
    [
        ("llama-3.1-8b", Split(), "weights", 16_060.5, 16_110.9),
        ("qwen3-8b", Split(), "weights", 16_381.5, 16_394.1),
        ("llama-3.1-8b", Split(tensor=4), "weights", 4_015.1, 4_069.1),
        ("llama-3.1-8b", Split(pipeline=4), "weights", 4_540.5, 4_590.8),
        ("llama-3.1-8b", Split(), "activations", 1_946.2, 1_845.5),
        ("llama-3.1-8b", Split(pipeline=4), "activations", 1_946.2, 1_845.5),
        ("llama-3.1-8b", Split(tensor=4), "activations", 889.2, 738.2),
    ],
)
def test_an_estimate_is_near_what_vllm_found_on_h200s(
    config: str, split: Split, what: str, estimated: float, vllm: float
) -> None:
    """Megabytes; weights to 1.5 % too little, activations on the safe side (docs/measurements/h200-estimates.md)."""
    megabytes = getattr(estimate(CONFIGS[config], split=split, step_tokens=16384, logits_rows=512), what) / 1e6
    assert megabytes == pytest.approx(estimated, abs=0.1)
    assert -0.015 <= megabytes / vllm - 1 <= (0.21 if what == "activations" else 0)


F32, BF16, PACKED = ("F32", 4000), ("BF16", 2000), ("I32", 500)


@pytest.mark.parametrize(
    ("tensors", "dtype", "expected"),
    [
        ([F32, BF16, ("I64", 80)], "float32", 8000),
        ([F32, BF16, ("I64", 80)], "bfloat16", 4000),
        ([F32, BF16, ("I64", 80)], "auto", 6080),
        ([F32, PACKED], "float32", 4500),
    ],
)
def test_stored_values_take_the_type_that_they_are_loaded_in(
    tensors: list[tuple[str, int]], dtype: str, expected: int
) -> None:
    """Two thousand numbers, whatever type the files have; indices are no weights, and packed values stay packed."""
    assert StoredWeights.of(tensors, sum(size for _, size in tensors)).bytes_in(dtype) == expected


@pytest.mark.parametrize(
    ("config", "each"),
    [({"torch_dtype": "float16"}, 2), ({"dtype": "float32"}, 4), ({}, 3)],
)
def test_weights_are_as_large_as_their_type_in_config_json_and_not_as_files_that_hold_more(
    config: dict[str, str], each: int
) -> None:
    """Files of another type, or with a second copy of a tied embedding; only where no type is said do they decide."""
    small = CONFIGS["tied embeddings"]
    parameters = architecture_of(small).parameters
    stored = StoredWeights(3 * parameters, 2 * parameters)
    assert ModelMemory.of(small | config, ENGINE, stored=stored).weights_bytes == each * parameters


def test_other_parts_than_the_language_model_are_weights_too() -> None:
    """A vision tower is in the files, and in the engine."""
    config = {"model_type": "llava", "dtype": "bfloat16", "text_config": CONFIGS["dense"]}
    assert ModelMemory.of(config, ENGINE, stored=StoredWeights(4_000_000, 1_000_000)).weights_bytes == 2_000_000


@given(
    name=st.sampled_from(["llama-3.1-70b", "falcon-180b", "mixtral-8x7b", "gpt-oss-120b"]),
    batch=st.sampled_from([1, 64]),
    memory_gb=st.integers(4, 300),
    per_node=st.integers(1, 16),
)
def test_no_split_holds_a_model_on_fewer_nodes_than_are_named(
    name: str, batch: int, memory_gb: int, per_node: int
) -> None:
    """Each node gets as many GPUs as the others, whole groups of tensor parallelism, and none more than it has."""
    sized = ModelMemory.of(presets()[name].published_config, ENGINE, Requests(batch, 4096, 4096, certain=True))
    whole = {
        (nodes, Split(tensor=tensor, pipeline=stages))
        for tensor in sized.tensor_sizes
        for stages in range(1, len(sized.model.layers) + 1)
        if sized.estimate(Split(tensor=tensor, pipeline=stages), memory_gb * 1e9).verdict == "fits"
        for nodes in range(1, stages + 1)
        if stages % nodes == 0 and tensor * stages // nodes <= per_node
    }
    needed = sized.nodes_needed(memory_gb * 1e9, per_node)
    assert (needed in whole) if needed else not whole
    assert needed is None or needed[0] == min(nodes for nodes, _ in whole)


def test_a_405b_model_takes_two_nodes_of_80_gb_and_one_of_141() -> None:
    """812 GB of 16-bit weights on 8 × 85.5 GB, or 8 × 150.8 GB."""
    sizes = {"hidden_size": 16_384, "intermediate_size": 53_248, "num_hidden_layers": 126, "num_attention_heads": 128}
    config = CONFIGS["llama-3.1-70b"] | sizes
    sized = ModelMemory.of(config, ENGINE, Requests(1, 2048, 2048))
    assert sized.weights_bytes == pytest.approx(2 * 405.85e9, rel=1e-3)
    assert sized.nodes_needed(85.5e9, 8) == (2, Split(tensor=8, pipeline=2))
    assert sized.nodes_needed(150.8e9, 8) == (1, Split(tensor=8))
    assert sized.nodes_needed(150.8e9, 4) == (2, Split(tensor=4, pipeline=2))
    assert sized.nodes_needed(2e9, 8) is None
