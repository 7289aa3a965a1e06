"""Whether paired blocks recover a known ratio on a machine whose speed drifts, and say when they cannot."""

from __future__ import annotations

import itertools
from statistics import mean

import numpy as np
import pytest
from paired import Arm, Claim, TurnSeen, bounds, judge, order, steady_mean, trimmed_mean, turn_seen

RATIO = 0.99
TRIALS, QUADRUPLES = 2000, 6


def speeds(arms: list[Arm], rng: np.random.Generator, *, ratio: float, drift: float, noise: float) -> list[float]:
    """Rates of blocks in a row: A is `ratio` times as fast as B, all drift by `drift` per block and swing slowly."""
    number = np.arange(len(arms))
    swing = 0.02 * np.sin(2 * np.pi * (number / 37 + rng.uniform()))
    common = np.exp(drift * number + swing + rng.normal(0, noise, len(arms)))
    return [float(rate * (ratio if arm == "A" else 1)) for arm, rate in zip(arms, common, strict=True)]


def turns_of(arms: list[Arm], rates: list[float]) -> list[TurnSeen]:
    return [turn_seen(arms[at : at + 4], rates[at : at + 4]) for at in range(0, len(arms), 4)]


def quadruples(rng: np.random.Generator, *, drift: float, noise: float) -> list[float]:
    arms = [arm for number in range(QUADRUPLES) for arm in order(number)]
    rates = speeds(arms, rng, ratio=RATIO, drift=drift, noise=noise)
    return [turn.log_ratio for turn in turns_of(arms, rates)]


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


def quadruple_of_a_fitful_machine(rng: np.random.Generator, number: int) -> list[TurnSeen]:
    """Sixty turns on a machine that is calm or restless for some passes at a time; A is `RATIO` times as fast as B."""
    arms = list(order(number)) * 60
    is_restless = np.cumsum(rng.random(len(arms)) < 0.15) % 2
    rates = np.exp(rng.normal(0, np.where(is_restless, 0.1, 0.01))) * [RATIO if arm == "A" else 1 for arm in arms]
    return turns_of(arms, rates.tolist())


def test_the_steadier_turns_are_sharper_and_favour_neither_arm() -> None:
    """Over many quadruples of both orders: the ratio, with less scatter than trimming or a plain mean leaves."""
    rng = np.random.default_rng(3)
    seen = [quadruple_of_a_fitful_machine(rng, number) for number in range(400)]
    steady = [steady_mean(turns) for turns in seen]
    trimmed, plain = ([of([turn.log_ratio for turn in turns]) for turns in seen] for of in (trimmed_mean, mean))
    for values in (steady, trimmed, plain):
        assert np.mean(values) == pytest.approx(np.log(RATIO), abs=4 * np.std(values) / np.sqrt(len(values)))
    assert np.std(steady) < 0.75 * np.std(trimmed) < np.std(plain)


def test_a_change_that_no_arm_shows_is_left_to_trimming() -> None:
    """Both passes in the middle at another speed: as steady as can be, and as wrong, with either order its own way."""
    odd = [1.0, 0.7, 0.7, 1.0]
    hidden = [turn_seen(order(number), odd) for number in (0, 1)]
    assert [turn.unrest for turn in hidden] == [0, 0]
    assert hidden[0].log_ratio == pytest.approx(-hidden[1].log_ratio)
    calm = [TurnSeen(0.001, 0.0)] * 18
    assert steady_mean([hidden[0], *calm]) == pytest.approx(0.001)


def test_one_turn_is_its_own_mean() -> None:
    """Closed loops have one per quadruple."""
    assert steady_mean([TurnSeen(-0.003, 0.2)]) == -0.003


def test_a_cost_that_comes_and_goes_is_for_plain_means_to_deny() -> None:
    """A tenth in every fifth pass of one arm: the steadier turns miss it, and the claim does not hold for them."""
    rng = np.random.default_rng(11)
    claim = Claim("a / b", 0.995, planned=8)
    for number in range(claim.planned):
        arms = list(order(number)) * 40
        costs = np.where((np.array(arms) == "A") & (rng.random(len(arms)) < 0.2), 0.1, 0)
        rates = np.exp(rng.normal(0, 0.003, len(arms)) - costs).tolist()
        turns = turns_of(arms, rates)
        claim.log_ratios.append(steady_mean(turns))
        claim.plain.append(mean(turn.log_ratio for turn in turns))
    assert claim.seen is not None
    assert judge(claim.seen, claim.limit) == "holds"
    assert bounds(claim.plain).ratio == pytest.approx(0.98, abs=0.005)
    assert claim.verdict == "unresolved"


def test_what_plain_means_do_not_see_has_not_failed() -> None:
    """Too slow in the turns that count, and not over all."""
    slow = [-0.02, -0.0201, -0.0199, -0.02]
    assert Claim("a / b", 0.995, planned=4, log_ratios=slow, plain=slow).verdict == "fails"
    assert Claim("a / b", 0.995, planned=4, log_ratios=slow, plain=[0.0] * 4).verdict == "unresolved"


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
