"""The least time of work on GPUs: by hand, at each of the two limits, and from records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from make.records import experiment, measured, request
from make.rows import document
from pydantic import ValidationError
from seams.analysis import NO_BITS, Compute, Roofline, compute
from seams.host import Peak
from seams.inputs import shape_config

from wattdock.analysis import ExperimentResult
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.records import PassRecord

GPU = "GPU-00000000-0000-0000-0000-000000000001"
REQUESTS, SECONDS, POWER_W = 128, 6.3, 690.0
# Of llama-3.1-8b, all in 16 bits.
WEIGHT_BYTES = 2 * 8_030_261_248


def served(prompt: int = 512, output: int = 512, requests: int = REQUESTS) -> PassRecord:
    """Return a pass of equal requests, all in flight at once."""
    each = [request(index, 10, 11, 10 + SECONDS, output) for index in range(requests)]
    return measured(0, 10, 10 + SECONDS, tuple(replace(made, prompt_tokens=prompt) for made in each))


def worked_out(
    *,
    model: str = "llama-3.1-8b",
    config: Mapping[str, Any] = {},
    runner: Mapping[str, Any] = {},
) -> Compute:
    """Return the arithmetic of 128 requests of 512 tokens in and out, served by one H200 at 690 W."""
    sample = ExperimentResult.model_validate(document())
    assert sample.environment is not None
    assert sample.energy is not None
    told = sample.environment.runner.model_copy(
        update={"weight_bytes": WEIGHT_BYTES, "engine_args": {"dtype": "bfloat16"}, **runner}
    )
    environment = sample.environment.model_copy(update={"runner": told})
    record = RestartRecord(0, passes=(served(),), architecture=shape_config(model) | dict(config))
    energy = sample.energy.model_copy(update={"total_j": POWER_W * SECONDS})
    return compute(experiment(record, workload={"batch_size": REQUESTS}), environment, energy)


def placed(made: Compute) -> Roofline:
    assert made.roofline is not None
    return made.roofline


def test_llama_by_hand() -> None:
    """The worked example of docs/methodology.md, to four digits, per request."""
    made = worked_out()
    found = placed(made)
    assert made.model_flops == pytest.approx(REQUESTS * 1.5092e13, rel=5e-5)
    assert made.bytes_read_least == pytest.approx(REQUESTS * 1.1148e11, rel=5e-5)
    by_hand_s = {"arithmetic": 15.26e-3, "bandwidth": 23.22e-3}
    assert found.least_s == {limit: pytest.approx(REQUESTS * each_s, rel=5e-4) for limit, each_s in by_hand_s.items()}
    assert found.nearest_limit == "bandwidth"
    assert found.time_ratio == pytest.approx(SECONDS / found.least_s["bandwidth"])
    assert found.shares["bandwidth"] == pytest.approx(REQUESTS * 23.22e-3 / SECONDS, rel=5e-4)
    assert next(iter(found.shares)) == "bandwidth"


@pytest.mark.parametrize(
    ("operations", "bytes_read", "limit", "time_s"),
    [(1000, 1, "arithmetic", 10), (1, 1000, "bandwidth", 100)],
)
def test_the_slowest_limit_is_the_nearest(operations: float, bytes_read: float, limit: str, time_s: float) -> None:
    """100 operations and 10 bytes a second."""
    found = Roofline.of(operations, bytes_read, Peak(100, 10, ""), duration_s=200)
    assert found.nearest_limit == limit
    assert max(found.least_s.values()) == pytest.approx(time_s)
    assert found.time_ratio == pytest.approx(200 / time_s)


@pytest.mark.parametrize("change", [{"time_ratio": 0}, {"least_s": {}}, {"least_s": {"bandwidth": 0}}])
def test_an_impossible_roofline_is_refused(change: Mapping[str, Any]) -> None:
    """A stranger's result may say anything; nothing that reads it divides by 0."""
    with pytest.raises(ValidationError):
        Roofline.model_validate(placed(worked_out()).model_dump() | dict(change))


@pytest.mark.parametrize(
    ("runner", "bits", "cache_bytes"),
    [
        ({"weight_bytes": WEIGHT_BYTES // 2, "engine_args": {"dtype": "bfloat16", "linear_operands_bits": 8}}, 8, 2),
        ({"engine_args": {"dtype": "torch.bfloat16", "kv_cache_dtype": "fp8"}}, 16, 1),
        ({"engine_args": {"dtype": "bfloat16", "kv_cache_dtype": "auto"}}, 16, 2),
        ({"engine_args": {"dtype": "float16", "kv_cache_config": {"dtype": "fp8"}}}, 16, 1),
        ({"weight_bytes": WEIGHT_BYTES // 4, "engine_args": {"dtype": "float16", "linear_operands_bits": 16}}, 16, 2),
        ({"weight_bytes": 2 * WEIGHT_BYTES, "engine_args": {"dtype": "float32"}}, 32, 4),
        ({"weight_bytes": 2 * WEIGHT_BYTES, "engine_args": {"dtype": "float"}}, 32, 4),
    ],
    ids=["8-bit weights", "8-bit cache", "plain", "TensorRT's 8-bit cache", "4-bit weights", "32 bits", "float"],
)
def test_arithmetic_and_cache_are_counted_in_their_own_types(
    runner: Mapping[str, Any], bits: int, cache_bytes: int
) -> None:
    """Weights of 8 bits are multiplied at that peak, those of 4 are unpacked; caches keep their width."""
    made = worked_out(runner=runner)
    weight_bytes = runner.get("weight_bytes", WEIGHT_BYTES)
    assert made.arithmetic_bits == bits
    assert made.peak_flops_per_s == (2 if bits == 8 else 1) * 989e12
    weights = 512 * 7_504_658_432 / 8_029_995_008 * weight_bytes
    assert made.bytes_read_least == pytest.approx(weights + REQUESTS * 51_438_944_256 * cache_bytes / 2)


@pytest.mark.parametrize("guesses", [{"spec_tokens": 3}, {"speculative_num_draft_tokens": 3}])
def test_an_engine_that_guesses_tokens_reads_its_weights_and_caches_less_often(guesses: Mapping[str, Any]) -> None:
    """A step may give each request its next token and three that were guessed rightly: a quarter of the steps."""
    made = worked_out(runner={"engine_args": {"dtype": "bfloat16", **guesses}})
    assert made.bytes_read_least == pytest.approx(REQUESTS * 1.1148e11 / 4, rel=5e-5)
    assert made.model_flops == worked_out().model_flops


@pytest.mark.parametrize(
    ("engine_args", "config"),
    [
        ({"dtype": "bfloat16"}, {"quantization_config": {"quant_method": "fp8"}}),
        ({"dtype": "bfloat16", "quantization": "awq"}, {}),
        ({"dtype": "bfloat16", "quantization": "fp8", "linear_operands_bits": None}, {}),
        ({"dtype": "bfloat16", "linear_operands_bits": "8"}, {}),
        ({"dtype": "auto"}, {}),
        ({}, {"dtype": "bfloat16"}),
    ],
)
def test_operands_of_which_the_engine_says_nothing_have_no_peak(
    engine_args: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """What was asked for may not be what was done: neither 16 bits nor 8 is right for sure; FLOPs and bytes stand."""
    made = worked_out(runner={"engine_args": engine_args}, config=config)
    assert (made.arithmetic_bits, made.peak_flops_share, made.roofline) == (None, None, None)
    assert made.peak_reason == NO_BITS
    assert made.model_flops == pytest.approx(REQUESTS * 1.5092e13, rel=5e-5)


def test_a_token_is_multiplied_by_its_experts_and_a_step_reads_those_of_all_its_tokens() -> None:
    """Two of Mixtral's eight for one token; of 512 requests in a step, no expert is without a token."""
    made = worked_out(model="mixtral-8x7b", runner={"weight_bytes": 93_405_585_408})
    assert made.model_flops == REQUESTS * 26_224_262_905_856
    cache = 32 * 2 * 8 * 128 * 2 * (1023 * 1024 - 512 * 513) / 2
    assert made.bytes_read_least == pytest.approx(
        512 * 2 * (46_702_526_464 - 131_072_000) * 46_702_792_704 / 46_702_526_464 + REQUESTS * cache
    )
    assert placed(made).nearest_limit == "bandwidth"


def test_without_the_weights_size_or_the_peak_there_is_no_roofline() -> None:
    """An engine that does not tell how many bytes its weights take."""
    made = worked_out(runner={"weight_bytes": None})
    assert (made.roofline, made.bytes_read_least, made.peak_memory_share_least) == (None, None, None)
    assert made.peak_flops_share == pytest.approx(REQUESTS * 1.5092e13 / SECONDS / 989e12, rel=1e-3)
