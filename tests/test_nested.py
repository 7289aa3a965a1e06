"""Nested settings under dotted names."""

from __future__ import annotations

from wattdock.text import dotted


def test_every_leaf_is_yielded_in_order_and_an_empty_group_is_one() -> None:
    """That a section was there is a fact, too."""
    nested = {"a": {"b": {"c": 1}, "d": {}}, "e": [{"f": 2}]}
    assert list(dotted(nested)) == [("a.b.c", 1), ("a.d", {}), ("e", [{"f": 2}])]
