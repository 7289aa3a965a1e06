"""Whether an experiment's model fits, told before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattdock.config.experiment import ExperimentConfig
from wattdock.config.placement import EngineMemory, Split
from wattdock.errors import ConfigError, PreflightError
from wattdock.inputs.estimate.experiment import MemoryFit, demand_of, memory_fit
from wattdock.inputs.models.figures import known_figures

H200, H100 = 150_754_820_096, 81559 << 20


def fit(settings: dict[str, Any], *, gpus: int = 1, memory_bytes: int | None = H200) -> MemoryFit:
    """Return what is said of an experiment with the vLLM backend."""
    config = ExperimentConfig.model_validate({"backend": "vllm", **settings})
    return memory_fit(config, known_figures(config.model), gpus=gpus, memory_bytes=memory_bytes)


def test_a_model_that_fits_says_how_much_it_takes() -> None:
    """16 GB of weights and 2 GB of cache on an H200."""
    found = fit({"model": "shape:llama-3.1-8b", "workload": {"batch_size": 16, "max_output_tokens": 512}})
    assert found.verdict == "fits"
    assert found.note.startswith("memory of shape:llama-3.1-8b, one GPU: fits: about ")
    assert "(weights 16.1, keys and values 2.1)" in found.note


def test_weights_larger_than_the_gpu_are_refused_with_the_fewest_gpus_that_hold_them() -> None:
    """141 GB of weights on 85.5 GB."""
    with pytest.raises(PreflightError) as caught:
        fit({"model": "shape:llama-3.1-70b"}, memory_bytes=H100)
    assert "shape:llama-3.1-70b cannot fit on one GPU: 141.1 GB of weights" in str(caught.value)
    assert str(caught.value).endswith("tensor parallelism over 2 or pipeline parallelism over 3")


def test_what_only_perhaps_does_not_fit_is_a_doubt_and_no_refusal() -> None:
    """70.6 GB of weights on each of two GPUs with 85.5 GB, with requests that may end early."""
    settings = {"model": "meta-llama/Llama-3.1-70B", "vllm": {"tensor_parallel_size": 2, "max_model_len": 2048}}
    found = fit({**settings, "workload": {"batch_size": 64}}, gpus=2, memory_bytes=H100)
    assert found.verdict == "uncertain"
    assert found.note.endswith("it may fail while it loads or runs")


def test_an_engine_that_wants_room_for_the_longest_request_may_fail_while_it_loads() -> None:
    """Seen on an H200: 131,072 tokens of llama-3.1-70b are 43 GB beside 141 GB of weights, whatever the workload."""
    whole = {"model": "shape:llama-3.1-70b", "vllm": {"gpu_memory_utilization": 0.99}}
    found = fit(whole)
    assert found.verdict == "uncertain"
    assert "the longest request it may get, 131,072 tokens (42.9 GB of keys and values)" in found.note
    small = {"model": "shape:llama-3.1-8b", "workload": {"batch_size": 4}}
    assert fit(small, memory_bytes=24 * 10**9).note.endswith("a smaller max_model_len asks for less")
    assert fit(small | {"vllm": {"max_model_len": 2048}}, memory_bytes=24 * 10**9).verdict == "fits"


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"kv_cache_memory_bytes": 18 * 10**9}, "fits"),
        ({"kv_cache_memory_bytes": 17 * 10**9}, "uncertain"),
        ({"kv_cache_memory_bytes": 10**9, "max_model_len": 4096}, "fits"),
        ({"kv_cache_memory_bytes": 10**9, "max_model_len": 8192}, "uncertain"),
    ],
)
def test_a_cache_of_a_set_size_has_to_hold_the_longest_request_too(settings: dict[str, Any], verdict: str) -> None:
    """131,072 tokens of llama-3.1-8b are 17.2 GB, however large the GPU."""
    found = fit({"model": "shape:llama-3.1-8b", "workload": {"batch_size": 1}, "vllm": settings})
    assert found.verdict == verdict


def test_no_shorter_request_is_advised_where_the_weights_are_the_trouble() -> None:
    """141.1 GB of weights, of which the engine may take 138.7."""
    found = fit({"model": "shape:llama-3.1-70b"})
    assert found.verdict == "uncertain"
    assert found.note.endswith("it may fail while it loads or runs")


def test_a_longest_length_is_found_in_a_config_that_is_nested() -> None:
    """As multimodal checkpoints have it."""
    flat = known_figures(ExperimentConfig.model_validate({"model": "shape:llama-3.1-8b"}).model)
    assert flat
    config = ExperimentConfig.model_validate({"backend": "vllm", "model": "shape:llama-3.1-8b"})
    nested = replace(flat, config={"text_config": flat.config})
    notes = [memory_fit(config, one, gpus=1, memory_bytes=24 * 10**9).note for one in (flat, nested)]
    assert ["131,072 tokens" in note for note in notes] == [True, True]


def test_a_batch_that_is_certain_to_be_there_at_full_length_counts_as_certain() -> None:
    """Random weights never end early: 512 requests of 4,096 tokens are 275 GB of keys and values."""
    full = {"prompts": {"input_tokens": 2048}, "batch_size": 512, "max_output_tokens": 2048}
    with pytest.raises(PreflightError, match=r"keys and values of 512 requests of 4,096 tokens make 290\.9 GB"):
        fit({"model": "shape:llama-3.1-8b", "workload": full})
    assert fit({"model": "shape:llama-3.1-8b", "workload": full, "backend": "tensorrt"}).verdict == "uncertain"
    for early in ({"ignore_eos": False}, {"output_spread": 0.5}, {"arrival": "poisson", "rate_per_s": 1}):
        assert fit({"model": "shape:llama-3.1-8b", "workload": full | early}).verdict == "uncertain"


@pytest.mark.parametrize(
    ("workload", "in_flight"),
    [
        ({"prompts": {"count": 8}}, 8),
        ({"prompts": {"count": 8}, "min_duration_s": 20}, 256),
        ({"prompts": {"count": 8}, "min_requests": 512}, 256),
        ({"min_requests": 100}, 100),
    ],
)
def test_prompts_that_come_again_fill_the_batch(workload: dict[str, Any], in_flight: int) -> None:
    """Eight prompts are a ring where a pass goes on; a warm-up runs the same batches."""
    config = ExperimentConfig.model_validate({"backend": "vllm", "workload": {"batch_size": 256, **workload}})
    engine = config.section.memory()
    assert engine is not None
    assert demand_of(config, engine, Split()).requests == in_flight
    assert config.workload.requests_per_warm_up == (in_flight if in_flight < 256 else 512)


def test_replicas_share_the_requests_out() -> None:
    """Each of two engines holds half of them."""
    config = ExperimentConfig.model_validate(
        {"backend": "vllm", "model": "shape:llama-3.1-8b", "workload": {"batch_size": 8}}
    )
    assert [demand_of(config, EngineMemory(), Split(replicas=count)).requests for count in (1, 2)] == [8, 4]


def test_an_illegal_split_is_refused_without_a_gpu_too() -> None:
    """Heads do not depend on the machine."""
    with pytest.raises(ConfigError, match="over 3 GPUs is not possible: the model has 32 heads"):
        fit({"model": "shape:llama-3.1-8b", "vllm": {"tensor_parallel_size": 3}}, memory_bytes=None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "somebody/something"}, "its config is not here before it is fetched"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"cpu_offload_gb": 100}}, "settings move or quantise weights"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"quantization": "fp8"}}, "settings move or quantise weights"),
        ({"model": "shape:llama-3.1-70b", "backend": "fake"}, "its backend does not tell how it uses memory"),
    ],
)
def test_what_cannot_be_estimated_says_so_and_is_not_refused(settings: dict[str, Any], why: str) -> None:
    """The engine itself will tell."""
    found = fit(settings, memory_bytes=H100)
    assert found.verdict is None
    assert found.note.endswith(f"not estimated, {why}")
