"""Whether an experiment's model fits, told before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from wattdock.config import EngineMemory, ExperimentConfig, Split
from wattdock.errors import ConfigError, PreflightError
from wattdock.inputs.estimate import memory_fit, requests_of

H200, H100 = 150_754_820_096, 81559 << 20


def fit(settings: dict[str, Any], *, gpus: int = 1, memory_bytes: int | None = H200) -> str:
    """Return what a plan says of an experiment with the vLLM backend."""
    config = ExperimentConfig.model_validate({"backend": "vllm", **settings})
    return memory_fit(config, gpus=gpus, memory_bytes=memory_bytes)[1]


def test_a_model_that_fits_says_how_much_it_takes() -> None:
    """16 GB of weights and 2 GB of cache on an H200."""
    line = fit({"model": "shape:llama-3.1-8b", "workload": {"batch_size": 16, "max_output_tokens": 512}})
    assert line.startswith("memory of shape:llama-3.1-8b, one GPU: fits: about ")
    assert "(weights 16.1, keys and values 2.1)" in line


def test_weights_larger_than_the_gpu_are_refused_with_the_fewest_gpus_that_hold_them() -> None:
    """141 GB of weights on 85.5 GB."""
    with pytest.raises(PreflightError) as caught:
        fit({"model": "shape:llama-3.1-70b"}, memory_bytes=H100)
    assert "shape:llama-3.1-70b cannot fit on one GPU: 141.1 GB of weights" in str(caught.value)
    assert str(caught.value).endswith("tensor parallelism over 2 or pipeline parallelism over 3")


def test_what_only_perhaps_does_not_fit_is_a_doubt_and_no_refusal() -> None:
    """70.6 GB of weights on each of two GPUs with 85.5 GB, with requests that may end early."""
    settings = {"model": "meta-llama/Llama-3.1-70B", "vllm": {"tensor_parallel_size": 2, "max_model_len": 2048}}
    line = fit({**settings, "workload": {"batch_size": 64}}, gpus=2, memory_bytes=H100)
    assert "TP=2: uncertain: " in line
    assert line.endswith("it may fail while it loads or runs")


def test_a_batch_that_is_certain_to_be_there_at_full_length_counts_as_certain() -> None:
    """Random weights never end early: 512 requests of 4,096 tokens are 275 GB of keys and values."""
    full = {"prompts": {"input_tokens": 2048}, "batch_size": 512, "max_output_tokens": 2048}
    with pytest.raises(PreflightError, match=r"keys and values of 512 requests of 4,096 tokens make 290\.9 GB"):
        fit({"model": "shape:llama-3.1-8b", "workload": full})
    assert ": uncertain: " in fit({"model": "shape:llama-3.1-8b", "workload": full, "backend": "tensorrt"})
    for early in (
        {"ignore_eos": False},
        {"max_output_tokens": {"distribution": "uniform", "min": 1024, "max": 2048}},
        {"arrival": "poisson", "rate_per_s": 1},
    ):
        assert ": uncertain: " in fit({"model": "shape:llama-3.1-8b", "workload": full | early})


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
    assert requests_of(config, EngineMemory(), Split()).count == in_flight
    assert config.workload.requests_per_warm_up == (in_flight if in_flight < 256 else 512)


def test_replicas_share_the_requests_out() -> None:
    """Each of two engines holds half of them."""
    config = ExperimentConfig.model_validate(
        {"backend": "vllm", "model": "shape:llama-3.1-8b", "workload": {"batch_size": 8}}
    )
    assert [requests_of(config, EngineMemory(), Split(replicas=count)).count for count in (1, 2)] == [8, 4]


def test_an_illegal_split_is_refused_without_a_gpu_too() -> None:
    """Heads do not depend on the machine."""
    with pytest.raises(ConfigError, match="over 3 GPUs is not possible: the model has 32 heads"):
        fit({"model": "shape:llama-3.1-8b", "vllm": {"tensor_parallel_size": 3}}, memory_bytes=None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "somebody/something"}, "its config.json has not been downloaded yet"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"cpu_offload_gb": 100}}, "settings move or quantise weights"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"quantization": "fp8"}}, "settings move or quantise weights"),
        ({"model": "shape:llama-3.1-70b", "backend": "fake"}, "the backend does not tell how it uses memory"),
    ],
)
def test_what_cannot_be_estimated_says_so_and_is_not_refused(settings: dict[str, Any], why: str) -> None:
    """The engine itself will tell."""
    line = fit(settings, memory_bytes=H100)
    assert "not estimated, " in line
    assert why in line
