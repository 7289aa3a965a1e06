"""The benchmark of error rates: its tables, and rates that are known."""

from __future__ import annotations

from error_rates import KINDS, coverage, false_differences, table


def test_normal_restarts_are_in_their_intervals_and_equal_arms_in_pairs_do_not_differ() -> None:
    """The nominal 95 and 5 %, and what restarts of one session each would find instead."""
    assert all(0.93 < share < 0.97 for share in coverage("normal, 2 %", 3, 1000))
    over_restarts, in_pairs, over_sessions = false_differences(5, 5, 1000)
    assert over_restarts > 0.45
    assert in_pairs < 0.07
    assert over_sessions < 0.07


def test_the_tables_have_a_row_for_each_kind_and_number_of_restarts() -> None:
    """Below two lines of heading each, with a line between them."""
    assert len(list(table(2))) == 2 + len(KINDS) + 1 + 2 + 3
