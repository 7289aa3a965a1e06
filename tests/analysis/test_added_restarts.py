"""Restarts added for `repeats.until`: intervals hold the true figure as often as they say."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.machine import experiment
from seams.analysis import Window, budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seams.analysis import Budget

    from wattdock.config import ExperimentConfig

DRAWS = 1000


def asking(until: float | None, *, restarts: int = 3, most: int = 8) -> ExperimentConfig:
    return experiment("x", repeats={"restarts": restarts, "until": until, "most": most})


def budget_of(joules: Sequence[float], first: int | None = None) -> Budget:
    """Return the budget of restarts that cost so many joules per token, evenly and at one temperature."""
    even = np.ones(8)
    windows = [
        Window(
            total_j=800 * cost,
            output_tokens=800,
            timing_j=0.0,
            lead_in_s=1000,
            block_s=5 * even,
            block_j=100 * cost * even,
            block_tokens=100 * even,
            block_c=60 * even,
        )
        for cost in joules
    ]
    return budget([[window] for window in windows], first=first)


@pytest.mark.parametrize(
    ("expanded", "until", "restarts", "most", "wanted"),
    [
        # 1.1 × 3 × (1.5 ÷ 1)² = 7.4; 1.1 × 5 × 1.2² = 7.9.
        (0.015, 0.01, 3, 8, 8),
        (0.012, 0.01, 5, 9, 8),
        (0.010, 0.01, 3, 8, 4),
        (0.009, 0.01, 3, 8, 3),
        (0.0, 0.01, 3, 8, 3),
        (0.5, 0.01, 3, 8, 8),
        (0.5, 0.01, 3, 10_000, 8250),
        (0.5, 1e-300, 3, 8, 8),
        (0.5, 0.01, 6, 6, 6),
        (0.5, None, 3, 8, 3),
    ],
)
def test_the_interval_of_the_first_restarts_decides_how_many_are_wanted(
    expanded: float, until: float | None, restarts: int, most: int, wanted: int
) -> None:
    """With its square, a tenth more than it asks for; never fewer than the first, nor more than `most`."""
    assert asking(until, restarts=restarts, most=most).repeats.wanted(expanded) == wanted


def test_95_of_100_intervals_of_added_restarts_hold_the_true_figure() -> None:
    """From three restarts up to eight; taking all restarts' scatter, or stopping early, 89 to 92 % did."""
    draw, held = np.random.default_rng(7), dict.fromkeys((0.0025, 0.005, 0.01, 0.02, 0.04), 0)
    for _ in range(DRAWS):
        joules = np.exp(draw.normal(0, 0.01, 8)).tolist()
        expanded = budget_of(joules[:3], 3).expanded
        assert expanded
        wanted = {until: asking(until).repeats.wanted(expanded) for until in held}
        intervals = {number: budget_of(joules[:number], 3).interval for number in set(wanted.values())}
        for until, number in wanted.items():
            interval = intervals[number]
            assert interval
            held[until] += interval.low <= 1 <= interval.high
    assert min(held.values()) / DRAWS >= 0.935, held


def test_the_scatter_of_the_first_restarts_counts_unless_that_of_all_is_wider() -> None:
    """First 1 % apart with two degrees of freedom; then four that agree, or two that are far off."""
    quiet = budget_of([0.99, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0], 3).entry("restarts")
    assert quiet
    assert quiet.degrees_of_freedom == 2
    assert quiet.standard_uncertainty == pytest.approx(0.01 / sqrt(7), rel=1e-3)
    assert "standard deviation of the first 3 1.00%" in quiet.found
    far = [0.99, 1.0, 1.01, 0.9, 1.1]
    wide = budget_of(far, 3).entry("restarts")
    assert wide
    of_all = float(np.std(np.log(far), ddof=1)) / sqrt(5)
    assert wide.degrees_of_freedom == 4
    assert wide.standard_uncertainty == pytest.approx(of_all, rel=1e-6)
    assert "first" not in wide.found
    assert budget_of(far, 5) == budget_of(far)


def test_the_figure_is_known_as_well_as_it_was_asked_for_where_restarts_suffice() -> None:
    """Three restarts that scatter by 1 %, and 1 % asked for: about 4.3² × 1.1 are wanted."""
    joules = [0.99, 1.0, 1.01]
    expanded = budget_of(joules, 3).expanded
    assert expanded
    number = asking(0.01, most=99).repeats.wanted(expanded)
    assert 18 <= number <= 21
    whole = budget_of([*joules, *np.exp(np.resize([0.01, -0.01], number - 3))], 3)
    assert whole.expanded
    assert 0.008 <= whole.expanded <= 0.01
