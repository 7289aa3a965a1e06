"""Whole runs with a steady warm-up and idle baselines, on simulated GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant

if TYPE_CHECKING:
    from command import Command

GPU = fake_nvml.uuid_of(1)
ONE_SECOND = ("--set", "fake.step_s=0.05", "--max-output-tokens", "20")


def steady(*, slope_per_min: float) -> tuple[str, ...]:
    wanted = {"profile": "steady", "window_s": 3, "min_s": 5, "cap_s": 8, "slope_per_min": slope_per_min}
    return tuple(word for key, value in wanted.items() for word in ("--set", f"warmup.{key}={value}"))


def test_a_stored_run_is_analysed_anew_under_any_window(wattdock: Command) -> None:
    """What is read back gives the figures that were stored; an unknown definition is refused by name."""
    env = on_gpus(wattdock, FakeGpu(uuid=GPU, profile=(constant(300),)))
    one_token = ("--set", "repeats.one_token_passes=1")
    done = wattdock("run", *SMALL, *ONE_SECOND, *one_token, "--passes", "2", env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert [span["name"] for span in row["spans"]].count("one-token") == 1
    assert row["energy"]["phases"]["one_token_j_per_prompt_token"] > 0
    [folder] = (wattdock.folder / "results").glob("*-fake-*/")
    shown = wattdock("show", folder, "--window", "all", "--json")
    assert shown.returncode == 0, shown.stderr
    again = json.loads(shown.stdout)
    assert again == row["energy"]["windows"]
    drained = again["energy_per_output_token_j"]["drained"]
    assert drained == pytest.approx(row["energy"]["energy_per_output_token_j"])
    table = wattdock("show", folder, "--window", "steady_state")
    assert "s of 20.0 s" in table.stdout or "never leave" in table.stdout
    refused = wattdock("show", folder, "--window", "best")
    assert (refused.returncode, "'best' is not one of 'drained', 'steady_state'" in refused.stderr) == (2, True)
