"""Equal within a margin: what is said, and how often it is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from wattdock.analysis.difference import difference
from wattdock.analysis.equivalence import equivalence

MARGIN = 0.05


def test_tight_repeats_of_one_thing_are_equivalent_and_a_tenth_apart_are_not() -> None:
    """The interval lies inside the margin, or outside."""
    first = [0.1000, 0.1002, 0.0999]
    assert equivalence(first, [0.1001, 0.1003, 0.1000], margin=MARGIN).verdict == "equivalent"
    tenth = equivalence(first, [1.1 * one for one in first], margin=MARGIN)
    assert tenth.verdict == "not equivalent"
    assert tenth.relative == pytest.approx(0.1)


def test_too_few_or_too_scattered_repeats_are_undecided_with_the_reason() -> None:
    """Not finding a difference is no proof of equivalence."""
    assert "restarts" in str(equivalence([0.1], [0.1, 0.1], margin=MARGIN).reason)
    wide = equivalence([0.09, 0.1, 0.11], [0.1, 0.09, 0.12], margin=MARGIN)
    assert (wide.verdict, "restarts" in str(wide.reason)) == ("undecided", True)


def test_it_does_not_matter_which_comes_first() -> None:
    """5 % more and 5 % less are the same distance."""
    a, b = [0.1, 0.101, 0.102], [0.103, 0.104, 0.105]
    there, back = equivalence(a, b, margin=MARGIN), equivalence(b, a, margin=MARGIN)
    assert there.verdict == back.verdict
    assert back.low is not None
    assert there.high is not None
    assert (1 + there.relative) * (1 + back.relative) == pytest.approx(1)
    assert (1 + there.high) * (1 + back.low) == pytest.approx(1)


@pytest.mark.parametrize("restarts", [2, 3, 5])
def test_what_lies_on_the_margin_passes_for_equivalent_in_at_most_one_of_twenty_cases(restarts: int) -> None:
    """The test's error rate, by simulation with a fixed seed: 4,000 pairs of repeats with 1 % spread."""
    draw = np.random.default_rng(1)
    verdicts = [
        equivalence(
            list(np.exp(draw.normal(0, 0.01, restarts))),
            list((1 + MARGIN) * np.exp(draw.normal(0, 0.01, restarts))),
            margin=MARGIN,
        ).verdict
        for _ in range(4_000)
    ]
    # Three standard deviations of the count above 5 %.
    assert verdicts.count("equivalent") <= 4_000 * 0.05 + 42
    assert verdicts.count("not equivalent") <= 4_000 * 0.05 + 42


@pytest.mark.parametrize(("first", "second"), [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0]), ([1.0], [-1.0])])
def test_values_that_have_no_logarithm_are_refused(first: list[float], second: list[float]) -> None:
    """No ratio can be formed with them."""
    with pytest.raises(ValueError, match="positive"):
        equivalence(first, second, margin=MARGIN)


@pytest.mark.parametrize(
    ("first", "second"),
    [([0.1, 0.103, 0.099], [0.11, 0.108, 0.112, 0.109]), ([2.0, 2.01], [3.0, 3.1, 3.3])],
)
def test_its_interval_is_welchs_as_another_library_has_it(first: list[float], second: list[float]) -> None:
    """Unequal numbers and spreads."""
    theirs = stats.ttest_ind(np.log(second), np.log(first), equal_var=False).confidence_interval(0.90)
    found = equivalence(first, second, margin=MARGIN)
    assert [found.low, found.high] == pytest.approx([np.exp(theirs.low) - 1, np.exp(theirs.high) - 1])
    # And `compare` holds the same estimate.
    assert difference(first, second).relative == found.relative
