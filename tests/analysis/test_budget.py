"""The uncertainty budget: its intervals hold the true figures of simulated engines, and its table adds up."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.worlds import worlds
from seams.analysis import CONTEXT, PROMPTS, T_FACTORS, Window, budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from seams.analysis import Entry

LIMIT, BLOCKS, TOKENS = 0.02, 20, 100.0
EVEN = np.ones(BLOCKS)


def window(joules: NDArray[np.float64], celsius: NDArray[np.float64] = 60 * EVEN) -> Window:
    """Return a window of blocks of 2 s and 100 tokens that cost so many joules each."""
    return Window(
        total_j=float(TOKENS * joules.sum()),
        output_tokens=TOKENS * len(joules),
        timing_j=float(0.1 * joules.sum()),
        lead_in_s=45,
        block_s=np.full(len(joules), 2.0),
        block_j=TOKENS * joules,
        block_tokens=np.full(len(joules), TOKENS),
        block_c=celsius,
    )


def entry(restarts: Sequence[Sequence[Window]], name: str) -> Entry:
    found = budget(restarts).entry(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "count", "least_held", "least_accepted"),
    [
        ("as believed", 80, 0.9, 0.98),
        ("quiet", 20, 0.95, 0.98),
        ("warm", 40, 0.92, 0.98),
        ("room", 20, 0.95, 0.98),
        ("heavy", 40, 0.92, 0.95),
        ("stalls", 60, 0.9, 0.4),
        ("people, 64", 30, 0.93, 0.9),
        ("people, 8, no contexts", 30, 0.93, 0.7),
        ("prompts off, no contexts", 30, 0.93, 0.7),
        ("shortened", 30, 0.93, 0.98),
        ("slow noise", 40, 0.9, 0.9),
        ("sensor noise", 30, 0.93, 0.95),
        ("sensor noise, warm", 30, 0.93, 0.95),
        ("no sensor", 30, 0.9, 0.98),
        ("two windows", 20, 0.9, 0.6),
        ("batches off", 20, 0.9, 0.9),
        ("long batches", 20, 0.9, 0.98),
        ("arrivals", 30, 0.9, 0.85),
    ],
)
def test_intervals_hold_the_true_figure(kind: str, count: int, least_held: float, least_accepted: float) -> None:
    """In as many worlds as 95 % let one expect, and no figure that is accepted is further off than the limit."""
    held, accepted = 0, []
    for world, restarts, _ in worlds(kind, range(1000, 1000 + count), 3):
        seen = budget(restarts)
        assert seen.interval is not None
        assert seen.expanded is not None
        held += seen.interval.low <= world.true_j <= seen.interval.high
        if seen.expanded <= LIMIT:
            accepted.append(seen.energy_per_unit_j / world.true_j - 1)
    assert held >= least_held * count
    assert len(accepted) >= least_accepted * count
    assert max(map(abs, accepted)) <= LIMIT


def test_the_table_adds_up() -> None:
    """Of steady restarts at 1.00, 1.01 and 1.02 J: each entry, and the interval by Student's t."""
    seen = budget([[window(joules * EVEN)] for joules in (1.00, 1.01, 1.02)], boards=4)
    restarts = float(np.std(np.log([1.00, 1.01, 1.02]), ddof=1)) / sqrt(3)
    expected = {
        "restarts": restarts,
        "mix of work": 0.0,
        "warmth": 0.0,
        "room": hypot(0.0006, 0.0003) * 1.5,
        "first seconds": 0.0005,
        "timing": 0.001,
    }
    assert {each.name: each.standard_uncertainty for each in seen.entries} == pytest.approx(expected)
    variance = sum(each**2 for each in expected.values())
    assert seen.standard_uncertainty == pytest.approx(sqrt(variance))
    assert seen.degrees_of_freedom == pytest.approx(2 * variance**2 / restarts**4)
    assert [each.degrees_of_freedom for each in seen.entries] == [2, *[None] * 5]
    assert sum(each.share for each in seen.entries) == pytest.approx(1)
    # Between the factors of two degrees of freedom and of three.
    assert seen.expanded is not None
    assert T_FACTORS[2] < seen.expanded / sqrt(variance) < T_FACTORS[1]
    assert seen.interval == pytest.approx((1.01 * exp(-seen.expanded), 1.01 * exp(seen.expanded)))
    assert (seen.measured, seen.energy_per_unit_j) == pytest.approx((1.01, 1.01))
    assert seen.per_restart == pytest.approx([1.00, 1.01, 1.02])
    told = {each.name: each.standard_uncertainty for each in seen.not_included}
    assert told == {"sensor gain": None, "board": 0.0125, "session": 0.003, "later minutes": pytest.approx(0)}


@pytest.mark.parametrize(
    ("of_limit", "expected"), [(0.97, 0.0055), (0.9, 0.0055), (0.85, 0.0125), (0.8, 0.0245), (0.3, 0.0245)]
)
def test_what_other_boards_differ_by_depends_on_the_load(of_limit: float, expected: float) -> None:
    """Of four boards, as mean watts of the windows are near their limits, between, or well below."""
    watts = TOKENS * 1.0 / 2.0
    seen = budget([[window(EVEN)]] * 3, boards=4, limit_w=watts / of_limit)
    [board] = [each for each in seen.not_included if each.name == "board"]
    assert board.standard_uncertainty == pytest.approx(expected)
    assert f"4 boards at {of_limit * 100:.0f} % of the power limit" in board.found


def test_no_entry_makes_an_interval_narrower() -> None:
    """Timing that is known raises the degrees of freedom of three restarts from 2 on; t falls, and U must not."""
    levels, halves = (1.00, 1.01, 1.02), []
    for timing in np.linspace(0, 2, 41).tolist():
        seen = budget([[replace(window(level * EVEN), timing_j=timing * TOKENS * BLOCKS / 100)] for level in levels])
        assert seen.expanded is not None
        halves.append(seen.expanded)
    assert (np.diff(halves) >= 0).all()
    # Of the restarts alone, by two degrees of freedom.
    assert halves[0] == pytest.approx(4.3027 * float(np.std(np.log(levels), ddof=1)) / sqrt(3), rel=1e-3)
    assert halves[-1] > 2 * 1.95 / 100


def test_two_restarts_have_no_interval() -> None:
    """But a figure, and the reason."""
    seen = budget([[window(EVEN)], [window(EVEN)]])
    assert seen.energy_per_unit_j == pytest.approx(1)
    assert (seen.expanded, seen.interval) == (None, None)
    assert seen.reason == "an interval needs 3 restarts; set repeats.restarts"


def test_a_correction_of_all_joules_leaves_no_interval() -> None:
    """A restart with three times its prompts: without them it would have had fewer than no joules."""
    work = {PROMPTS: np.linspace(30, 32, BLOCKS), CONTEXT: 1000 * EVEN}
    off = replace(window(work[PROMPTS] / 10), work=work, declared={PROMPTS: 0.1 / 100 * 10, CONTEXT: 10})
    even = replace(off, block_j=TOKENS * EVEN, total_j=TOKENS * BLOCKS, work={PROMPTS: EVEN, CONTEXT: 1000 * EVEN})
    seen = budget([[off], [even], [even]])
    assert min(seen.per_restart) <= 0
    assert (seen.expanded, seen.interval) == (None, None)
    assert seen.reason == "a restart's work was so far from the declared that its correction leaves no joules"


def test_a_restart_counts_by_its_tokens() -> None:
    """Of five short restarts and one that holds four fifths of the tokens, all of which scatter alike."""
    lengths, random, held = np.array([5, 5, 5, 5, 5, 100]), np.random.default_rng(0), 0
    for _ in range(200):
        joules = random.normal(1, 0.01, len(lengths))
        runs = [(np.full(length, joule), np.full(length, 60.0)) for length, joule in zip(lengths, joules, strict=True)]
        seen = budget([[window(*run)] for run in runs], whole=True)
        [restarts] = [each for each in seen.entries if each.name == "restarts"]
        expected = np.std(np.log(joules), ddof=1) * hypot(*lengths) / lengths.sum()
        assert restarts.standard_uncertainty == pytest.approx(expected)
        assert seen.interval is not None
        held += seen.interval.low <= 1 <= seen.interval.high
    assert held >= 190


def test_equal_restarts_are_no_better_known_than_their_blocks() -> None:
    """1 % to and fro in each block; in runs of five blocks, as many blocks tell less."""
    quick, slow = (1 + 0.01 * np.where(np.arange(BLOCKS) // run % 2, -1, 1) for run in (1, 5))
    # 20 blocks, of which 19 are free, in three restarts.
    expected = 0.01 * sqrt(1 / 19 / 3)
    assert entry([[window(quick)]] * 3, "restarts").standard_uncertainty == pytest.approx(expected, rel=1e-3)
    # 16 of 19 neighbours are alike: 13 ÷ 20 is their correlation.
    wider = expected * sqrt((1 + 13 / 20) / (1 - 13 / 20))
    found = entry([[window(slow)]] * 3, "restarts")
    assert found.standard_uncertainty == pytest.approx(wider, rel=1e-3)
    # They are known as well as 3 × 19 differences let one know; restarts that differ more, as two.
    assert found.degrees_of_freedom == 57
    apart = [[window(level * quick)] for level in (0.99, 1, 1.01)]
    assert entry(apart, "restarts").degrees_of_freedom == 2


def test_a_mix_that_is_off_in_all_restarts_is_corrected() -> None:
    """By 2 %, where 40 % of the joules go with prompts; equal blocks tell nothing, and half of it is supposed."""
    prompts = 1.02 * (1 + 0.3 * np.sin(np.arange(BLOCKS)))
    declared = {PROMPTS: 1.0, CONTEXT: 600.0}
    varied = replace(window(0.6 + 0.4 * prompts), work={PROMPTS: TOKENS * prompts}, declared=declared)
    off = float(prompts.mean()) - 1
    seen = budget([[varied]] * 3)
    assert seen.measured == pytest.approx(1 + 0.4 * off)
    assert seen.energy_per_unit_j == pytest.approx(1, abs=1e-4)
    mix = entry([[varied]] * 3, "mix of work")
    # Contexts are declared, but not told.
    assert mix.standard_uncertainty == pytest.approx(0.1 * off, rel=0.01)
    equal = replace(window(1.008 * EVEN), work={PROMPTS: TOKENS * 1.02 * EVEN}, declared={PROMPTS: 1.0})
    mix = entry([[equal]] * 3, "mix of work")
    assert mix.correction == pytest.approx(-0.02 * 0.5)
    assert mix.standard_uncertainty == pytest.approx(0.02 * sqrt(0.29**2 + 0.1**2))
    assert mix.found == "prompt tokens per output token 2.00 % above declared; J/token changes 0.50 times as much"


UNREAD = "temperatures were not read throughout, in 3 blocks a window or more"
PER_C, PER_C_ERROR = 0.0006, 0.0003


@pytest.mark.parametrize("blocks", [1, 2])
def test_windows_of_few_blocks_have_no_slope_of_temperature(blocks: int) -> None:
    """Two rounds of a batch fill a window: 8 °C remain uncertain, though temperatures were read."""
    found = entry([[window(EVEN[:blocks], 60 + np.arange(blocks, dtype=np.float64))]] * 3, "warmth")
    assert (found.correction, found.found) == (0, UNREAD)
    assert found.standard_uncertainty == pytest.approx(hypot(PER_C, PER_C_ERROR) * 8)


def test_a_board_that_warms_is_corrected_to_where_it_settles() -> None:
    """Ten degrees remain at the begin, with a time constant of 75 s; and 0.06 % per °C."""
    left_c = 10 * np.exp(-(2 * np.arange(BLOCKS) + 1) / 75)
    warming = window(1 - PER_C * left_c, 70 - left_c)
    seen = budget([[warming]] * 3)
    assert seen.measured == pytest.approx(1 - PER_C * left_c.mean())
    assert seen.energy_per_unit_j == pytest.approx(1, abs=1e-4)
    found = entry([[warming]] * 3, "warmth")
    # A line fits so well that the time constant's 26 of 75 s and the coefficient's half are all.
    assert found.correction == pytest.approx(PER_C * left_c.mean(), rel=0.02)
    relative = hypot(hypot(PER_C, PER_C_ERROR) / PER_C * 26 / 75, PER_C_ERROR / PER_C)
    assert found.standard_uncertainty == pytest.approx(found.correction * relative, rel=0.02)
    unread = replace(warming, block_c=np.where(np.arange(BLOCKS) == 3, np.nan, warming.block_c))
    found = entry([[warming], [unread], [warming]], "warmth")
    assert (found.correction, found.found) == (0, UNREAD)
    assert found.standard_uncertainty == pytest.approx(hypot(PER_C, PER_C_ERROR) * 8)


def test_a_slope_of_temperature_is_known_as_well_as_readings_scatter() -> None:
    """A flat board whose readings scatter by 1.8 °C (its joules do not): what remains is told with its error."""
    random, corrections, errors = np.random.default_rng(7), [], []
    for _ in range(400):
        flat = [[window(EVEN, random.normal(60, 1.8, BLOCKS))] for _ in range(3)]
        found = entry(flat, "warmth")
        corrections.append(found.correction)
        errors.append(found.standard_uncertainty)
    # The error of a line through 20 blocks of 2 s, three times; 75 s of that.
    expected_c = 75 * 1.8 / sqrt(3 * (((2 * np.arange(BLOCKS) - 19) ** 2).sum()))
    assert sqrt(np.mean(np.square(corrections))) == pytest.approx(PER_C * expected_c / sqrt(2), rel=0.1)
    assert np.median(errors) == pytest.approx(hypot(PER_C, PER_C_ERROR) * expected_c, rel=0.15)
    assert np.mean(np.array(corrections) <= 1.96 * np.array(errors)) >= 0.95


def test_a_board_that_cools_is_not_corrected() -> None:
    """By 0.05 °C/s: where it ends is as uncertain as where one that warms does."""
    cooling = 60 - 0.05 * (2 * np.arange(BLOCKS, dtype=np.float64) + 1)
    found = entry([[window(EVEN, cooling)]] * 3, "warmth")
    assert found.correction == 0
    assert found.standard_uncertainty == pytest.approx(hypot(PER_C, PER_C_ERROR) * 0.05 * 26)


def test_restarts_at_different_temperatures_are_reduced_to_their_mean() -> None:
    """At 58, 60 and 65 °C, 0.06 % per °C: they differ as measured, and agree once reduced."""
    restarts = [[window((1 + PER_C * (celsius - 61)) * EVEN, celsius * EVEN)] for celsius in (58, 60, 65)]
    seen = budget(restarts)
    assert seen.per_restart == pytest.approx([1] * 3, abs=1e-5)
    assert seen.energy_per_unit_j == pytest.approx(seen.measured, abs=1e-5)


def test_blocks_are_reduced_to_the_mean_temperature_of_their_window() -> None:
    """One that swings by 10 °C, at 0.06 % per °C, does not scatter."""
    swing_c = 5 * np.sin(np.arange(BLOCKS))
    found = entry([[window(1 + PER_C * swing_c, 60 + swing_c)]] * 3, "restarts")
    assert found.standard_uncertainty == pytest.approx(0, abs=1e-5)


def test_windows_of_a_restart_are_one_value() -> None:
    """Which weighs as many tokens as it has; the shortest lead-in counts."""
    early = replace(window(1.02 * EVEN[:5], 60 * EVEN[:5]), lead_in_s=15)
    seen = budget([[early, window(EVEN)]] * 3)
    assert seen.per_restart == pytest.approx([(5 * 1.02 + 20) / 25] * 3)
    first = entry([[early, window(EVEN)]] * 3, "first seconds")
    assert log(first.standard_uncertainty / 0.01) == pytest.approx(-1)
