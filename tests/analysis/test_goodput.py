"""Which requests met the latencies asked for, and what those cost, on made-up passes whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, timeline
from seams.analysis import NO_INSTANTS, Goodput, goodput
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from wattdock.records import PassRecord

GPU = "GPU-a"
# TTFT 0.5, 1 and 5 s; TPOT 0.1, 0.2 and 0.1 s; end to end 10.5, 19 and 9 s: 200 J/s for 20 s.
FAST, SLOW, LATE = request(0, 10, 10.5, 20.5, 101), request(1, 10, 11, 29, 91), request(2, 20, 25, 29, 41)
DONE = measured(0, 10, 30, (FAST, SLOW, LATE))


def judged(done: PassRecord, *, arrival: str = "batch", power_w: float | None = 200, **slo: float) -> Goodput:
    """Return the goodput of one pass on one GPU; without power there is no meter."""
    seconds = done.span.end_ns / NS_PER_S + 10
    meter = None if power_w is None else timeline(constant_power(GPU, power_w, start_s=0, end_s=seconds))
    restart = RestartRecord(0, passes=(done,), timeline=meter)
    made_up = experiment(restart, workload={"arrival": arrival, "batch_size": 2}, slo=slo)
    good = goodput(made_up)
    assert good is not None
    return good


def test_all_joules_are_shared_by_the_requests_that_met_the_limits_alone() -> None:
    """Of 4,000 J over three requests, one that met both limits costs 4,000 J: misses are not excused."""
    good = judged(DONE, ttft_ms=2000, tpot_ms=150)
    assert (good.requests, good.requests_met, good.missed) == (3, 1, {"ttft": 1, "tpot": 1})
    assert good.share_met == pytest.approx(1 / 3)
    assert good.requests_met_per_s == pytest.approx(1 / 20)
    assert good.output_tokens_met_per_s == pytest.approx(101 / 20)
    assert good.energy_per_request_met_j == pytest.approx(4000, rel=1e-3)
    assert good.energy_per_output_token_met_j == pytest.approx(4000 / 101, rel=1e-3)
    assert good.reason is None


def test_a_limit_is_met_by_what_takes_exactly_so_long() -> None:
    """500 ms are within 500 ms."""
    assert judged(DONE, ttft_ms=500).requests_met == 1
    assert judged(DONE, e2e_ms=19000).requests_met == 3


def test_latency_counts_from_the_intended_arrival() -> None:
    """A request that waited outside the engine for 4 s was not served within 2 s."""
    waited = replace(FAST, intended_ns=FAST.submitted_ns - 4 * NS_PER_S)
    assert judged(measured(0, 5, 30, (waited,)), ttft_ms=2000).missed == {"ttft": 1}


def test_an_answer_of_one_token_has_no_time_per_token_and_an_aborted_request_misses_all() -> None:
    """The first is not beyond a limit of TPOT, the second was not served, however fast."""
    short, aborted = replace(FAST, output_tokens=1), replace(FAST, finish_reason="abort")
    good = judged(measured(0, 10, 30, (short, aborted)), tpot_ms=1, e2e_ms=60000)
    assert (good.requests_met, good.missed) == (1, {"tpot": 1, "e2e": 1})


def test_what_nobody_met_has_no_cost_and_what_was_not_metered_none_either() -> None:
    """The share is known all the same, and the reason stands beside it."""
    nobody, unmetered = judged(DONE, ttft_ms=1), judged(DONE, power_w=None, ttft_ms=2000)
    assert (nobody.share_met, nobody.energy_per_request_met_j, nobody.reason) == (0, None, "no request met it")
    assert (unmetered.requests_met, unmetered.energy_per_request_met_j) == (2, None)
    assert unmetered.reason


def test_an_engine_that_tells_no_instants_has_no_goodput_and_the_reason() -> None:
    """Unknown is not 0; a limit from end to end needs no first token."""
    silent = measured(0, 10, 30, tuple(replace(each, first_token_ns=None) for each in DONE.requests))
    assert judged(silent, ttft_ms=500) == Goodput(reason=NO_INSTANTS)
    assert judged(silent, e2e_ms=10500).requests_met == 2


def test_goodput_of_a_steady_state_counts_its_joules_and_what_ended_in_it() -> None:
    """Two slots for 62 s: what began and ended outside counts neither as a request nor in joules."""
    requests = [
        request(2 * round_ + slot, 10 + 2 * round_ + slot, 10.1 + 2 * round_ + slot, 12 + 2 * round_ + slot, 10)
        for round_ in range(30)
        for slot in range(2)
    ]
    requests.sort(key=lambda each: each.submitted_ns)
    ended_ns = np.array([each.finished_ns for each in requests])
    done = replace(measured(0, 10, 73, tuple(requests)), tokens=TokenSeries(ended_ns, 10 * np.arange(1, 61)))
    whole, steady = judged(done, ttft_ms=200), judged(done, arrival="closed", ttft_ms=200)
    # Of the 57 that arrived in it those of its first half.
    assert (whole.requests, steady.requests, steady.share_met) == (60, 29, 1)
    # From the first step that ends after the second slot's first token to the last submission: one request a second.
    assert steady.requests_met_per_s == pytest.approx(1)
    assert steady.energy_per_request_met_j == pytest.approx(200, rel=1e-3)


def test_without_limits_there_is_no_goodput() -> None:
    """Nothing was asked, so nothing is answered."""
    assert goodput(experiment(RestartRecord(0, passes=(DONE,)))) is None
