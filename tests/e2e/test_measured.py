"""Whole runs on simulated GPUs of known power: everything real but the engine and the driver's library."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user

if TYPE_CHECKING:
    from command import Command

BUSY, IDLE = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# Two seconds of the fake engine per pass: 40 steps of 50 ms, twice.
TWO_SECONDS = ("--set", "fake.step_s=0.05", "--max-output-tokens", "20")
# For joules whose own uncertainty a result does not hold: a machine that stalls for 0.2 s costs a tenth of two seconds.
STALLED = 0.1
# A fault of ours in one GPU's thread, put in where Python starts.
BREAKS = """
import os
from wattdock.metering.sampler import GpuSampler
read = GpuSampler._read_counter
def broken(self):
    if self.uuid == os.environ["BREAKS"] and len(self.recording.ticks) > 20:
        raise RuntimeError("put in by a test")
    read(self)
GpuSampler._read_counter = broken
"""
# The same in the meter's end.
BREAKS_AT_ITS_END = """
from wattdock.metering.meter import Meter
def broken(self, after_ns=None):
    raise RuntimeError("put in by a test")
Meter.stop = broken
"""


def assert_total(energy: dict[str, Any], joules: float) -> None:
    """See that the total is what it should be, as near as the result says it is."""
    assert energy["total_j"] == pytest.approx(joules, abs=4 * energy["uncertainty"]["timing_j"] + 0.5)


def test_two_gpus_are_summed_and_a_bystander_is_told_apart(wattdock: Command) -> None:
    """300 and 100 W for as long as each pass lasted, imbalance 1.5; utilisation and memory of each beside it."""
    third = fake_nvml.uuid_of(3)
    first = FakeGpu(uuid=BUSY, profile=(constant(300),), utilization_percent=97, memory_used_bytes=1_500_000_000)
    second = FakeGpu(uuid=IDLE, profile=(constant(100),), unsupported="utilization")
    env = on_gpus(wattdock, first, second, FakeGpu(uuid=third, name="NVIDIA L4"))
    done = wattdock("run", *SMALL[:4], "--batch-size", "2", *TWO_SECONDS, "--passes", "2", "--gpus", "0,1", env=env)
    assert done.returncode == 0, done.stderr
    [result] = wattdock.results()
    energy, shared, seconds = result["energy"], result["multi_gpu"], result["performance"]["duration_s"]
    assert_total(energy, 400 * seconds)
    assert energy["bystander_j"] == {third: pytest.approx(80 * seconds, rel=STALLED)}
    tokens = result["performance"]["output_tokens"]
    assert energy["energy_per_output_token_j"] == pytest.approx(energy["total_j"] / tokens)
    assert result["gpus"][BUSY]["counter_period_s"] == pytest.approx(0.1, rel=0.1)
    assert result["environment"]["gpu_uuids"] == [BUSY, IDLE]
    used = [gpu["uuid"] in (BUSY, IDLE) for gpu in result["environment"]["host_gpus"]]
    assert used == [True, True, False]
    assert shared["load_imbalance"] == pytest.approx(1.5, rel=STALLED)
    assert energy["per_gpu_j"] == pytest.approx({BUSY: 300 * seconds, IDLE: 100 * seconds}, rel=STALLED)
    assert shared["per_gpu_mean_utilization_percent"] == {BUSY: 97, IDLE: None}
    assert shared["per_gpu_max_memory_used_bytes"] == {BUSY: 1_500_000_000, IDLE: 0}
    assert "1.5 GB" in done.stdout


@pytest.mark.parametrize("fault", ["lost", "nonsense"])
def test_a_gpu_that_cannot_be_read_makes_energy_unknown_with_the_reason_and_keeps_the_rest(
    wattdock: Command, fault: str
) -> None:
    """Speed was measured; joules were not, and are not zero: lost mid-run, or a counter of nonsense."""
    gpu = FakeGpu(uuid=BUSY, lost_at_s=12) if fault == "lost" else FakeGpu(uuid=BUSY, counter_offset_mj=1.8e19)
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--passes", "7", env=on_gpus(wattdock, gpu))
    assert done.returncode == 0, done.stderr
    assert "a bug" not in done.stderr + done.stdout
    [result] = wattdock.results()
    assert (result["energy"]["total_j"], BUSY in result["energy"]["reason"]) == (None, True)
    assert result["performance"]["output_tokens"] > 0
    assert result["statistics"]["quantity"] == "output_tokens_per_s"
    assert "energy measured" in " ".join(result["audit"]["reasons"])


def test_without_a_counter_power_is_integrated_and_marked(wattdock: Command) -> None:
    """A figure of another kind must not pass for the counter's; whoever requires a publishable one gets exit code 8."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),), unsupported="energy"))
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--require-publishable", env=env)
    assert done.returncode == 8, done.stderr
    [result] = wattdock.results()
    assert (result["status"], result["energy"]["source"]) == ("ok", "integrated_power")
    assert result["energy"]["total_j"] == pytest.approx(300 * result["performance"]["duration_s"], rel=STALLED)
    reasons = result["audit"]["reasons"]
    assert any("counter, not integrated power" in reason for reason in reasons)
    name, _, figure = reasons[0].partition(": ")
    said = f'wattdock: not publishable: {len(reasons)} checks failed or unknown, the first: "{name}": {figure}'
    assert done.stderr.splitlines()[-1] == said


def test_zeus_fills_the_timeline_and_checks_each_pass_with_a_window_of_its_own(wattdock: Command) -> None:
    """300 W makes the truth known; the GPU that CUDA_VISIBLE_DEVICES hides is metered too, by both."""
    env = on_gpus(wattdock, FakeGpu(uuid=IDLE, seed=2), FakeGpu(uuid=BUSY, profile=(constant(300),)))
    env |= {"CUDA_VISIBLE_DEVICES": "1"}
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--passes", "2", "--meter", "zeus", env=env)
    assert done.returncode == 0, done.stderr
    assert "meter: zeus (asked for; " in done.stderr
    [result] = wattdock.results()
    energy, seconds = result["energy"], result["performance"]["duration_s"]
    assert (result["environment"]["meter"], result["environment"]["gpu_uuids"]) == ("zeus", [BUSY])
    assert_total(energy, 300 * seconds)
    assert energy["bystander_j"][IDLE] == pytest.approx(80 * seconds, rel=STALLED)
    assert [window["pass"] for window in energy["cross_check"]["windows"]] == [0, 1]
    for window in energy["cross_check"]["windows"]:
        assert window["meter_j"][BUSY] == pytest.approx(300 * (window["end_ns"] - window["start_ns"]) / 1e9, rel=0.1)
        # A counter step is 30 J here; more than two at an end where a busy machine kept the sampler from reading.
        assert abs(window["difference_j"]) <= window["bound_j"] < 10 * 34
    [agree] = [check for check in result["audit"]["checks"] if check["name"] == "meters agree"]
    assert agree["status"] == "pass", agree


def faulty(wattdock: Command, fault: str) -> dict[str, str]:
    """Return variables with which Python runs `fault` wherever it starts."""
    folder = wattdock.home / "faulty"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(fault)
    for path in (folder, *folder.iterdir()):
        give_to_user(path)
    return {"PYTHONPATH": f"{folder}"}


@pytest.mark.parametrize("breaks", [BUSY, IDLE])
def test_a_meter_thread_that_breaks_costs_its_own_gpu_only(wattdock: Command, breaks: str) -> None:
    """A used GPU without energy fails the result with its reason and keeps the rest; a bystander's is only unknown."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),)), FakeGpu(uuid=IDLE))
    done = wattdock("run", *SMALL, *TWO_SECONDS, env={**env, **faulty(wattdock, BREAKS), "BREAKS": breaks})
    [result] = wattdock.results()
    energy = result["energy"]
    assert any("broke_off" in event for event in result["gpus"][breaks]["events"])
    assert result["performance"]["output_tokens"] > 0
    if breaks == IDLE:
        assert done.returncode == 0, done.stderr
        assert energy["total_j"] == pytest.approx(300 * result["performance"]["duration_s"], rel=STALLED)
        assert energy["bystander_j"] == {IDLE: None}
    else:
        assert done.returncode == 6, done.stderr
        assert (result["status"], result["error"]["kind"], result["error"]["stage"]) == (
            "failed",
            "MeterError",
            "meter",
        )
        assert "broke off" in result["error"]["message"]
        assert (energy["total_j"], BUSY in energy["reason"]) == (None, True)


def test_a_meter_that_cannot_be_stopped_does_not_hide_what_went_wrong_first(wattdock: Command) -> None:
    """The first error is the result's and decides the exit code; the meter's is appended."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY)) | faulty(wattdock, BREAKS_AT_ITS_END)
    done = wattdock("run", *SMALL, "--set", "fake.pass_fault=die", env=env)
    assert done.returncode == 5, done.stderr
    [result] = wattdock.results()
    assert result["error"]["kind"] == "RunnerError"
    first, _, second = result["error"]["message"].partition("; then the meter: ")
    assert ("died" in first, second) == (True, "a bug in wattdock: put in by a test")


def test_a_meter_card_is_kept_and_results_use_the_lag_that_it_found(wattdock: Command) -> None:
    """Nothing loads this GPU, so the card knows no lag; a sound one with a lag is taken by the next result."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),)))
    doctor = ("doctor", "--meter", "--backend", "fake", "--runner-python", sys.executable)
    done = wattdock(*doctor, "--pulses", "30", "--json", env=env)
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    assert (card["gpu_uuid"], card["pulses"], card["lag_s"], card["steps"]) == (BUSY, 30, None, [])
    kept = wattdock.home / "wattdock" / "meter-cards" / f"{BUSY}.json"
    assert json.loads(kept.read_text()) == card
    found = {"lag_s": 0.021, "lag_std_s": 0.002, "pulses": 100, "smoothing_periods": 0.0, "additivity": 0.0}
    kept.write_text(json.dumps({**card, **found}))
    give_to_user(kept)
    ran = wattdock("run", *SMALL, env=env)
    assert ran.returncode == 0, ran.stderr
    [result] = wattdock.results()
    meter = result["gpus"][BUSY]
    assert (meter["counter_lag_s"], meter["counter_lag_std_s"]) == (0.021, 0.002)
    assert meter["card"] == card["measured_utc"]
