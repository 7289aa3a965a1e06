"""The least time and energy of work on GPUs: by hand, at each of the three walls, and from records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from merge_samples import constant_power, measured, request, timeline
from pydantic import ValidationError
from report_rows import document

from wattdock.analysis.compute import NO_BITS, Compute, compute
from wattdock.analysis.result import ExperimentResult
from wattdock.analysis.roofline import NO_CARD, NO_ROOM, UNUSED_CARD, PowerBudget, Roofline
from wattdock.host.gpu_models import Peak
from wattdock.inputs.shapes import shape_config
from wattdock.metering.work_power import WorkPower
from wattdock.records.restart import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.metering import GpuTimeline
    from wattdock.records.passes import PassRecord

# Of one H200, see docs/measurements/roofline.md; 8-bit arithmetic, too.
H200 = WorkPower({16: 0.415e-12, 8: 0.263e-12}, 48e-12, 391.0, 0.085, 27)
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
    work_power: WorkPower | None = H200,
    limit_w: float | None = 700.0,
) -> Compute:
    """Return the arithmetic of 128 requests of 512 tokens in and out, served by one H200 at 690 W."""
    sample = ExperimentResult.model_validate(document())
    assert sample.environment is not None
    assert sample.energy is not None
    told = sample.environment.runner.model_copy(
        update={"weight_bytes": WEIGHT_BYTES, "engine_args": {"dtype": "bfloat16"}, **runner}
    )
    host = [gpu.model_copy(update={"power_limit_w": limit_w}) for gpu in sample.environment.host_gpus]
    environment = sample.environment.model_copy(update={"runner": told, "host_gpus": host})
    power = replace(constant_power(GPU, POWER_W, start_s=0, end_s=30), work_power=work_power)
    record = RestartRecord(0, passes=(served(),), timeline=timeline(power))
    energy = sample.energy.model_copy(update={"total_j": POWER_W * SECONDS})
    return compute(shape_config(model) | dict(config), [record], environment, energy, in_flight=REQUESTS)


def placed(made: Compute) -> Roofline:
    assert made.roofline is not None
    return made.roofline


def test_llama_by_hand() -> None:
    """The worked example of docs/methodology.md, to four digits, per request."""
    made = worked_out()
    found = placed(made)
    assert made.model_flops == pytest.approx(REQUESTS * 1.5092e13, rel=5e-5)
    assert made.bytes_read_least == pytest.approx(REQUESTS * 1.1148e11, rel=5e-5)
    by_hand_s = {"arithmetic": 15.26e-3, "bandwidth": 23.22e-3, "power": 37.59e-3}
    assert found.least_s == {wall: pytest.approx(REQUESTS * each_s, rel=5e-4) for wall, each_s in by_hand_s.items()}
    assert found.nearest_limit == "power"
    assert found.energy_j is not None
    assert found.energy_j == pytest.approx(REQUESTS * 26.31, rel=5e-4)
    assert found.energy_j / REQUESTS / 512 == pytest.approx(0.05139, rel=5e-4)
    assert found.time_ratio == pytest.approx(SECONDS / found.least_s["power"])
    assert found.shares["bandwidth"] == pytest.approx(REQUESTS * 23.22e-3 / SECONDS, rel=5e-4)
    assert next(iter(found.shares)) == "power"
    assert found.energy_ratio == pytest.approx(POWER_W * SECONDS / found.energy_j)
    assert found.reason is None
    assert found.budget == PowerBudget(
        power_limit_w=700, constant_w=391, j_per_operation=0.415e-12, j_per_byte=48e-12, misfit=0.085
    )


@pytest.mark.parametrize(
    ("operations", "bytes_read", "limit", "time_s"),
    [(1000, 1, "arithmetic", 10), (1, 1000, "bandwidth", 100), (500, 50, "power", 600 / 72)],
)
def test_the_slowest_limit_is_the_nearest(operations: float, bytes_read: float, limit: str, time_s: float) -> None:
    """100 operations and 10 bytes a second; 1 J and 2 J of a budget that leaves 1,000 or 72 W."""
    power_limit_w = 172 if limit == "power" else 1100
    budget = PowerBudget(power_limit_w=power_limit_w, constant_w=100, j_per_operation=1, j_per_byte=2, misfit=0.01)
    found = Roofline.of(operations, bytes_read, Peak(100, 10, ""), (budget, ""), duration_s=200, total_j=None)
    assert (found.nearest_limit, found.energy_ratio) == (limit, None)
    assert max(found.least_s.values()) == pytest.approx(time_s)
    assert found.energy_j == pytest.approx(operations + 2 * bytes_read + 100 * time_s)
    assert found.time_ratio == pytest.approx(200 / time_s)


@pytest.mark.parametrize(
    ("work_power", "limit_w", "reason"),
    [
        (None, 700.0, NO_CARD),
        (replace(H200, j_per_operation={8: 1e-13}), 700.0, "a GPU's meter card has no cost of 16-bit operations"),
        (H200, None, NO_ROOM),
        (H200, 391.0, NO_ROOM),
    ],
)
def test_without_a_power_budget_only_the_least_time_is_known(
    work_power: WorkPower | None, limit_w: float | None, reason: str
) -> None:
    """And the reason says what is missing."""
    found = placed(worked_out(work_power=work_power, limit_w=limit_w))
    assert (found.nearest_limit, found.reason) == ("bandwidth", reason)
    assert set(found.shares) == {"bandwidth", "arithmetic"}
    assert (found.energy_j, found.energy_ratio, found.budget) == (None, None, None)


def test_two_gpus_share_the_work() -> None:
    """Limits and constant power add up, costs are the mean; one without figures leaves none."""
    powers = [WorkPower({16: cost}, 2 * cost, 100 * cost, cost / 100, 3) for cost in (1.0, 3.0)]
    timelines = [replace(constant_power(GPU, 1, start_s=0, end_s=1), work_power=power) for power in powers]
    gpus: list[tuple[float | None, GpuTimeline | None]] = list(zip((700.0, 500.0), timelines, strict=True))
    budget = PowerBudget(power_limit_w=1200, constant_w=400, j_per_operation=2, j_per_byte=4, misfit=0.03)
    assert PowerBudget.of(gpus, 16) == (budget, "")
    assert PowerBudget.of([*gpus, (700.0, None)], 16) == (None, NO_CARD)
    misses = replace(timelines[0], card="2026-11-27T16:52:02+00:00", work_power=None)
    assert PowerBudget.of([(700.0, misses)], 16) == (None, UNUSED_CARD)


@pytest.mark.parametrize("change", [{"time_ratio": 0}, {"least_s": {}}, {"least_s": {"power": 0}}, {"energy_j": -1}])
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
    """Weights of 8 bits are multiplied at that peak and cost, those of 4 are unpacked; caches keep their width."""
    made = worked_out(runner=runner)
    budget, weight_bytes = placed(made).budget, runner.get("weight_bytes", WEIGHT_BYTES)
    assert made.arithmetic_bits == bits
    assert made.peak_flops_per_s == (2 if bits == 8 else 1) * 989e12
    assert (budget.j_per_operation if budget else None) == H200.j_per_operation.get(bits)
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


def test_of_experts_only_those_that_a_token_is_routed_to_are_read_and_multiplied() -> None:
    """The least: more requests in one step meet more experts. 2 of Mixtral's 8."""
    made = worked_out(model="mixtral-8x7b", runner={"weight_bytes": 93_405_585_408})
    assert made.model_flops == REQUESTS * 26_224_262_905_856
    cache = 32 * 2 * 8 * 128 * 2 * (1023 * 1024 - 512 * 513) / 2
    assert made.bytes_read_least == pytest.approx(
        512 * 2 * 12_748_587_008 * 46_702_792_704 / 46_702_526_464 + REQUESTS * cache
    )
    assert placed(made).nearest_limit == "power"


def test_without_the_weights_size_or_the_peak_there_is_no_roofline() -> None:
    """An engine that does not tell how many bytes its weights take."""
    made = worked_out(runner={"weight_bytes": None})
    assert (made.roofline, made.bytes_read_least, made.peak_memory_share_least) == (None, None, None)
    assert made.peak_flops_share == pytest.approx(REQUESTS * 1.5092e13 / SECONDS / 989e12, rel=1e-3)
