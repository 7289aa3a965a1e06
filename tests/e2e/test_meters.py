"""Whole runs under meters other than NVML's, and under one that breaks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user

from wattdock.metering.rapl import POWERCAP

if TYPE_CHECKING:
    from command import Command

BUSY, IDLE = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# Two seconds of the fake engine per pass: 40 steps of 50 ms, twice.
TWO_SECONDS = ("--set", "fake.step_s=0.05", "--max-output-tokens", "20")
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


def test_zeus_fills_the_timeline_and_checks_each_pass_with_a_window_of_its_own(wattdock: Command) -> None:
    """300 W makes the truth known; the GPU that CUDA_VISIBLE_DEVICES hides is metered too, by both."""
    env = on_gpus(wattdock, FakeGpu(uuid=IDLE, seed=2), FakeGpu(uuid=BUSY, profile=(constant(300),)))
    done = wattdock(
        "run", *SMALL, *TWO_SECONDS, "--passes", "2", "--meter", "zeus", env={**env, "CUDA_VISIBLE_DEVICES": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "meter: zeus (asked for; " in done.stderr
    assert "zeus: " in done.stdout
    [row] = wattdock.results()
    energy, seconds = row["energy"], row["performance"]["duration_s"]
    assert row["environment"]["meter"] == "zeus"
    assert row["environment"]["gpu_uuids"] == [BUSY]
    assert energy["total_j"] == pytest.approx(300 * seconds, abs=4 * energy["uncertainty"]["timing_j"] + 0.5)
    assert energy["bystander_j"][IDLE] == pytest.approx(80 * seconds, rel=0.1)
    check = energy["cross_check"]
    assert check["source"] == "zeus"
    assert [one["pass"] for one in check["windows"]] == [0, 1]
    for one, measured in zip(check["windows"], energy["passes"], strict=True):
        length_s = (one["end_ns"] - one["start_ns"]) / 1e9
        assert length_s > measured["duration_s"]
        assert one["own_j"][BUSY] == pytest.approx(300 * length_s, rel=0.1)
        assert one["difference_j"] == pytest.approx(one["other_j"][BUSY] - one["own_j"][BUSY])
        # A counter step is 30 J here; more than two at an end where a busy machine kept the sampler from reading.
        assert abs(one["difference_j"]) <= one["bound_j"] < 10 * 34
        assert one["other_j"][IDLE] == pytest.approx(80 * length_s, abs=10 * 9)
    worst = max(check["windows"], key=lambda one: abs(one["difference_share"]))
    assert check["worst_difference_j"] == worst["difference_j"]
    [agree] = [one for one in row["audit"]["checks"] if one["name"] == "meters agree"]
    assert agree["status"] == "pass", agree


@pytest.mark.parametrize("meter", ["nvml", "zeus"])
def test_a_counter_of_nonsense_is_a_counter_that_cannot_be_read(wattdock: Command, meter: str) -> None:
    """All ones, as from a driver that has none to give: told, and no figure made of it."""
    env = on_gpus(wattdock, FakeGpu(counter_offset_mj=1.8e19))
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--meter", meter, env=env)
    assert "Traceback" not in done.stderr
    assert "a bug" not in done.stderr + done.stdout
    [row] = wattdock.results()
    assert row["energy"]["total_j"] is None
    assert "not measured" in done.stdout
    [measured] = [one for one in row["audit"]["checks"] if one["name"] == "energy measured"]
    assert measured["status"] != "pass"


@pytest.mark.parametrize("meter", ["zeus", "rapl"])
def test_a_meter_that_cannot_be_had_is_refused_before_anything_starts(wattdock: Command, meter: str) -> None:
    """One line with the next step, exit code 3, no row; the driver, where there is one, shows no GPU."""
    if meter == "rapl" and any(os.access(counter, os.R_OK) for counter in POWERCAP.glob("intel-rapl:*/energy_uj")):
        pytest.skip("this machine lets RAPL be read")
    done = wattdock("run", *SMALL, "--meter", meter, env=on_gpus(wattdock))
    assert done.returncode == 3
    assert f"meter: {meter}: " in done.stderr
    assert "--meter none" in done.stderr
    assert wattdock.results() == []


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
    """A used GPU without energy fails the row with its reason and keeps the rest; a bystander's is only unknown."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),)), FakeGpu(uuid=IDLE))
    done = wattdock("run", *SMALL, *TWO_SECONDS, env={**env, **faulty(wattdock, BREAKS), "BREAKS": breaks})
    [row] = wattdock.results()
    assert any("broke_off" in event for event in row["energy"]["meter"][breaks]["events"])
    assert row["performance"]["output_tokens"] > 0
    if breaks == IDLE:
        assert done.returncode == 0, done.stderr
        assert row["energy"]["total_j"] == pytest.approx(300 * row["performance"]["duration_s"], rel=0.1)
        assert row["energy"]["bystander_j"] == {IDLE: None}
    else:
        assert done.returncode == 6, done.stderr
        assert (row["status"], row["error"]["kind"], row["error"]["stage"]) == ("failed", "MeterError", "meter")
        assert "broke off" in row["error"]["message"]
        assert row["energy"]["total_j"] is None
        assert BUSY in row["energy"]["reason"]


def test_a_meter_that_cannot_be_stopped_does_not_hide_what_went_wrong_first(wattdock: Command) -> None:
    """The first error is the row's and decides the exit code; the meter's is appended."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY))
    dies = ("--set", "fake.pass_fault=die")
    done = wattdock("run", *SMALL, *dies, env={**env, **faulty(wattdock, BREAKS_AT_ITS_END)})
    assert done.returncode == 5, done.stderr
    [row] = wattdock.results()
    assert row["error"]["kind"] == "RunnerError"
    first, _, second = row["error"]["message"].partition("; then the meter: ")
    assert "died" in first
    assert second == "a bug in wattdock: put in by a test"
