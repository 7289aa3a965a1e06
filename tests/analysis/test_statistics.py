"""Intervals and comparisons, against their definitions and on recorded repeats."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import ttest_1samp
from seams.analysis import (
    CONFIDENCE,
    SPEED,
    T_FACTORS,
    Figure,
    Interval,
    Restarts,
    WindowFigure,
    by_restart,
    difference,
    paired_difference,
)
from seams.reports import figure_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = Path(__file__).parents[1] / "data/h200-rounds.json"
RECORDED: dict[str, list[float]] = json.loads(ROUNDS.read_text())["rounds"]
TRIALS = 4000


def energy_pass(restart: int, index: int, joules: float, tokens: int = 100, duration_s: float = 20) -> WindowFigure:
    where = {"window": "drained", "restart": restart, "pass_index": index}
    return WindowFigure(**where, duration_s=duration_s, output_tokens=tokens, total_j=joules)


def speeds(passes: Sequence[WindowFigure]) -> Restarts:
    """Return the tokens per second of each restart."""
    return Restarts.of_groups(by_restart(passes), SPEED)


def test_an_interval_comes_from_restart_means_with_one_degree_of_freedom_less() -> None:
    """1.0, 1.1 and 1.2 tokens/s: log 1.1 ± 4.303 × s of the logarithms ÷ √3, however many passes each restart had."""
    passes = [energy_pass(restart, index, 1, 20 + 2 * restart) for restart in range(3) for index in range(4)]
    seen = speeds(passes)
    half = 4.302653 * np.log([1.0, 1.1, 1.2]).std(ddof=1) / 3**0.5
    assert list(seen.interval or ()) == pytest.approx([1.1 * exp(-half), 1.1 * exp(half)])


def test_a_figure_is_shown_to_the_second_digit_of_half_its_interval() -> None:
    """The ends, too; without an interval in the format that is asked for."""
    assert figure_text(Figure(1.0, Interval(0.2888, 3.463))) == "1.0 [0.3, 3.5]"
    assert figure_text(Figure(1.0, Interval(0.96, 1.04))) == "1.000 [0.960, 1.040]"
    # As a result that somebody wrote by hand may have it.
    assert figure_text(Figure(1.0, Interval(1.1, 0.9))) == "1.000 [1.100, 0.9000]"
    assert figure_text(Figure(0.13501, Interval(0.13446, 0.13556))) == "0.13501 [0.13446, 0.13556]"
    assert figure_text(Figure(6213.2, Interval(6193.2, 6233.2))) == "6,213 [6,193, 6,233]"
    assert figure_text(Figure(6213.2), ",.1f") == "6,213.2"


@pytest.mark.parametrize("restarts", [1, 2])
def test_too_few_restarts_have_no_interval(restarts: int) -> None:
    """Passes of one runner share all that a restart changes, and two restarts leave all open."""
    seen = Restarts.of_groups(
        by_restart([energy_pass(restart, index, 100 + index) for restart in range(restarts) for index in range(2)]),
        SPEED,
    )
    assert seen.interval is None


def test_the_interval_is_that_of_the_figure_which_is_a_sum_by_a_sum() -> None:
    """Restarts of 100, 200 and 300 s at 1.0, 1.1 and 1.3 tokens/s: 710 tokens by 600 s, s × √(1 + 4 + 9) ÷ 6."""
    made = [energy_pass(at, 0, 1, *part) for at, part in enumerate(((100, 100), (220, 200), (390, 300)))]
    seen = speeds(made)
    assert seen.value == pytest.approx(710 / 600)
    half = 4.302653 * np.log([1.0, 1.1, 1.3]).std(ddof=1) * 14**0.5 / 6
    assert list(seen.interval or ()) == pytest.approx([710 / 600 * exp(-half), 710 / 600 * exp(half)])


def test_the_relative_error_is_that_of_the_logarithm_from_two_restarts_on() -> None:
    """1.0 and 1.1 J/token: log 1.1 ÷ 2; equal restarts have none, and without a joule there is no logarithm."""
    assert Restarts.of_values([1.0, 1.1]).relative_error == pytest.approx(np.log(1.1) / 2)
    assert Restarts.of_values([1.0, 1.0]).relative_error == 0
    still = Restarts.of_values([0.0, 1.0, 1.0])
    assert (still.deviation, still.interval) == (None, None)


# Restarts' values, drawn so that their mean is 1.
RESTARTS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal, 2 %": lambda draw, count: draw.normal(1, 0.02, count),
    "log-normal, 5 %": lambda draw, count: draw.lognormal(-(0.05**2) / 2, 0.05, count),
    "log-normal, 20 %": lambda draw, count: draw.lognormal(-(0.2**2) / 2, 0.2, count),
    "log-normal, 50 %": lambda draw, count: draw.lognormal(-(0.5**2) / 2, 0.5, count),
    "one in ten scatters five times as much": lambda draw, count: draw.normal(
        1, 0.01 * np.where(draw.random(count) < 0.1, 5, 1)
    ),
}


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("longest", [1, 3])
@pytest.mark.parametrize("values", RESTARTS.values(), ids=RESTARTS)
def test_intervals_hold_the_true_ratio_in_93_to_97_of_100_cases(
    values: Callable[[np.random.Generator, int], np.ndarray], longest: int, count: int
) -> None:
    """Restarts of equal length, and of one to three times as many tokens: skewed or with tails, t on the logarithm."""
    draw, held = np.random.default_rng(3), 0
    for _ in range(TRIALS):
        tokens = draw.uniform(1000, 1000 * longest, count)
        interval = Restarts(tuple((tokens * values(draw, count)).tolist()), tuple(tokens.tolist())).interval
        assert interval is not None
        held += interval.low <= 1.0 <= interval.high
    # Three standard errors of a share of 4,000 are 1 %.
    assert 0.92 <= held / TRIALS <= 0.98


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("share", [0.8, 0.95])
@pytest.mark.parametrize("kind", ["log-normal, 20 %", "one in ten scatters five times as much"])
def test_intervals_hold_the_true_ratio_where_one_restart_has_most_of_the_work(
    kind: str, share: float, count: int
) -> None:
    """A ratio estimator's standard error, made for many restarts, holds it in 5 to 82 of 100 cases."""
    draw, held = np.random.default_rng(5), 0
    tokens = np.array([share, *[(1 - share) / (count - 1)] * (count - 1)])
    for _ in range(TRIALS):
        tops = tokens * RESTARTS[kind](draw, count)
        interval = Restarts(tuple(tops.tolist()), tuple(tokens.tolist())).interval
        assert interval is not None
        held += interval.low <= 1.0 <= interval.high
    assert 0.94 <= held / TRIALS <= 0.995


@pytest.mark.parametrize(("count", "least"), [(3, 0.925), (5, 0.90), (10, 0.88)])
def test_outliers_to_one_side_that_restarts_may_not_have_met_lower_the_coverage(count: int, least: float) -> None:
    """One restart in ten lies five deviations higher: few restarts cannot know, whatever is made of their spread."""
    draw, held = np.random.default_rng(3), 0
    for _ in range(TRIALS):
        interval = Restarts.of_values((1 + 0.01 * (draw.normal(0, 1, count) + 5 * (draw.random(count) < 0.1))).tolist())
        assert interval.interval is not None
        held += interval.interval.low <= 1.005 <= interval.interval.high
    assert least <= held / TRIALS < 0.95


def test_factors_of_few_restarts_are_those_of_student_s_t() -> None:
    """They stand in the code so that a command need not import scipy for them."""
    quantiles = stdtrit(np.arange(1, len(T_FACTORS) + 1), (1 + CONFIDENCE) / 2)
    assert list(T_FACTORS) == pytest.approx(quantiles.tolist(), rel=1e-14)


@pytest.mark.parametrize("name", RECORDED)
def test_random_splits_of_the_same_values_differ_at_the_nominal_rate(name: str) -> None:
    """Checks Welch's arithmetic on values of a real spread: shuffled ones are alike, whatever the run did over time."""
    rounds = np.array(RECORDED[name])
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(TRIALS):
        drawn = generator.permutation(rounds)[:10]
        found += difference(*(Restarts.of_values(side.tolist()) for side in (drawn[:5], drawn[5:]))).p_value < 0.05
    # Three standard errors of a rate of 5 % are 1 %; Welch's test is known to be a little careful with so few.
    assert 0.025 <= found / TRIALS <= 0.06


def test_intervals_of_few_recorded_repeats_hold_the_mean_of_all() -> None:
    """Five rounds drawn with replacement from each run's: 95 % of the intervals, give or take the tails' shape."""
    generator = np.random.default_rng(2)
    held = []
    for rounds in RECORDED.values():
        for _ in range(TRIALS // 4):
            interval = Restarts.of_values(generator.choice(rounds, size=5).tolist()).interval
            assert interval is not None
            held.append(interval[0] <= np.mean(rounds) <= interval[1])
    assert 0.88 <= np.mean(held) <= 0.98


def test_pairs_are_tested_by_student_s_t_on_the_differences_of_logarithms() -> None:
    """By scipy's test of one sample; with the arms swapped the inverse ratio."""
    pairs = [(1.0, 1.21), (1.1, 1.30), (1.05, 1.29), (1.02, 1.22)]
    logs = np.log([second / first for first, second in pairs])
    found, back = paired_difference(pairs), paired_difference([(second, first) for first, second in pairs])
    theirs = ttest_1samp(logs, 0)
    assert [found.freedom, found.p_value] == pytest.approx([3, theirs.pvalue])
    assert list(found.interval) == pytest.approx([exp(end) - 1 for end in theirs.confidence_interval(0.95)])
    assert found.relative == pytest.approx(exp(logs.mean()) - 1)
    assert (1 + found.relative) * (1 + back.relative) == pytest.approx(1)
    assert paired_difference([(1.0, 2.0)] * 3).p_value == 0


def test_runs_that_do_differ_are_told_apart() -> None:
    """TP=2 against PP=2 at batch 8: 15 % more energy per token, seen from five rounds of each."""
    found = difference(*(Restarts.of_values(RECORDED[name][:5]) for name in ("TP=2 batch 8", "PP=2 batch 8")))
    assert found.p_value < 1e-4
    assert 0.13 < found.interval.low < found.relative < found.interval.high < 0.17


def test_a_comparison_needs_two_repeats_of_each() -> None:
    """One value has no spread."""
    with pytest.raises(ValueError, match="not 1 and 3"):
        difference(Restarts.of_values([1.0]), Restarts.of_values([1.0, 1.1, 1.2]))


@pytest.mark.parametrize("name", RECORDED)
def test_the_first_half_of_a_recorded_run_does_not_differ_from_the_second(name: str) -> None:
    """A/A in order of time, which shuffling hides: one comparison per run, of four, so it shows no rate."""
    rounds = RECORDED[name]
    half = len(rounds) // 2
    found = difference(Restarts.of_values(rounds[:half]), Restarts.of_values(rounds[half:]))
    assert found.p_value > 0.05
    assert found.interval.low < 0 < found.interval.high
