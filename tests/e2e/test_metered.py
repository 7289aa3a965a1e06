"""A whole run on simulated GPUs: the real command, the real pynvml, a stand-in for the driver's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant

if TYPE_CHECKING:
    from command import Command

BUSY, IDLE = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# Two seconds of the fake engine per pass: 40 steps of 50 ms, twice.
TWO_SECONDS = ("--set", "fake.step_s=0.05", "--max-output-tokens", "20")
# For joules whose own uncertainty a result does not hold: a machine that stalls for 0.2 s costs a tenth of two seconds.
STALLED = 0.1


def assert_total(energy: dict[str, Any], joules: float) -> None:
    """See that the total is what it should be, as near as the result says it is."""
    assert energy["total_j"] == pytest.approx(joules, abs=4 * energy["uncertainty"]["timing_j"] + 0.5)


def test_joules_of_a_pass_are_the_simulated_watts_times_its_seconds(wattdock: Command) -> None:
    """Constant power makes the truth known: 300 W for as long as each pass lasted, bystander apart."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),)), FakeGpu(uuid=IDLE, name="NVIDIA L4"))
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--passes", "2", env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    energy, seconds = row["energy"], row["performance"]["duration_s"]
    assert_total(energy, 300 * seconds)
    assert energy["per_gpu_j"] == {BUSY: pytest.approx(energy["total_j"])}
    assert energy["bystander_j"][IDLE] == pytest.approx(80 * seconds, rel=STALLED)
    assert energy["energy_per_output_token_j"] == pytest.approx(energy["total_j"] / row["performance"]["output_tokens"])
    assert energy["meter"][BUSY]["counter_period_s"] == pytest.approx(0.1, rel=0.1)
    assert 0 < energy["meter"][BUSY]["nvml_busy_fraction"] < 0.5
    environment = row["environment"]
    assert (environment["gpu_count"], environment["gpu_names"]) == (1, ["NVIDIA H200"])
    assert environment["gpu_vram_gb"] == [pytest.approx(150.75, abs=0.01)]
    assert [gpu["uuid"] in environment["gpu_uuids"] for gpu in environment["host_gpus"]] == [True, False]
    assert row["multi_gpu"]["load_imbalance"] == 1


def test_two_gpus_are_summed_in_the_order_of_the_host(wattdock: Command) -> None:
    """300 and 100 W: three quarters of the energy on one, imbalance 1.5; utilisation and memory of each beside it."""
    first = FakeGpu(uuid=BUSY, profile=(constant(300),), utilization_percent=97, memory_used_bytes=1_500_000_000)
    env = on_gpus(wattdock, first, FakeGpu(uuid=IDLE, profile=(constant(100),), unsupported="utilization"))
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--gpus", "0,1", env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert row["environment"]["gpu_uuids"] == [BUSY, IDLE]
    shared, seconds = row["multi_gpu"], row["performance"]["duration_s"]
    assert_total(row["energy"], 400 * seconds)
    assert shared["load_imbalance"] == pytest.approx(1.5, rel=STALLED)
    assert shared["per_gpu_energy_j"] == pytest.approx({BUSY: 300 * seconds, IDLE: 100 * seconds}, rel=STALLED)
    assert shared["per_gpu_mean_power_w"] == pytest.approx({BUSY: 300, IDLE: 100}, rel=STALLED)
    assert shared["per_gpu_mean_utilization_percent"] == {BUSY: 97, IDLE: None}
    assert shared["per_gpu_max_memory_used_bytes"] == {BUSY: 1_500_000_000, IDLE: 0}
    assert "1.5 GB" in done.stdout
    assert shared["energy_boundary"] == "gpu_boards"


def test_a_gpu_lost_mid_run_makes_energy_unknown_with_the_reason_and_keeps_the_rest(wattdock: Command) -> None:
    """Speed was measured; joules were not, and are not zero."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, lost_at_s=12))
    done = wattdock("run", *SMALL, *TWO_SECONDS, "--passes", "7", env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert row["energy"]["total_j"] is None
    assert BUSY in row["energy"]["reason"]
    assert any("gpu_lost" in event for event in row["energy"]["meter"][BUSY]["events"])
    assert row["performance"]["output_tokens"] > 0
    assert row["statistics"]["quantity"] == "output_tokens_per_s"
    assert "energy measured" in " ".join(row["audit"]["reasons"])


def test_without_a_counter_power_is_integrated_and_marked(wattdock: Command) -> None:
    """A figure of another kind must not pass for the counter's."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),), unsupported="energy"))
    done = wattdock("run", *SMALL, *TWO_SECONDS, env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert row["energy"]["source"] == "integrated_power"
    assert row["energy"]["total_j"] == pytest.approx(300 * row["performance"]["duration_s"], rel=STALLED)
    assert any("counter, not integrated power" in reason for reason in row["audit"]["reasons"])


def test_what_may_not_be_published_has_an_exit_code_of_its_own_where_that_was_required(wattdock: Command) -> None:
    """All went well, the row is stored, and the verdict is no."""
    env = on_gpus(wattdock, FakeGpu(uuid=BUSY, profile=(constant(300),)))
    done = wattdock("run", *SMALL, "--require-publishable", env=env)
    assert done.returncode == 8, done.stderr
    [row] = wattdock.results()
    assert row["status"] == "ok"
    reasons = row["audit"]["reasons"]
    said = f"wattdock: not publishable: {len(reasons)} reasons, the first: {reasons[0]}"
    assert done.stderr.splitlines()[-1] == said
