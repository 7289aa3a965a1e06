"""An estimate beside what an engine reported, with figures made for the purpose."""

from __future__ import annotations

from typing import Any

import pytest

from wattdock.config.experiment import ModelSpec
from wattdock.config.placement import Split
from wattdock.config.sections.vllm import Section
from wattdock.inputs.estimate.against import Comparison, Line, compare, split_of
from wattdock.inputs.models.figures import known_figures

GB = 10**9
TOTAL = 150_754_820_096
EFFECTIVE: dict[str, Any] = {
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.9,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "num_gpu_blocks": 50_000,
    "block_size": 16,
}


# What vLLM 0.26 found on an H200 with 512 sequences and 16,384 tokens per step, both shapes in bfloat16.
FOUND = {
    "llama-3.1-8b": (16_110_919_680, 1_845_502_464, 119_903_495_271),
    "qwen3-8b": (16_394_145_792, 1_644_175_872, 119_821_595_751),
}


def compared(effective: dict[str, Any], parallelism: dict[str, Any], shape: str = "llama-3.1-8b") -> Comparison:
    figures = known_figures(ModelSpec(shape=shape))
    assert figures is not None
    return compare("result", figures, Section().memory(), EFFECTIVE | effective, parallelism)


def reported(weights: int, **others: int | None) -> dict[str, int | None]:
    """Return what a worker of vLLM reports."""
    found = {"weights_bytes": weights, "activation_peak_bytes": 1 * GB, "kv_cache_bytes": 100 * GB}
    return found | {"graph_estimate_bytes": GB // 2, "other_bytes": GB // 4, "total_bytes": TOTAL} | others


def lines_of_h200(
    found: tuple[int, int, int], sequences: int, parallelism: dict[str, Any], shape: str = "llama-3.1-8b"
) -> dict[str, Line]:
    """Hold estimates against the weights, activation peak and KV cache that vLLM found with 16,384 tokens per step."""
    parts = dict(zip(("weights_bytes", "activation_peak_bytes", "kv_cache_bytes"), found, strict=True))
    by_gpu = {"GPU-a": parts | {"total_bytes": 150_109_880_320}}
    in_effect = {"gpu_memory_utilization": 0.92, "max_num_batched_tokens": 16_384, "max_num_seqs": sequences}
    return {line.part: line for line in compared(in_effect | {"memory_by_gpu": by_gpu}, parallelism, shape).lines}


def test_each_part_stands_beside_the_engine_s_own_with_its_error() -> None:
    """The fullest GPU is compared; the one with the least cache decides for all."""
    by_gpu = {"GPU-a": reported(8 * GB), "GPU-b": reported(9 * GB, kv_cache_bytes=99 * GB)}
    found = compared({"memory_by_gpu": by_gpu}, {"kind": "tensor", "tensor_parallel_size": 2})
    lines = {line.part: line for line in found.lines}
    assert found.split == Split(tensor=2)
    assert lines["weights"].estimated == pytest.approx(8_030_261_248, rel=1e-4)
    assert lines["weights"].error == pytest.approx(8_030_261_248 / (9 * GB) - 1, rel=1e-3)
    assert lines["activation peak"].reported == 1 * GB
    assert lines["graphs and other"].reported == GB * 3 / 4
    assert lines["KV cache"].reported == 99 * GB
    assert lines["KV cache tokens"].reported == 800_000
    room = 0.9 * TOTAL - sum(lines[part].estimated or 0 for part in ("weights", "activation peak", "graphs and other"))
    assert lines["KV cache"].estimated == pytest.approx(room)
    # 65,536 bytes of keys and values per token on each of two GPUs.
    assert lines["KV cache tokens"].estimated == pytest.approx(room / 65_536)


def test_what_is_in_effect_goes_before_what_was_written() -> None:
    """Fewer tokens per step and fewer requests are smaller activations."""
    few = compared({"max_num_batched_tokens": 512, "max_num_seqs": 8}, {})
    many = compared({}, {})
    assert [line.estimated for line in few.lines][1] == 512 * 4096 * 2 * 3 + 512 * 3 * 14336 * 2 + 2**25
    assert (many.lines[1].estimated or 0) > (few.lines[1].estimated or 0)


@pytest.mark.parametrize("shape", FOUND)
def test_what_vllm_found_on_an_h200_is_estimated_within_half_a_percent(shape: str) -> None:
    """Weights, the peak of activations, and what they leave for keys and values."""
    lines = lines_of_h200(FOUND[shape], 512, {}, shape)
    assert lines["weights"].error == pytest.approx(0, abs=0.005)
    assert lines["activation peak"].error == pytest.approx(0, abs=1e-5)
    assert lines["KV cache"].error == pytest.approx(0, abs=0.005)


# The same, of Llama-3.1-8B's shape split over four H200s, with 128 sequences: the fullest worker.
SPLIT = {
    "TP=4": ({"kind": "tensor", "tensor_parallel_size": 4}, (4_069_072_896, 738_200_064, 133_224_610_919)),
    "PP=4": ({"kind": "pipeline", "pipeline_parallel_size": 4}, (4_590_821_376, 1_845_496_320, 131_595_566_183)),
    "TP=2 PP=2": (
        {"kind": "tensor+pipeline", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        (4_075_069_440, 1_073_744_384, 132_883_070_055),
    ),
}


@pytest.mark.parametrize("split", SPLIT)
def test_what_vllm_found_of_a_split_model_is_estimated_within_two_percent(split: str) -> None:
    """The peak of activations to a few bytes; what is assumed for communicators costs the cache less than 1 %."""
    parallelism, found = SPLIT[split]
    lines = lines_of_h200(found, 128, parallelism)
    assert lines["weights"].error == pytest.approx(0, abs=0.016)
    assert lines["activation peak"].error == pytest.approx(0, abs=1e-5)
    assert lines["KV cache"].error == pytest.approx(0, abs=0.01)


# The same over two H200s with vLLM's own 1,024 sequences, on a load that compiled.
COMPILED = {
    "TP=2": ({"kind": "tensor", "tensor_parallel_size": 2}, (8_091_410_432, 1_136_673_280, 128_801_703_015)),
    "PP=2": ({"kind": "pipeline", "pipeline_parallel_size": 2}, (8_080_629_760, 1_908_425_216, 128_042_828_903)),
}


@pytest.mark.parametrize("split", COMPILED)
def test_a_load_that_compiled_peaked_sixty_mebibytes_above_the_estimate(split: str) -> None:
    """Choosing tokens for twice the sequences is not what decides; compiling adds the same to either split."""
    parallelism, found = COMPILED[split]
    lines = lines_of_h200(found, 1024, parallelism)
    assert lines["weights"].error == pytest.approx(0, abs=0.01)
    assert found[1] - (lines["activation peak"].estimated or 0) == pytest.approx(60 * 2**20, abs=20_000)
    assert lines["KV cache"].error == pytest.approx(0, abs=0.01)


def test_what_graphs_hold_goes_before_what_they_were_expected_to() -> None:
    """vLLM 0.26 expects nothing, and captures later."""
    found = compared({"memory_by_gpu": {"GPU-a": reported(8 * GB, graph_estimate_bytes=0, pool_bytes=GB)}}, {})
    assert {line.part: line.reported for line in found.lines}["graphs and other"] == GB * 5 / 4


def test_an_engine_that_reports_nothing_is_unknown_with_the_reason() -> None:
    """Not measured is none, not zero."""
    found = compared({"num_gpu_blocks": None}, {})
    assert found.reason == "this result's engine did not report its memory"
    assert {line.reported for line in found.lines} == {None}
    assert {line.error for line in found.lines} == {None}


@pytest.mark.parametrize(
    ("said", "split"),
    [
        ({"kind": "none", "devices": {"a": 32}}, Split()),
        ({"kind": "tensor+pipeline", "tensor_parallel_size": 2, "pipeline_parallel_size": 4}, Split(2, 4)),
        ({"kind": "device_map", "devices": {"a": 16, "b": 16}}, Split(pipeline=2, by_device_map=True)),
        ({"kind": "data", "data_parallel_size": 2, "devices": {"a": 32, "b": 32}}, Split(replicas=2)),
    ],
)
def test_a_split_is_read_from_what_runners_say(said: dict[str, Any], split: Split) -> None:
    """As the wire brings it."""
    assert split_of(said) == split
