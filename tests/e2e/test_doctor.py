"""Cards of energy counters, made by the real command on simulated GPUs and cited by the results after them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from command import SMALL, on_gpus
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user

if TYPE_CHECKING:
    from command import Command

GPU = fake_nvml.uuid_of(1)
DOCTOR = ("doctor", "--meter", "--backend", "fake", "--runner-python", sys.executable)


def test_a_card_is_kept_and_results_use_the_lag_that_it_found(wattdock: Command) -> None:
    """Nothing loads this GPU, so the card knows no lag; a sound one with a lag is taken by the next result."""
    env = on_gpus(wattdock, FakeGpu(uuid=GPU, profile=(constant(300),)))
    done = wattdock(*DOCTOR, "--pulses", "30", "--json", env=env)
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    assert (card["gpu_uuid"], card["pulses"], card["lag_s"], card["steps"]) == (GPU, 30, None, [])
    assert card["period_s"] == pytest.approx(0.1, rel=0.1)
    kept = wattdock.home / "wattdock" / "meter-cards" / f"{GPU}.json"
    assert json.loads(kept.read_text()) == card
    found = {"lag_s": 0.021, "lag_std_s": 0.002, "pulses": 100, "smoothing_periods": 0.0, "additivity": 0.0}
    kept.write_text(json.dumps({**card, **found}))
    give_to_user(kept)
    ran = wattdock("run", *SMALL, env=env)
    assert ran.returncode == 0, ran.stderr
    [row] = wattdock.results()
    fact = row["energy"]["meter"][GPU]
    assert (fact["counter_lag_s"], fact["counter_lag_std_s"]) == (0.021, 0.002)
    assert fact["card"] == card["measured_utc"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*DOCTOR, "--gpus", "7"), 3, "there are GPUs 0"),
        (("doctor", "--meter", "--backend", "vllm"), 3, "makes no load pulses"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(wattdock: Command, words: tuple[str, ...], code: int, said: str) -> None:
    """In one line, before anything is made."""
    done = wattdock(*words, env=on_gpus(wattdock, FakeGpu(uuid=GPU)))
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == 1
