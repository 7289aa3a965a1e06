"""Pictures that README and docs show."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_every_picture_that_is_shown_is_there_and_every_picture_is_shown() -> None:
    """Half a megabyte at most."""
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())]
    shown = {(page.parent / link).resolve() for page, link in links}
    assert [file for file in sorted(shown) if not 1_000 < file.stat().st_size < 500_000] == []
    assert shown == set((REPO / "docs/pictures").iterdir())
