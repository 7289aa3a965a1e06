"""Words for people: what is left of long values."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from wattdock.text import excerpts_at_difference


@example(texts=["a" * 60 + "c" * 130, "a" * 120 + "c" * 130, "a" * 180 + "c" * 130, "a" * 60 + "c" * 260])
@given(st.lists(st.lists(st.sampled_from(("a" * 60, "b", "c" * 130)), max_size=6).map("".join), min_size=1, max_size=5))
def test_excerpts_are_short_and_those_of_different_texts_differ(texts: list[str]) -> None:
    """Also where two texts differ only behind the place where a third differs from both."""
    excerpts = excerpts_at_difference(texts)
    assert max(map(len, excerpts)) <= 102
    assert len(set(zip(texts, excerpts, strict=True))) == len(set(texts)) == len(set(excerpts))
