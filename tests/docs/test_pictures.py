"""README's pictures: there, made from stored results, and loading nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from stored_results import stored

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "docs"))

from pictures import COLUMNS, on_terminal, terminal_picture  # noqa: E402


def test_every_picture_that_readme_shows_is_there_and_its_size_is_a_readers() -> None:
    """Half a megabyte at most."""
    shown = re.findall(r"!\[[^\]]+\]\((docs/pictures/[^)]+)\)", (REPO / "README.md").read_text())
    assert len(shown) == 3
    assert [name for name in shown if not 1_000 < (REPO / name).stat().st_size < 500_000] == []


def test_a_terminals_picture_holds_what_the_command_prints_and_loads_nothing(tmp_path: Path) -> None:
    """The real command, on a pseudo-terminal of a known width."""
    folder = stored(tmp_path / "results")
    text = on_terminal(["show", f"results/{folder.name}"], tmp_path)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "J/output token" in plain
    assert max(map(len, plain.splitlines())) <= COLUMNS
    picture = terminal_picture(text, title="wattdock")
    assert "publishable" in picture
    assert "url(" not in picture.replace("url(#", "")
    assert not re.search(r'(?:href|src)="http', picture)
    with pytest.raises(RuntimeError, match="shaw"):
        on_terminal(["shaw"], tmp_path)
