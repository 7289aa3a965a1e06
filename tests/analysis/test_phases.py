"""Prefill and decode of rounds: simulated engines whose every joule is known, through a meter that is not perfect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make.records import experiment, measured, request, sampled_power, stepped_power, timeline
from make.traffic import IDLE_W, START_S, SimulatedMeter, metered
from seams.analysis import Bins, MeteredWork, Phases, Work, costs, phases
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.records import RestartRecord

Response = tuple[str, float]
GPU = "GPU-a"
COURSES = ("driver_samples", "counter_only")
AT_ONCE = ("exponential", 0.0)
PREFILLS_S, GAPS_S, PREFILL_W, DECODE_W = (0.2, 0.35, 0.6), (0.01, 0.02, 0.03), 690.0, 450.0


def following(power: list[tuple[float, float]], kind: str, length_s: float) -> list[tuple[float, float]]:
    """Return power that follows this one exponentially, or as the mean of the time before."""
    if not length_s:
        return power
    step_s = 0.001
    edges_s, energy_j = (
        np.concatenate(([0.0], np.cumsum(steps))) for steps in zip(*((s, s * w) for s, w in power), strict=True)
    )
    at_s = np.arange(0, edges_s[-1], step_s)
    delays_s = step_s * np.arange(round((8 if kind == "exponential" else 1) * length_s / step_s))
    shares = np.exp(-delays_s / length_s) if kind == "exponential" else np.ones(len(delays_s))
    watts = np.diff(np.interp(at_s, edges_s, energy_j), append=energy_j[-1]) / step_s
    late_w = IDLE_W + np.convolve(watts - IDLE_W, shares / shares.sum())[: len(watts)]
    return [(step_s, watt) for watt in late_w.tolist()]


def split_of(
    course: str, seed: int, prefill_s: float, gap_s: float, *, overshoot: float = 0.0, response: Response = AT_ONCE
) -> tuple[Phases, np.ndarray]:
    """Return the split of 18 rounds, and the true joules of prefill and decode.

    Args:
        course: Of energy, "driver_samples" or "counter_only".
        overshoot: Of a prefill's power in its first 20 ms.
        response: Kind and length of how power follows the work, s.
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
    power = following([*power, (3.0, IDLE_W)], *response)
    gpu = stepped_power(GPU, power) if course == "counter_only" else sampled_power(GPU, power, random)
    assert gpu.power_courses == (course,)
    restart = RestartRecord(0, passes=(measured(0, 2.9, at_s + 0.1, tuple(requests)),), timeline=timeline(gpu))
    return phases(experiment(restart, used=[GPU])), true_j


def rounds(course: str, seed: int, prefill_s: float, gap_s: float, overshoot: float) -> tuple[np.ndarray, np.ndarray]:
    """Return errors of prefill and decode ÷ true joules, and whether the intervals hold these."""
    split, true_j = split_of(course, seed, prefill_s, gap_s, overshoot=overshoot)
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


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize(
    ("response", "prefill_s", "is_told"),
    [
        (("exponential", 0.005), 0.35, True),
        (("exponential", 0.02), 0.35, True),
        (("exponential", 0.1), 0.2, False),
        (("exponential", 0.3), 0.6, False),
        (("mean", 0.025), 0.35, True),
        (("mean", 0.1), 0.6, True),
        (("mean", 1.0), 0.6, False),
    ],
)
def test_power_that_follows_the_work_slowly_widens_the_interval_or_is_refused(
    course: str, response: Response, prefill_s: float, *, is_told: bool
) -> None:
    """A board's regulators, and sensors that average: the fit takes joules from prefills."""
    for seed in range(2):
        split, true_j = split_of(course, seed, prefill_s, 0.02, response=response)
        assert (split.reason is None) == is_told
        if not is_told:
            assert split.reason is not None
            assert split.reason.endswith("(limit ± 10%); power trails the work by more than a lag")
            continue
        assert split.prefill_ci95_j is not None
        assert split.decode_ci95_j is not None
        assert split.prefill_ci95_j.low <= true_j[0] <= split.prefill_ci95_j.high
        assert split.decode_ci95_j.low <= true_j[1] <= split.decode_ci95_j.high


def test_joules_per_decoded_token_leave_first_tokens_out() -> None:
    """Ten rounds of two requests with three tokens each decode 40; results that call it by the old name are read."""
    begins_s = 3.0 + 5 * np.arange(10)
    requests = tuple(
        request(at, begins_s[at // 2], begins_s[at // 2] + 1, begins_s[at // 2] + 5, 3) for at in range(20)
    )
    tokens_s = (begins_s[:, None] + (1, 5)).ravel()
    tokens = TokenSeries((tokens_s * NS_PER_S).astype(np.int64), np.cumsum([2, 4] * 10))
    done = replace(measured(0, 3, 53, requests), tokens=tokens)
    gpu = stepped_power(GPU, [(3, 100), *[(1, 600), (4, 500)] * 10, (3, 100)])
    split = phases(experiment(RestartRecord(0, passes=(done,), timeline=timeline(gpu)), used=[GPU]))
    assert split.decode_j_per_decoded_token == pytest.approx(10 * 4 * 500 / 40, rel=0.01)
    older = type(split).model_validate({"decode_j_per_output_token": 0.5})
    assert older.decode_j_per_decoded_token == 0.5


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
