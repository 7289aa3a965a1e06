"""Whether paired blocks recover a known ratio on a machine whose speed drifts, and say when they cannot."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from paired import Arm, Claim, bounds, judge, order, steady_mean, turn_seen

RATIO = 0.99
TRIALS, QUADRUPLES = 2000, 6


def speeds(arms: list[Arm], rng: np.random.Generator, *, ratio: float, drift: float, noise: float) -> list[float]:
    """Rates of blocks in a row: A is `ratio` times as fast as B, all drift by `drift` per block and swing slowly."""
    number = np.arange(len(arms))
    swing = 0.02 * np.sin(2 * np.pi * (number / 37 + rng.uniform()))
    common = np.exp(drift * number + swing + rng.normal(0, noise, len(arms)))
    return [float(rate * (ratio if arm == "A" else 1)) for arm, rate in zip(arms, common, strict=True)]


def quadruples(rng: np.random.Generator, *, drift: float, noise: float) -> list[float]:
    arms = [arm for number in range(QUADRUPLES) for arm in order(number)]
    rates = speeds(arms, rng, ratio=RATIO, drift=drift, noise=noise)
    return [turn_seen(arms[first : first + 4], rates[first : first + 4]).log_ratio for first in range(0, len(arms), 4)]


def test_the_lower_bound_lies_below_the_true_ratio_as_often_as_it_says() -> None:
    """95 % of the time, over drifts of either sign and a slow swing, with few quadruples."""
    rng = np.random.default_rng(20261121)
    seen = [bounds(quadruples(rng, drift=rng.uniform(-0.01, 0.01), noise=0.004)) for _ in range(TRIALS)]
    held = [one.lower is not None and one.lower <= RATIO for one in seen]
    assert 0.935 <= float(np.mean(held)) <= 0.97
    assert float(np.mean([np.log(one.ratio) for one in seen])) == pytest.approx(np.log(RATIO), abs=2e-4)


def test_a_drift_that_fools_pairs_does_not_fool_quadruples() -> None:
    """A machine that slows down by 1 % per block makes whatever comes first look better by that."""
    rng = np.random.default_rng(1)
    first, second = speeds(["A", "B"], rng, ratio=1.0, drift=-0.01, noise=0.0)
    assert abs(np.log(first / second)) > 0.008
    arms = list(order(0))
    steady = [100 * float(np.exp(-0.01 * place)) for place in range(4)]
    assert turn_seen(arms, steady).log_ratio == pytest.approx(0, abs=1e-12)


def test_a_drift_that_is_bent_cancels_between_neighbouring_quadruples() -> None:
    """Each order alone would see it, with opposite signs."""
    bent = [float(np.exp(0.01 * place**2)) for place in (-1.5, -0.5, 0.5, 1.5)]
    first, second = (turn_seen(order(number), bent).log_ratio for number in (0, 1))
    assert first == pytest.approx(0.02)
    assert first + second == pytest.approx(0, abs=1e-12)


def test_turns_in_which_the_machine_changed_are_told_by_the_arms_themselves() -> None:
    """A machine with two speeds, each kept for a few passes: the steadier half sees the ratio, and sharper.

    Over many machines neither is off by more than its scatter, so leaving turns out favours neither arm.
    """
    rng = np.random.default_rng(3)
    steady, plain = [], []
    for _ in range(400):
        arms = list(order(0)) * 40
        regime = np.cumsum(rng.random(len(arms)) < 0.1) % 2
        noise = rng.normal(0, 0.01, len(arms))
        rates = np.exp(-0.3 * regime + noise) * [RATIO if arm == "A" else 1 for arm in arms]
        turns = [turn_seen(arms[at : at + 4], rates[at : at + 4].tolist()) for at in range(0, len(arms), 4)]
        steady.append(steady_mean(turns))
        plain.append(float(np.mean([turn.log_ratio for turn in turns])))
    for values in (steady, plain):
        assert np.mean(values) == pytest.approx(np.log(RATIO), abs=4 * np.std(values) / np.sqrt(len(values)))
    assert np.std(steady) < np.std(plain) / 3


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


def test_a_pause_that_trimming_hides_is_no_cost_that_is_shown_to_be_small() -> None:
    """Trimmed values hold; plain ones of the same turns lie below the limit."""
    trimmed = [0.0, 0.0001, -0.0001, 0.0]
    paused = Claim("a / b", 0.995, planned=4, log_ratios=trimmed, plain=[value - 0.006 for value in trimmed])
    assert paused.verdict == "unresolved"
    assert Claim("a / b", 0.995, planned=4, log_ratios=trimmed, plain=trimmed).verdict == "holds"


def test_stalls_that_one_arm_has_more_of_deny_what_is_to_hold() -> None:
    """Plain means shown to lie above 1: the arms differ in something that trimming hides."""
    trimmed = [0.0, 0.0001, -0.0001, 0.0]
    stalled = Claim("a / b", 0.995, planned=4, log_ratios=trimmed, plain=[value + 0.006 for value in trimmed])
    assert stalled.verdict == "unresolved"


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
