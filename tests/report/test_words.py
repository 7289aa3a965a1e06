"""Long texts that differ somewhere."""

from __future__ import annotations

import pytest

from wattdock.reports.words import LONG, where_apart


def test_short_texts_are_shown_whole() -> None:
    """Whatever they have in common."""
    assert where_apart(("2.11.0", "2.12.0")) == ["2.11.0", "2.12.0"]
    assert where_apart(()) == []


@pytest.mark.parametrize("homes", [("/home/ada", "/root"), ("", "/root"), ("/root", "/root/x")])
def test_long_texts_are_cut_to_where_they_differ(homes: tuple[str, str]) -> None:
    """An engine's settings with another cache folder: both cuts begin alike and show it."""
    texts = [f"{{'level': {'3, ' * 500}'cache_dir': '{home}', {'4, ' * 500}}}" for home in homes]
    cut = where_apart(texts)
    assert cut[0] != cut[1]
    assert all(len(one) <= LONG + 2 and one[0] == one[-1] == "…" for one in cut)
    assert all("'cache_dir': '" in one for one in cut)


def test_a_long_text_beside_a_short_one() -> None:
    """The short one stays what it is."""
    assert where_apart(["–", "x" * 1000]) == ["–", "x" * LONG + "…"]
