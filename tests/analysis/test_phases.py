"""Prefill and decode of rounds: simulated engines whose every joule is known, through a meter that is not perfect."""

from __future__ import annotations

import numpy as np
import pytest
from make.records import experiment, measured, request, sampled_power, stepped_power, timeline
from make.traffic import IDLE_W, START_S, SimulatedMeter, metered
from seams.analysis import Bins, MeteredWork, Work, costs, phases

from wattdock.clock import NS_PER_S
from wattdock.records import RestartRecord

GPU = "GPU-a"
COURSES = ("driver_samples", "counter_only")
PREFILLS_S, GAPS_S, PREFILL_W, DECODE_W = (0.2, 0.35, 0.6), (0.01, 0.02, 0.03), 690.0, 450.0


def rounds(course: str, seed: int, prefill_s: float, gap_s: float, overshoot: float) -> tuple[np.ndarray, np.ndarray]:
    """Return errors of prefill and decode ÷ true joules over 18 rounds, and whether the intervals hold these.

    Args:
        course: Of energy, "driver_samples" or "counter_only".
        overshoot: Of a prefill's power in its first 20 ms.
    """
    random = np.random.default_rng(seed)
    power: list[tuple[float, float]] = [(3.0, IDLE_W)]
    requests, at_s, true_j, late_s = [], 3.0, np.zeros(2), random.uniform(-0.004, 0.004)
    for number in range(18):
        wait_s, first_s, rest_s = np.array((gap_s, prefill_s, 2.5)) * random.uniform(0.9, 1.1, 3)
        power += [
            (wait_s, IDLE_W),
            (0.02, PREFILL_W * (1 + overshoot)),
            (first_s - 0.02, PREFILL_W),
            (rest_s, DECODE_W),
        ]
        # The counter trails by 4 ms less or more than is assumed.
        submitted_s = at_s + wait_s + late_s
        requests.append(request(number, submitted_s, submitted_s + first_s, submitted_s + first_s + rest_s, 100))
        true_j += PREFILL_W * (first_s + 0.02 * overshoot), DECODE_W * rest_s
        at_s += wait_s + first_s + rest_s
    power.append((3.0, IDLE_W))
    gpu = stepped_power(GPU, power) if course == "counter_only" else sampled_power(GPU, power, random)
    assert gpu.power_courses == (course,)
    restart = RestartRecord(0, passes=(measured(0, 2.9, at_s + 0.1, tuple(requests)),), timeline=timeline(gpu))
    split = phases(experiment(restart, used=[GPU]))
    assert split.reason is None
    values = np.array((split.prefill_j, split.decode_j))
    low, high = np.array((split.prefill_ci95_j, split.decode_ci95_j)).T
    return values / true_j - 1, (low <= true_j) & (true_j <= high)


@pytest.mark.parametrize("course", COURSES)
def test_short_prefills_behind_gaps_between_rounds_are_not_measured_too_low(course: str) -> None:
    """Gaps of 20 ms inside ticks of 100 ms: cut at the ticks' straight lines, prefill would be some percent low."""
    errors, inside = rounds(course, 0, 0.35, 0.02, 0.0)
    assert np.abs(errors) == pytest.approx(0, abs=0.01)
    assert inside.all()


@pytest.mark.slow
@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("overshoot", [0.0, 0.2])
def test_the_split_of_rounds_is_unbiased_and_its_interval_holds(course: str, overshoot: float) -> None:
    """Prefills of 200 to 600 ms behind gaps of 10 to 30 ms, with and without an overshoot of power at their begin."""
    for prefill_s in PREFILLS_S:
        for gap_s in GAPS_S:
            runs = (rounds(course, seed, prefill_s, gap_s, overshoot) for seed in range(25))
            errors, inside = (np.array(column) for column in zip(*runs, strict=True))
            assert np.abs(errors.mean(axis=0)) == pytest.approx(0, abs=0.01), (prefill_s, gap_s)
            assert (inside.mean(axis=0) >= 0.9).all(), (prefill_s, gap_s)


def work_of_rounds() -> MeteredWork:
    """Return 20 rounds of half a second of prefill and one of decode, as a meter saw their energy."""
    random = np.random.default_rng(5)
    lengths_s = random.uniform(0.9, 1.1, (20, 3)) * (0.05, 0.5, 1.0)
    edges_s = START_S + np.cumsum(lengths_s).reshape(20, 3)
    seconds = np.zeros((40, 2))
    seconds[::2, 0], seconds[1::2, 1] = lengths_s[:, 1], lengths_s[:, 2]
    start_ns, end_ns = (np.round(edges_s[:, ends].ravel() * NS_PER_S).astype(np.int64) for ends in ([0, 1], [1, 2]))
    return metered(Work(start_ns, end_ns, seconds), SimulatedMeter(), random, (PREFILL_W, DECODE_W))


def test_figures_are_sums_over_the_gpus_and_the_same_each_time() -> None:
    """Two GPUs of equal power cost twice as much; the bootstrap has a fixed seed."""
    alone = work_of_rounds()
    both = MeteredWork(alone.work, alone.gpus * 2)
    assert costs([alone]).values == pytest.approx((IDLE_W, PREFILL_W, DECODE_W), rel=0.15)
    assert costs([both]).values == pytest.approx(2 * costs([alone]).values, rel=1e-3)
    assert (costs([both]).low == costs([both]).low).all()


def test_a_gap_in_the_readings_counts_for_nothing() -> None:
    """A second whose joules the meter put somewhere else; each bin around it is as it was."""
    whole = work_of_rounds()
    edges_ns, energy_j = whole.gpus[0].edges_ns, whole.gpus[0].energy_j
    gap = slice(501, 550)
    bridged_j = np.concatenate((energy_j[:500], [3 * energy_j[500:550].sum()], energy_j[550:]))
    broken = MeteredWork(whole.work, (Bins(np.delete(edges_ns, gap), bridged_j),))
    without, with_all = (costs([one_pass]).values for one_pass in (broken, whole))
    assert without == pytest.approx(with_all, rel=0.1)
