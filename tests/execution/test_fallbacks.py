"""The fallbacks of an experiment that failed."""

from __future__ import annotations

from typing import Any

import pytest
from seams.execution import fallbacks

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause

TENSOR = {"backend": "vllm", "vllm": {"tensor_parallel_size": 4}}
FOUR_BY_FOUR = ["vllm.tensor_parallel_size: 2, vllm.pipeline_parallel_size: 2"]
FOUR_BY_FOUR += ["vllm.tensor_parallel_size: 1, vllm.pipeline_parallel_size: 4"]
REPLICAS = "vllm.tensor_parallel_size: 1, vllm.pipeline_parallel_size: 1, vllm.data_parallel_size: 4"


def changes(
    settings: dict[str, Any], cause: Cause | None, *, gpus: int | None = None, dtype: str | None = None
) -> list[str]:
    config = ExperimentConfig.model_validate({"model": "shape:tiny-llama", "workload": {"batch_size": 8}, **settings})
    steps = fallbacks(config, cause=cause, gpus=gpus or config.section.gpus_needed(), dtype=dtype)
    assert config.experiment_id not in {step.config.experiment_id for step in steps}
    assert len({step.config.experiment_id for step in steps}) == len(steps)
    return [step.change for step in steps]


LESS = ["workload.batch_size: 4", "workload.batch_size: 2"]
SPLIT = {"pytorch": {"tp_plan": "auto", "tp_size": 2}}
SPREAD = {"pytorch": {"device_map": "auto"}}
REPLICATED = {"backend": "vllm", "vllm": {"data_parallel_size": 2}}
SPLITS_OF_REPLICAS = [
    "vllm.tensor_parallel_size: 2, vllm.pipeline_parallel_size: 1, vllm.data_parallel_size: 1",
    "vllm.tensor_parallel_size: 1, vllm.pipeline_parallel_size: 2, vllm.data_parallel_size: 1",
]


@pytest.mark.parametrize(
    ("settings", "cause", "given", "expected"),
    [
        # Where a link fails: every other way over the same GPUs; less work would not mend a link.
        (TENSOR, Cause.EXCHANGE, {}, [*FOUR_BY_FOUR, REPLICAS]),
        (TENSOR, Cause.HANG, {}, [*FOUR_BY_FOUR, REPLICAS]),
        # Where memory fails: fewer requests in flight, then fewer bits; a copy on each GPU takes more, not less.
        (TENSOR, Cause.KV_CACHE, {"dtype": "float32"}, [*FOUR_BY_FOUR, *LESS, "vllm.dtype: bfloat16"]),
        (TENSOR, Cause.GPU_MEMORY, {"dtype": "bfloat16"}, [*FOUR_BY_FOUR, *LESS]),
        ({"backend": "vllm"}, Cause.KV_CACHE, {}, LESS),
        # A death without a word may be anything, lack of host memory as likely as not.
        (TENSOR, Cause.WORKER, {}, [*FOUR_BY_FOUR, REPLICAS, *LESS]),
        # PyTorch has two ways to split, over the GPUs that it was given, and replicas.
        (SPLIT, Cause.EXCHANGE, {}, ["pytorch.device_map: auto", "pytorch.data_parallel_size: 2"]),
        (SPREAD, Cause.EXCHANGE, {"gpus": 1}, []),
        # Two KV heads cannot be shared out among four ranks, and transformers does not repeat them.
        (SPREAD, Cause.EXCHANGE, {"gpus": 4}, ["pytorch.data_parallel_size: 4"]),
        # There is nothing to fall back to within replicas but fewer requests.
        (REPLICATED, Cause.RUNNER, {}, [*SPLITS_OF_REPLICAS, *LESS]),
        # Three requests in flight cannot be shared out among four replicas.
        ({**TENSOR, "workload": {"batch_size": 3}}, Cause.EXCHANGE, {}, FOUR_BY_FOUR),
        # A mistake in a setting stays one.
        (TENSOR, Cause.UNKNOWN_SETTING, {}, []),
        (TENSOR, None, {}, []),
    ],
)
def test_fallbacks_are_what_may_mend_the_cause_and_what_the_settings_allow(
    settings: dict[str, Any], cause: Cause | None, given: dict[str, Any], expected: list[str]
) -> None:
    """Other splits first, then replicas, fewer requests, fewer bits."""
    assert changes(settings, cause, **given) == expected


def test_weights_that_are_read_are_quantised_last() -> None:
    """vLLM cannot quantise weights that its runner draws, so a shape has no such step."""
    steps = {"model": "org/model", "vllm": {"tensor_parallel_size": 2}, "backend": "vllm"}
    assert changes(steps, Cause.GPU_MEMORY, dtype="bfloat16")[-1] == "vllm.quantization: fp8"
    assert changes({**steps, "model": "shape:tiny-llama"}, Cause.GPU_MEMORY, dtype="bfloat16")[-1] == LESS[-1]


def test_steps_whose_weights_cannot_fit_are_left_out() -> None:
    """Sixteen gigabytes of weights have no room on a GPU of ten, whole."""
    config = ExperimentConfig.model_validate({**TENSOR, "model": "shape:llama-3.1-8b"})
    steps = fallbacks(config, cause=Cause.EXCHANGE, gpus=4, memory_bytes=10_000_000_000)
    assert [step.change for step in steps] == FOUR_BY_FOUR


def test_a_step_leaves_to_the_engine_what_was_left_to_it() -> None:
    """Nulls that nobody wrote would be engine arguments."""
    config = ExperimentConfig.model_validate({**TENSOR, "model": "shape:llama-3.1-8b", "on_failure": "fallback"})
    step = fallbacks(config, cause=Cause.EXCHANGE, gpus=4)[0].config
    assert step.section.engine_args() == {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert step.on_failure == "continue"
