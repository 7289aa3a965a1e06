"""Whole runs on simulated GPUs of known power: everything real but the engine and the driver's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant

if TYPE_CHECKING:
    from command import Command

BUSY, IDLE = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# One pass of two seconds of the fake engine: 20 steps of 50 ms, twice.
PASS = (*SMALL, "--set", "fake.step_s=0.05", "--set", "warmup.passes=0", "--max-output-tokens", "20")


def assert_total(energy: dict[str, Any], joules: float) -> None:
    """See that the total is what it should be, as near as the result says it is."""
    assert energy["total_j"] == pytest.approx(joules, abs=4 * energy["timing_j"] + 0.5)


def test_two_gpus_are_summed_and_a_bystander_is_told_apart(wattdock: Command) -> None:
    """300 and 100 W for as long as the pass lasted; utilisation and memory of each beside it."""
    third = fake_nvml.uuid_of(3)
    first = FakeGpu(uuid=BUSY, profile=(constant(300),), utilization_percent=97, memory_used_bytes=1_500_000_000)
    second = FakeGpu(uuid=IDLE, profile=(constant(100),), unsupported="utilization")
    env = on_gpus(wattdock, first, second, FakeGpu(uuid=third, name="NVIDIA L4"))
    result = wattdock.measured(*PASS, "--gpus", "0,1", env=env)
    energy, shared, seconds = result["energy"], result["multi_gpu"], result["performance"]["duration_s"]
    assert_total(energy, 400 * seconds)
    assert energy["bystander_j"][third] > 0
    tokens = result["performance"]["output_tokens"]
    assert energy["measured_per_output_token_j"] == pytest.approx(energy["total_j"] / tokens)
    assert result["environment"]["gpu_uuids"] == [BUSY, IDLE]
    used = [gpu["uuid"] in (BUSY, IDLE) for gpu in result["environment"]["host_gpus"]]
    assert used == [True, True, False]
    assert energy["per_gpu_j"][BUSY] > energy["per_gpu_j"][IDLE] > 0
    assert shared["load_imbalance"] == pytest.approx(energy["per_gpu_j"][BUSY] / (energy["total_j"] / 2))


def test_zeus_fills_the_timeline_and_checks_each_pass_with_a_window_of_its_own(wattdock: Command) -> None:
    """300 W makes the truth known; the GPU that CUDA_VISIBLE_DEVICES hides is metered too, by both."""
    env = on_gpus(wattdock, FakeGpu(uuid=IDLE, seed=2), FakeGpu(uuid=BUSY, profile=(constant(300),)))
    env |= {"CUDA_VISIBLE_DEVICES": "1"}
    result = wattdock.measured(*PASS, "--meter", "zeus", env=env)
    assert result["environment"]["meter_reason"].startswith("asked for; ")
    energy, seconds = result["energy"], result["performance"]["duration_s"]
    assert (result["environment"]["meter"], result["environment"]["gpu_uuids"]) == ("zeus", [BUSY])
    assert_total(energy, 300 * seconds)
    assert energy["bystander_j"][IDLE] > 0
    [window] = energy["cross_check"]["windows"]
    assert window["pass"] == 0
    assert window["meter_j"][BUSY] > window["meter_j"][IDLE] > 0
    assert abs(window["difference_j"]) <= window["bound_j"]
    # A pass this short has no mean power to hold the counter against.
    [agree] = [check for check in result["audit"]["checks"] if check["name"] == "two readings"]
    assert (agree["status"], "zeus differs by " in agree["figure"].lower()) == ("unknown", True), agree
