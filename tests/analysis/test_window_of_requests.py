"""Figures per request are the engine's in its steady state: simulated engines beside a run a hundred times as long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make.outcomes import known
from make.records import experiment
from make.traffic import ClosedLoop, KnownJoules, closed_loop
from seams.analysis import goodput, measured_energy, performance, tpot_s

from wattdock.clock import NS_PER_S
from wattdock.records import RestartRecord

IN_FLIGHT, OUTPUT = 64, 250


def served(seconds: float) -> ClosedLoop:
    """Return a pass of requests of one length; the first 64 arrive at one instant, with their answers shortened."""
    return closed_loop(seconds, np.random.default_rng(3), in_flight=IN_FLIGHT, lengths="fixed", output=OUTPUT)


@pytest.mark.parametrize(("profile", "lead_in_s"), [("lead-in", 45), ("quick", 0)])
def test_figures_per_request_are_those_of_a_long_run(profile: str, lead_in_s: float) -> None:
    """The first prompts wait up to 0.8 s for each other, the later ones 22 ms; no rate is of filling and draining."""
    long_run, loop = served(1000), served(lead_in_s + 46)
    start_s, end_s = long_run.at_s[0] + 100, long_run.at_s[-1] - 100
    middle = [each for each in long_run.record.requests if start_s < each.submitted_ns / NS_PER_S <= end_s]
    first_s = np.array([(known(each.first_token_ns) - each.submitted_ns) / NS_PER_S for each in middle])
    power_w = np.diff(np.interp([start_s, end_s], long_run.at_s, long_run.energy_j))[0] / (end_s - start_s)
    per_s = len(middle) / (end_s - start_s)

    made_up = experiment(
        RestartRecord(0, passes=(loop.record,)),
        workload={"arrival": "closed", "batch_size": IN_FLIGHT, "staggered_start": True},
        warmup={"profile": profile},
        slo={"ttft_ms": 100},
    )
    made_up = replace(made_up, energy=KnownJoules(loop, np.random.default_rng(4)))
    assert made_up.windows.headline == "steady_state"
    speed, energy, good = known(performance(made_up)), measured_energy(made_up), known(goodput(made_up))

    assert known(speed.ttft).mean_s == pytest.approx(first_s.mean(), rel=0.01)
    assert known(speed.ttft).p99_s == pytest.approx(np.quantile(first_s, 0.99), rel=0.01)
    # Of all requests of the pass it is beyond 0.5 s.
    assert max(known(each.first_token_ns) - each.submitted_ns for each in loop.record.requests) > 0.5 * NS_PER_S
    assert (good.share_met, good.requests) == (1, known(speed.e2e).count)
    assert speed.requests_per_s == pytest.approx(per_s, rel=0.005)
    assert speed.mean_in_flight == pytest.approx(IN_FLIGHT, rel=0.001)
    # The meter is off by 0.2 % (standard deviation).
    assert energy.energy_per_request_j == pytest.approx(power_w / per_s, rel=0.01)
    assert energy.energy_per_request_j == pytest.approx(OUTPUT * known(energy.measured_per_output_token_j), rel=0.005)
    assert speed.requests_per_s * known(energy.energy_per_request_j) == pytest.approx(energy.mean_power_w)


@pytest.mark.parametrize(("in_flight", "prompt", "output"), [(64, 2000, 600), (64, 512, 250)])
def test_long_answers_of_an_engine_that_empties_take_as_long_as_in_one_that_does_not(
    in_flight: int, prompt: int, output: int
) -> None:
    """Of all that arrive in windows of five lifetimes, those that end in the drain are up to a third faster."""
    shape: dict[str, Any] = {"in_flight": in_flight, "lengths": "lognormal", "prompt": prompt, "output": output}
    long_run = closed_loop(1500, np.random.default_rng(1), **shape)
    middle = [each for each in long_run.record.requests if 200 < each.submitted_ns / NS_PER_S - long_run.at_s[0] < 1200]
    took_s = np.array([(known(each.finished_ns) - each.submitted_ns) / NS_PER_S for each in middle])
    per_token_s = np.array([known(tpot_s(each)) for each in middle if known(each.output_tokens) > 1])
    ratios = []
    for seed in range(6):
        loop = closed_loop(45 + 7 * took_s.mean(), np.random.default_rng(10 + seed), **shape)
        made_up = experiment(
            RestartRecord(0, passes=(loop.record,)),
            workload={"arrival": "closed", "batch_size": in_flight, "staggered_start": True},
            warmup={"profile": "lead-in"},
        )
        made_up = replace(made_up, energy=KnownJoules(loop, np.random.default_rng(4)))
        assert made_up.windows.headline == "steady_state"
        speed = known(performance(made_up))
        ratios.append((known(speed.e2e).mean_s / took_s.mean(), known(speed.tpot).mean_s / per_token_s.mean()))
    assert np.mean(ratios, axis=0) == pytest.approx([1, 1], abs=0.07)
