"""What is said where joules cannot be told apart by kinds of work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from seams.analysis import TokenCosts, ends_text

from wattdock.reports.wording import token_cost_texts


def test_a_fit_that_misses_the_joules_says_so_once() -> None:
    """Not a line without a figure for each kind of work (seen on an H200 whose steps overlapped)."""
    refused = TokenCosts(closure=-0.0932, bins=3232, reason="the fit misses the energy by -9.3% (limit 2%)")
    result: Any = SimpleNamespace(energy=SimpleNamespace(token_costs=refused))
    assert token_cost_texts(result) == {"cost of each token": f"cannot be told: {refused.reason}"}


def test_work_that_the_fit_gives_nothing_is_not_between_0_and_0() -> None:
    """A bound of 0 would claim that such work is free."""
    assert ends_text(0, 0) == "0 in nearly every draw of the fit"
    assert ends_text(0, 0.25) == "between 0 and 0.25"
