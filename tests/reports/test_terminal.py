"""Tables on terminals of any width."""

from __future__ import annotations

import pytest
from rich.console import Console
from seams.console import Listing, Sheet

SIZES = [("one experiment of a long name", "0.05312", "12,383"), ("two", "0.08061", "7,640")]
SHEET = Sheet(("experiment", "J/token", "tokens/s"), SIZES)


def printed(sheet: Sheet, columns: int) -> str:
    out = Console(width=columns)
    with out.capture() as captured:
        out.print(sheet, soft_wrap=True)
    return captured.get()


@pytest.mark.parametrize("columns", [100, 40, 32, 20])
def test_no_width_of_a_terminal_cuts_a_figure_or_a_word(columns: int) -> None:
    """Texts are wrapped; a line of figures that do not fit side by side is longer than the terminal."""
    seen = printed(SHEET, columns)
    assert "…" not in seen
    assert max(len(line.rstrip()) for line in seen.splitlines()) <= max(columns, 32)
    letters = "".join(seen.split())
    for words in SIZES:
        assert all(figure in seen for figure in words[1:])
        assert all(piece in letters for piece in words[0].split())


def test_columns_of_figures_stand_at_the_right_and_only_texts_are_wrapped() -> None:
    """A date or a folder's name that begins with a digit is a text."""
    sheet = Sheet(
        ("name", "J/token", "began"), [("a text of a good many words", "0.05", "2026-01-31"), ("b", "–", "–")]
    )
    heading, first, *_ = printed(sheet, 100).splitlines()
    assert heading.index("J/token") + len("J/token") == first.index("0.05") + len("0.05")
    assert heading.index("began") == first.index("2026-01-31")
    assert "0.05" in printed(sheet, 20)


def test_a_listing_breaks_no_name_and_says_which_columns_it_leaves_out() -> None:
    """From the right; only sentences are wrapped, at their words."""
    name = "batch 8, a name of words"
    listing = Listing(("experiment", "J/token", "verdict", "p"), [(name, "0.05", "one of a few sentences", "0.1")])
    for columns, shown in ((100, "0.1"), (60, "one of a few"), (35, "0.05"), (10, name)):
        seen = printed(listing, columns)
        assert name in seen
        assert shown in seen
        lines = [line.rstrip() for line in seen.splitlines() if "no room" not in line]
        assert max(map(len, lines)) <= max(columns, len(name))
    assert printed(listing, 35).splitlines()[-1] == "no room here for verdict, p; --json has every column"
    assert "no room" not in printed(listing, 100)


def test_a_disturbed_result_has_a_sign_with_its_meaning() -> None:
    """Only where the sign is to be seen."""
    listing = Listing(("name", "status"), [("a", "ok †"), ("b", "ok")])
    assert printed(listing, 80).splitlines()[-1] == "† Others used its CPUs or GPUs meanwhile."
    assert "Others" not in printed(listing, 4)
