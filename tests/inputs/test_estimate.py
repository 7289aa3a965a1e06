"""Whether an experiment's model fits, told before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from contract.subjects import write_config
from make import models
from refused import raises
from seams.inputs import requests_of

from wattdock.config import EngineMemory, ExperimentConfig, Split
from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.inputs import memory_fit

if TYPE_CHECKING:
    from pathlib import Path

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
H200, H100 = 150_754_820_096, 81559 << 20


def fit(settings: dict[str, Any], *, gpus: int = 1, memory_bytes: float | None = H200, on_host: bool = False) -> str:
    """Return what a plan says of an experiment with the vLLM backend."""
    config = ExperimentConfig.model_validate({"backend": "vllm", **settings})
    return memory_fit(config, gpus=gpus, memory_bytes=memory_bytes, on_host=on_host)[1]


def test_a_model_that_fits_says_how_much_it_takes() -> None:
    """16 GB of weights and 2 GB of cache on an H200."""
    line = fit({"model": "shape:llama-3.1-8b", "workload": {"batch_size": 16, "max_output_tokens": 512}})
    assert "shape:llama-3.1-8b, one GPU: fits:" in line
    assert "weights 16.1" in line
    assert "values 2.1" in line


def test_weights_larger_than_the_gpu_are_refused_with_the_fewest_gpus_that_hold_them() -> None:
    """141 GB of weights on 85.5 GB."""
    values = ("shape:llama-3.1-70b", "141.1 GB", "85.5 GB", "tensor parallelism over 2", "pipeline parallelism over 3")
    with raises(PreflightError, *values, cause=Cause.DOES_NOT_FIT):
        fit({"model": "shape:llama-3.1-70b"}, memory_bytes=H100)


def test_what_only_perhaps_does_not_fit_is_a_doubt_and_no_refusal() -> None:
    """70.6 GB of weights on each of two GPUs with 85.5 GB, with requests that may end early."""
    settings = {"model": "meta-llama/Llama-3.1-70B", "vllm": {"tensor_parallel_size": 2, "max_model_len": 2048}}
    line = fit({**settings, "workload": {"batch_size": 64}}, gpus=2, memory_bytes=H100)
    assert "TP=2: uncertain: " in line


def test_a_batch_that_is_certain_to_be_there_at_full_length_counts_as_certain() -> None:
    """Random weights never end early: 512 requests of 4,096 tokens are 275 GB of keys and values."""
    full = {"prompts": {"input_tokens": 2048}, "batch_size": 512, "max_output_tokens": 2048}
    with raises(PreflightError, "512", "4,096", "290.9", cause=Cause.DOES_NOT_FIT):
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
    with raises(ConfigError, "GPUs", "32"):
        fit({"model": "shape:llama-3.1-8b", "vllm": {"tensor_parallel_size": 3}}, memory_bytes=None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "somebody/something"}, "config.json"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"cpu_offload_gb": 100}}, "settings"),
        ({"model": "shape:llama-3.1-70b", "vllm": {"quantization": "fp8"}}, "settings"),
        ({"model": "shape:llama-3.1-70b", "backend": "fake"}, "backend"),
    ],
)
def test_what_cannot_be_estimated_says_so_and_is_not_refused(settings: dict[str, Any], why: str) -> None:
    """The engine itself will tell."""
    line = fit(settings, memory_bytes=H100)
    assert "not estimated, " in line
    assert why in line


def test_a_model_larger_than_the_hosts_memory_is_refused() -> None:
    """16.1 GB of weights; keys and values of a request of 4,096 tokens are 0.54 GB, so 7 of them fit beside.

    A CPU computes in 32 bits unless it is told otherwise.
    """
    for dtype, weights in (("bfloat16", "141.1"), ("auto", "282.2")):
        with raises(PreflightError, f"{weights} GB", "20.0 GB", cause=Cause.DOES_NOT_FIT):
            fit({"model": "shape:llama-3.1-70b", "vllm": {"dtype": dtype}}, memory_bytes=20e9, on_host=True)
    full = {"prompts": {"input_tokens": 2048}, "batch_size": 64, "max_output_tokens": 2048}
    pytorch = {"backend": "pytorch", "model": "shape:llama-3.1-8b", "pytorch": {"dtype": "bfloat16"}}
    with raises(PreflightError, "50.4", "20.0", "batch_size", cause=Cause.DOES_NOT_FIT):
        fit({**pytorch, "workload": full}, memory_bytes=20e9, on_host=True)
    assert ": uncertain: " in fit({**pytorch, "workload": full | {"batch_size": 7}}, memory_bytes=20e9, on_host=True)
    assert ": fits: " in fit({**pytorch, "workload": full | {"batch_size": 7}}, memory_bytes=40e9, on_host=True)


def test_replicas_and_ranks_share_the_hosts_memory() -> None:
    """Two models are twice the weights, two halves are one model."""
    shape = {"model": "shape:llama-3.1-8b"}
    with raises(PreflightError, "16.2", "15.0", cause=Cause.DOES_NOT_FIT):
        fit({**shape, "vllm": {"dtype": "bfloat16", "data_parallel_size": 2}}, gpus=2, memory_bytes=30e9, on_host=True)
    split = {**shape, "vllm": {"dtype": "bfloat16", "tensor_parallel_size": 2}}
    assert "cannot fit" not in fit(split, gpus=2, memory_bytes=30e9, on_host=True)


@pytest.mark.parametrize(
    ("model", "output_tokens", "values"),
    [
        ("shape:qwen3-8b", 40_449, ("40,960", "512", "40,449", "max_output_tokens", "input_tokens")),
        ("smollm2-135m-instruct", 8193, ("8,192", "8,193", "max_output_tokens")),
    ],
)
def test_requests_longer_than_the_models_context_are_refused(
    model: str, output_tokens: int, values: tuple[str, ...]
) -> None:
    """Of bundled prompts the length is not known before a tokenizer is."""
    with raises(ConfigError, *values, cause=Cause.DOES_NOT_FIT):
        fit({"model": model, "workload": {"max_output_tokens": output_tokens}}, memory_bytes=None)
    fit({"model": model, "workload": {"max_output_tokens": output_tokens - 1}}, memory_bytes=None)


@pytest.mark.parametrize(
    ("backend", "settings", "changes", "most"),
    [
        ("pytorch", {}, {"rope_scaling": YARN}, 2048),
        # Neither settings that move memory nor an architecture that is not known hides it.
        ("pytorch", {"offload_folder": "x"}, {"model_type": "bamba"}, 512),
        ("vllm", {}, {"rope_scaling": YARN}, 512),
        ("vllm", {"max_model_len": 300}, {}, 300),
        ("sglang", {"context_length": 300}, {}, 300),
        ("tensorrt", {"max_seq_len": 300}, {}, 300),
        ("llamacpp", {}, {}, 512),
        ("llamacpp", {}, {"max_position_embeddings": 8192}, 4096),
        ("llamacpp", {"n_ctx": 99_999}, {"max_position_embeddings": 8192}, 8192),
        ("fake", {}, {"text_config": {"max_position_embeddings": 256}}, 256),
    ],
)
def test_each_backend_s_own_context_is_checked_before_a_load(
    tmp_path: Path, backend: str, settings: dict[str, Any], changes: dict[str, Any], most: int
) -> None:
    """A runner would refuse the first pass, after it has loaded the weights."""
    write_config(tmp_path, **changes)
    (tmp_path / "model.safetensors").write_bytes(models.weights())
    asked = {"backend": backend, backend: settings, "model": {"path": str(tmp_path)}}
    fit({**asked, "workload": {"max_output_tokens": most}}, memory_bytes=None)
    with raises(ConfigError, f"{most:,} tokens in {backend}", f"{most + 1:,}", cause=Cause.DOES_NOT_FIT):
        fit({**asked, "workload": {"max_output_tokens": most + 1}}, memory_bytes=None)
