"""The fallbacks of an experiment that failed."""

from __future__ import annotations

from typing import Any

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


def test_where_links_fail_other_splits_come_first_and_then_replicas() -> None:
    """The same four GPUs, every other way; less work would not mend a link."""
    assert changes(TENSOR, Cause.EXCHANGE) == [*FOUR_BY_FOUR, REPLICAS] == changes(TENSOR, Cause.HANG)


def test_where_memory_fails_less_of_it_is_asked_for_and_no_replicas() -> None:
    """Fewer requests in flight, then fewer bits; a copy on each GPU takes more, not less."""
    less = ["workload.batch_size: 4", "workload.batch_size: 2"]
    assert changes(TENSOR, Cause.KV_CACHE, dtype="float32") == [*FOUR_BY_FOUR, *less, "vllm.dtype: bfloat16"]
    assert changes(TENSOR, Cause.GPU_MEMORY, dtype="bfloat16") == [*FOUR_BY_FOUR, *less]
    assert changes({"backend": "vllm"}, Cause.KV_CACHE) == less


def test_weights_that_are_read_are_quantised_last() -> None:
    """vLLM cannot quantise weights that its runner draws, so a shape has no such step."""
    steps = {"model": "org/model", "vllm": {"tensor_parallel_size": 2}, "backend": "vllm"}
    assert changes(steps, Cause.GPU_MEMORY, dtype="bfloat16")[-1] == "vllm.quantization: fp8"
    assert (
        changes({**steps, "model": "shape:tiny-llama"}, Cause.GPU_MEMORY, dtype="bfloat16")[-1]
        == "workload.batch_size: 2"
    )


def test_a_death_may_be_anything_so_all_but_fewer_bits_is_tried() -> None:
    """Killed without a word, for lack of host memory as likely as not."""
    less = ["workload.batch_size: 4", "workload.batch_size: 2"]
    assert changes(TENSOR, Cause.WORKER) == [*FOUR_BY_FOUR, REPLICAS, *less]


def test_pytorch_has_two_ways_to_split_and_replicas() -> None:
    """Over the GPUs that it was given, whatever the section says."""
    split = {"pytorch": {"tp_plan": "auto", "tp_size": 2}}
    assert changes(split, Cause.EXCHANGE) == ["pytorch.device_map: auto", "pytorch.data_parallel_size: 2"]
    spread = {"pytorch": {"device_map": "auto"}}
    assert changes(spread, Cause.EXCHANGE, gpus=2)[0] == "pytorch.tp_plan: auto, pytorch.tp_size: 2"
    assert changes(spread, Cause.EXCHANGE, gpus=1) == []


def test_replicas_fall_back_to_splits() -> None:
    """There is nothing to fall back to within replicas but fewer requests."""
    replicas = {"backend": "vllm", "vllm": {"data_parallel_size": 2}}
    assert changes(replicas, Cause.RUNNER)[:2] == [
        "vllm.tensor_parallel_size: 2, vllm.pipeline_parallel_size: 1, vllm.data_parallel_size: 1",
        "vllm.tensor_parallel_size: 1, vllm.pipeline_parallel_size: 2, vllm.data_parallel_size: 1",
    ]


def test_steps_that_contradict_other_settings_are_left_out() -> None:
    """Three requests in flight cannot be shared out among four replicas."""
    assert changes({**TENSOR, "workload": {"batch_size": 3}}, Cause.EXCHANGE) == FOUR_BY_FOUR


def test_splits_that_the_model_does_not_allow_are_left_out() -> None:
    """Two KV heads cannot be shared out among four ranks, and transformers does not repeat them."""
    spread = {"pytorch": {"device_map": "auto"}}
    assert changes(spread, Cause.EXCHANGE, gpus=4) == ["pytorch.data_parallel_size: 4"]


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


def test_what_no_other_setting_mends_has_no_fallback() -> None:
    """A mistake in a setting stays one."""
    assert changes(TENSOR, Cause.UNKNOWN_SETTING) == changes(TENSOR, None) == []
