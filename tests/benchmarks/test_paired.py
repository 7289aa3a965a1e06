"""Whether paired blocks recover a known ratio on a machine whose speed drifts, and say when they cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from paired import Arm, Claim, bounds, carryover_log_ratio, judge, log_ratio, order

RATIO = 0.99
TRIALS, QUADRUPLES, TURNS = 2000, 6, 200


def durations(arms: list[Arm], rng: np.random.Generator, *, ratio: float, drift: float, noise: float) -> list[float]:
    """Times of blocks in a row: A is `ratio` times as fast as B, all drift by `drift` per block and swing slowly."""
    number = np.arange(len(arms))
    swing = 0.02 * np.sin(2 * np.pi * (number / 37 + rng.uniform()))
    common = np.exp(drift * number + swing + rng.normal(0, noise, len(arms)))
    return [float(took / (ratio if arm == "A" else 1)) for arm, took in zip(arms, common, strict=True)]


def quadruples(rng: np.random.Generator, *, drift: float, noise: float) -> list[float]:
    arms = [arm for number in range(QUADRUPLES) for arm in order(number)]
    passes = list(zip(arms, durations(arms, rng, ratio=RATIO, drift=drift, noise=noise), strict=True))
    return [log_ratio(passes[at : at + 4]) for at in range(0, len(passes), 4)]


def test_the_lower_bound_lies_below_the_true_ratio_as_often_as_it_says() -> None:
    """95 % of the time, over drifts of either sign and a slow swing, with few quadruples."""
    rng = np.random.default_rng(20261121)
    seen = [bounds(quadruples(rng, drift=rng.uniform(-0.01, 0.01), noise=0.004)) for _ in range(TRIALS)]
    held = [estimate.lower is not None and estimate.lower <= RATIO for estimate in seen]
    assert 0.935 <= float(np.mean(held)) <= 0.97
    assert float(np.mean([np.log(estimate.ratio) for estimate in seen])) == pytest.approx(np.log(RATIO), abs=2e-4)


def test_a_drift_that_fools_pairs_does_not_fool_quadruples() -> None:
    """A machine that slows down by 1 % of the first block per block makes whatever comes first look better by that."""
    passes = [(arm, 100.0 + place) for place, arm in enumerate(order(0))]
    assert log_ratio(passes[:2]) > 0.009
    assert log_ratio(passes) == pytest.approx(0, abs=1e-12)


def test_a_drift_that_is_bent_cancels_between_neighbouring_quadruples() -> None:
    """Each order alone would see it, with opposite signs."""
    bent = [1 + 0.01 * place**2 for place in (-1.5, -0.5, 0.5, 1.5)]
    first, second = (log_ratio(list(zip(order(number), bent, strict=True))) for number in (0, 1))
    assert first == pytest.approx(-0.02, abs=5e-4)
    assert first + second == pytest.approx(0, abs=1e-12)


def fitful_quadruple(rng: np.random.Generator, number: int, *, pauses: float, longer: float) -> list[tuple[Arm, float]]:
    """A quadruple on a machine that is calm or restless for some passes at a time; some passes of A take longer.

    Args:
        pauses: Share of A's passes that are hit.
        longer: How many times their length these take in addition.
    """
    arms = list(order(number)) * TURNS
    is_restless = np.cumsum(rng.random(len(arms)) < 0.15) % 2
    took = np.exp(rng.normal(0, np.where(is_restless, 0.1, 0.01)))
    is_hit = (rng.random(len(arms)) < pauses) & (np.array(arms) == "A")
    return list(zip(arms, (took * np.where(is_hit, 1 + longer, 1)).tolist(), strict=True))


def verdict_on(rng: np.random.Generator, *, pauses: float, longer: float) -> str:
    claim = Claim("a / b", 0.995, planned=8)
    for number in range(claim.planned):
        claim.log_ratios.append(log_ratio(fitful_quadruple(rng, number, pauses=pauses, longer=longer)))
    return claim.verdict


@pytest.mark.parametrize(("pauses", "longer"), [(0.002, 10), (0.001, 20), (0.01, 0.8), (0.2, 0.1), (1, 0.006)])
def test_a_cost_above_the_limit_is_seldom_said_to_be_below_it(pauses: float, longer: float) -> None:
    """Costs of 0.6 to 2 % on a fitful machine, spread evenly or as pauses that a run meets a few times.

    Were it said in one case of twenty, more than ten of a hundred would be one chance in a hundred.
    """
    rng = np.random.default_rng(11)
    said = [verdict_on(rng, pauses=pauses, longer=longer) for _ in range(100)]
    assert said.count("holds") <= 10


def test_no_cost_is_mostly_shown_to_be_small_on_the_same_machine() -> None:
    """So the limit can be met there, and what is said of costs above it is no accident of too much scatter."""
    rng = np.random.default_rng(12)
    said = [verdict_on(rng, pauses=0, longer=0) for _ in range(100)]
    assert said.count("holds") > 0.5 * len(said)
    assert said.count("fails") == 0


def test_what_a_pass_leaves_to_the_next_is_seen_apart_from_what_it_costs() -> None:
    """Passes of A take 1 % longer, and whatever comes after one of these 3 % longer; the machine slows down besides."""
    left, direct = [], []
    for number in range(2):
        arms = list(order(number)) * 50
        passes, before = [], arms[-1]
        for place, arm in enumerate(arms):
            passes.append((arm, (1.01 if arm == "A" else 1) * (1.03 if before == "A" else 1) * (1 + 1e-4 * place)))
            before = arm
        left.append(carryover_log_ratio(passes))
        direct.append(log_ratio(passes))
    assert bounds(left).ratio == pytest.approx(1 / 1.03, abs=3e-4)
    assert bounds(direct).ratio == pytest.approx(1 / 1.01, abs=3e-4)


@pytest.mark.parametrize(
    ("log_ratios", "verdict"),
    [
        ([0.0001, -0.0002, 0.0001, 0.0], "holds"),
        ([-0.0201, -0.0199, -0.02, -0.0202], "fails"),
        ([0.02, -0.02, 0.01, -0.01], "unresolved"),
        ([0.5], "unresolved"),
        ([0.012, 0.008, 0.02, 0.002], "unresolved"),
        ([0.0012, -0.0008, 0.002, -0.0002], "holds"),
        ([0.0012, 0.0008, 0.002, 0.0002], "unresolved"),
    ],
)
def test_a_verdict_needs_a_bound_on_its_side_of_the_limit(log_ratios: list[float], verdict: str) -> None:
    """Scatter, or a single value however good, resolves nothing; a ratio above 1 is no merit."""
    assert judge(bounds(log_ratios), 0.995) == verdict


def test_a_run_cut_short_is_unresolved_however_good_it_looks() -> None:
    """To stop where the figure is good would void the bound."""
    short, whole = (Claim("a / b", 0.995, planned=4, log_ratios=[0.0, 0.0001, -0.0001, 0.0][:n]) for n in (3, 4))
    assert (short.verdict, whole.verdict) == ("unresolved", "holds")


def test_a_block_that_was_too_short_shows_nothing() -> None:
    """However good its values are."""
    sound = Claim("", 0.995, 3, log_ratios=[-0.001, 0.0, 0.001])
    assert sound.verdict == "holds"
    assert Claim("", 0.995, 3, void="a block took 9.8 s", log_ratios=sound.log_ratios).verdict == "unresolved"


def test_each_arm_comes_after_itself_as_often_as_after_the_other() -> None:
    """So that what a pass leaves behind disturbs both; but for the first pass, which comes after none."""
    for number in (0, 1):
        arms = order(number) * 20
        after = [(before, arm) for before, arm in itertools.pairwise(arms)]
        assert {pair: after.count(pair) for pair in set(after)} == pytest.approx(
            {("A", "A"): 20, ("A", "B"): 20, ("B", "B"): 20, ("B", "A"): 20}, abs=1
        )


def test_the_margin_is_what_the_scatter_hides() -> None:
    """A claim whose limit lies nearer to 1 than the margin cannot be shown where there is no cost at all."""
    seen = bounds([0.01, -0.01, 0.01, -0.01])
    assert seen.ratio == pytest.approx(1)
    assert seen.margin is not None
    assert judge(seen, 1 - 0.9 * seen.margin) == "unresolved"
    assert judge(seen, 1 - 1.1 * seen.margin) == "holds"


def test_the_bounds_are_by_students_t_one_sided() -> None:
    """Four values with a mean of 0 and a standard error of 0.01: 2.3534 of these, as printed tables say."""
    seen = bounds([0.01 * (3**0.5), -0.01 * (3**0.5)] * 2)
    assert seen.lower == pytest.approx(np.exp(-0.023534), rel=1e-6)
    assert seen.upper == pytest.approx(np.exp(0.023534), rel=1e-6)
