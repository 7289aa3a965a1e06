"""Tables on terminals of any width."""

from __future__ import annotations

from rich.console import Console
from seams.console import Listing


def printed(sheet: Listing, columns: int) -> str:
    out = Console(width=columns)
    with out.capture() as captured:
        out.print(sheet, soft_wrap=True)
    return captured.get()


def test_columns_of_figures_stand_at_the_right_and_only_sentences_are_wrapped() -> None:
    """A date or a folder's name that begins with a digit is a text."""
    sheet = Listing(
        ("verdict", "J/token", "began"), [("a text of a good many words", "0.05", "2026-01-31"), ("b", "–", "–")]
    )
    heading, first, *_ = printed(sheet, 100).splitlines()
    assert heading.index("J/token") + len("J/token") == first.index("0.05") + len("0.05")
    assert heading.index("began") == first.index("2026-01-31")
    assert "0.05" in printed(sheet, 25)


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
