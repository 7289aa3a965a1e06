"""Spans that begin and end alike: what each is off by adds up over them, and has to stand in their uncertainty."""

from __future__ import annotations

import pytest
from make.records import experiment, measured, request, stepped_power, timeline
from seams.analysis import Joules, measured_energy, phases

from wattdock.records import RestartRecord

GPU = "GPU-a"
START_S, BURST_S, PASS_S = 3.0, 0.1, 5.013
IDLE_W, PREFILL_W, DECODE_W = 118, 690, 450


def test_a_prefill_shorter_than_a_counter_period_has_no_energy_however_many_there_are() -> None:
    """Thirty times 75 ms are 2.25 s, and yet what a tick hides at the ends of each adds up."""
    begins_s = [START_S + 5 * number for number in range(30)]
    requests = tuple(request(index, at_s, at_s + 0.075, at_s + 5, 9) for index, at_s in enumerate(begins_s))
    gpu = stepped_power(GPU, [(START_S, IDLE_W), *[(0.075, PREFILL_W), (4.925, DECODE_W)] * 30, (3, IDLE_W)])
    done = measured(0, START_S, START_S + 150, requests)
    seen = phases(experiment(RestartRecord(0, passes=(done,), timeline=timeline(gpu))))
    assert (seen.prefill_j, seen.decode_j, seen.prefill_ci95_j) == (None, None, None)
    assert seen.reason is not None
    assert seen.reason.startswith("prefill is 15")
    assert seen.reason.endswith("J (limit ± 10%)")


def test_passes_that_each_begin_with_a_burst_are_off_together() -> None:
    """Twenty passes of 100 ms at 690 W and then 450 W: no tick shows the burst alone, and each is some joules short."""
    steps, passes, at_s = [(START_S, IDLE_W)], [], START_S
    for number in range(20):
        end_s = at_s + PASS_S
        passes.append(measured(number, at_s, end_s, (request(0, at_s, at_s + BURST_S, end_s, 10),)))
        steps += [(BURST_S, PREFILL_W), (PASS_S - BURST_S, DECODE_W), (1.01, IDLE_W)]
        at_s = end_s + 1.01
    gpu = stepped_power(GPU, [*steps, (3, IDLE_W)])
    restart = RestartRecord(0, passes=tuple(passes), timeline=timeline(gpu))
    energy = measured_energy(experiment(restart))
    assert energy.timing95_j is not None
    true_j = 20 * (BURST_S * PREFILL_W + (PASS_S - BURST_S) * DECODE_W)
    assert energy.total_j == pytest.approx(true_j, abs=energy.timing95_j)


def test_uncertainties_of_spans_add_up_and_one_unknown_makes_the_whole_unknown() -> None:
    """Twice 3 J are 6 J, not 4.2."""
    joules = Joules(100.0, {GPU: 100.0}, timing_j=3.0)
    assert Joules.of_all([joules, joules]) == Joules(200.0, {GPU: 200.0}, timing_j=6.0)
    unknown = Joules(None, {GPU: None}, reason="lost")
    assert Joules.of_all([joules, unknown]) == unknown


def test_the_interval_of_a_phase_does_not_go_below_zero() -> None:
    """Ten prefills of 8 ms at 450 W, and at each of them a tenth of what a counter's period holds: 36 and 45 J."""
    begins_s = [START_S + 5 * number for number in range(10)]
    requests = tuple(request(index, at_s, at_s + 0.008, at_s + 5, 9) for index, at_s in enumerate(begins_s))
    gpu = stepped_power(GPU, [(60, DECODE_W)])
    done = measured(0, START_S, START_S + 50, requests)
    seen = phases(experiment(RestartRecord(0, passes=(done,), timeline=timeline(gpu))))
    assert seen.reason == "prefill is 36 J, 95 % between 0 and 81 J (limit ± 10%)"
