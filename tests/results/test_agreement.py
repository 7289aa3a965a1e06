"""How far two results generated the same tokens."""

from __future__ import annotations

import pytest

from wattdock.errors import ConfigError
from wattdock.results.agreement import Agreement, agreement_of


def test_equal_tokens_agree_wholly() -> None:
    """Requests that only one of them has do not count."""
    assert agreement_of({(0, 0, 0): [1, 2], (0, 0, 1): [3]}, {(0, 0, 0): [1, 2]}) == Agreement(1, 1, 1.0, None)


def test_what_follows_a_first_difference_agrees_by_chance_only() -> None:
    """Two of four tokens before it in one request, all three in another."""
    first = {(0, 0, 0): [1, 2, 3, 4], (0, 0, 1): [7, 8, 9]}
    second = {(0, 0, 0): [1, 2, 9, 4], (0, 0, 1): [7, 8, 9]}
    assert agreement_of(first, second) == Agreement(2, 1, 5 / 7, 2)


def test_an_answer_that_ends_early_differs_where_it_ends() -> None:
    """Its tokens are a prefix, and still another answer."""
    assert agreement_of({(0, 0, 0): [1, 2]}, {(0, 0, 0): [1, 2, 3]}) == Agreement(1, 0, 1.0, 2)


def test_nothing_in_common_is_no_agreement() -> None:
    """Not even a perfect one."""
    with pytest.raises(ConfigError, match="no request"):
        agreement_of({(0, 0, 0): [1]}, {(1, 0, 0): [1]})
