"""The uncertainty budget: its intervals hold the true figures of simulated engines, and its table adds up."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt
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
            accepted.append(seen.energy_per_output_token_j / world.true_j - 1)
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
        "room": 0.0006 * 1.5,
        "first seconds": 0.0005,
        "timing": 0.001,
    }
    assert {each.name: each.standard_uncertainty for each in seen.entries} == pytest.approx(expected)
    variance = sum(each**2 for each in expected.values())
    assert seen.standard_uncertainty == pytest.approx(sqrt(variance))
    assert seen.freedom == pytest.approx(2 * variance**2 / restarts**4)
    assert [each.freedom for each in seen.entries] == [2, *[None] * 5]
    assert sum(each.share for each in seen.entries) == pytest.approx(1)
    # Between the factors of two degrees of freedom and of three.
    assert seen.expanded is not None
    assert T_FACTORS[2] < seen.expanded / sqrt(variance) < T_FACTORS[1]
    assert seen.interval == pytest.approx((1.01 * exp(-seen.expanded), 1.01 * exp(seen.expanded)))
    assert (seen.measured, seen.energy_per_output_token_j) == pytest.approx((1.01, 1.01))
    assert seen.per_restart == pytest.approx([1.00, 1.01, 1.02])
    told = {each.name: each.standard_uncertainty for each in seen.not_included}
    assert told == {"sensor gain": None, "board": 0.01, "session": 0.003}


def test_two_restarts_have_no_interval() -> None:
    """But a figure, and the reason."""
    seen = budget([[window(EVEN)], [window(EVEN)]])
    assert seen.energy_per_output_token_j == pytest.approx(1)
    assert (seen.expanded, seen.interval) == (None, None)
    assert seen.reason == "2 restarts: too few for an interval, 3 are the least; set repeats.restarts"


def test_equal_restarts_are_no_better_known_than_their_blocks() -> None:
    """1 % to and fro in each block; in runs of five blocks, as many blocks tell less."""
    quick, slow = (1 + 0.01 * np.where(np.arange(BLOCKS) // run % 2, -1, 1) for run in (1, 5))
    # 20 blocks, of which 19 are free, in three restarts.
    expected = 0.01 * sqrt(1 / 19 / 3)
    assert entry([[window(quick)]] * 3, "restarts").standard_uncertainty == pytest.approx(expected, rel=1e-3)
    # 16 of 19 neighbours are alike: 13 ÷ 20 is their correlation.
    wider = expected * sqrt((1 + 13 / 20) / (1 - 13 / 20))
    assert entry([[window(slow)]] * 3, "restarts").standard_uncertainty == pytest.approx(wider, rel=1e-3)


def test_a_mix_that_is_off_in_all_restarts_is_corrected() -> None:
    """By 2 %, where 40 % of the joules go with prompts; equal blocks tell nothing, and half of it is supposed."""
    prompts = 1.02 * (1 + 0.3 * np.sin(np.arange(BLOCKS)))
    declared = {PROMPTS: 1.0, CONTEXT: 600.0}
    varied = replace(window(0.6 + 0.4 * prompts), work={PROMPTS: TOKENS * prompts}, declared=declared)
    off = float(prompts.mean()) - 1
    seen = budget([[varied]] * 3)
    assert seen.measured == pytest.approx(1 + 0.4 * off)
    assert seen.energy_per_output_token_j == pytest.approx(1, abs=1e-4)
    mix = entry([[varied]] * 3, "mix of work")
    # Contexts are declared, but not told.
    assert mix.standard_uncertainty == pytest.approx(0.1 * off, rel=0.01)
    equal = replace(window(1.008 * EVEN), work={PROMPTS: TOKENS * 1.02 * EVEN}, declared={PROMPTS: 1.0})
    mix = entry([[equal]] * 3, "mix of work")
    assert mix.correction == pytest.approx(-0.02 * 0.5)
    assert mix.standard_uncertainty == pytest.approx(0.02 * sqrt(0.29**2 + 0.1**2))
    assert mix.found == "prompt tokens per output token +2.00% off, 0.50 of J/token follows"


def test_one_block_a_window_leaves_what_is_supposed() -> None:
    """A batch whose rounds fill the window: nothing is fitted."""
    found = entry([[window(np.ones(1), np.full(1, 60.0))]] * 3, "warmth")
    assert (found.correction, found.standard_uncertainty, found.found) == (
        0,
        0,
        "+0.0 °C to a settled board, +0.060% per °C",
    )


def test_a_board_that_warms_is_corrected_to_where_it_settles() -> None:
    """Ten degrees to come at the begin, with a time constant of 75 s; and 0.04 % per °C."""
    to_come_c = 10 * np.exp(-(2 * np.arange(BLOCKS) + 1) / 75)
    warming = window(1 - 0.0004 * to_come_c, 70 - to_come_c)
    seen = budget([[warming]] * 3)
    assert seen.measured == pytest.approx(1 - 0.0004 * to_come_c.mean())
    assert seen.energy_per_output_token_j == pytest.approx(1, abs=1e-4)
    unread = replace(warming, block_c=np.where(np.arange(BLOCKS) == 3, np.nan, warming.block_c))
    found = entry([[unread]] * 3, "warmth")
    assert (found.correction, found.found) == (0, "temperatures were not read throughout")
    assert found.standard_uncertainty == pytest.approx(0.0006 * 8)


def test_windows_of_a_restart_are_one_value() -> None:
    """Which weighs as many tokens as it has; the shortest lead-in counts."""
    early = replace(window(1.02 * EVEN[:5], 60 * EVEN[:5]), lead_in_s=15)
    seen = budget([[early, window(EVEN)]] * 3)
    assert seen.per_restart == pytest.approx([(5 * 1.02 + 20) / 25] * 3)
    first = entry([[early, window(EVEN)]] * 3, "first seconds")
    assert log(first.standard_uncertainty / 0.01) == pytest.approx(-1)
