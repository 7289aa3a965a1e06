"""What is printed steers no terminal, whoever prints it."""

from __future__ import annotations

import ast
import logging
import sys
import traceback
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from seams.console import Listing, pairs, print_view
from sources import calls
from steering import CODES, HOSTILE, steers

from wattdock.output import MARK, guard_output, harmless, one_line, print_json, say

SOURCE = Path(__file__).resolve().parents[1] / "coordinator/wattdock"
# What may write to a stream by itself: the one place, who draws tables, and a script that runs without wattdock.
WRITERS = {"output.py", "console/views/terminal.py", "launch/uv.py"}


def prints(file: Path) -> list[str]:
    """Return the calls in a file that write to a terminal."""
    named = [ast.unparse(call.func) for call in calls(file)]
    streams = tuple(f"{stream}." for stream in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"))
    return [
        name
        for name in named
        if name in ("print", "Console")
        or name.endswith((".echo", ".secho"))
        or (name.startswith(streams) and "write" in name)
    ]


def test_nothing_prints_past_the_one_place() -> None:
    """A line of typer's or a print would show a name as it is."""
    past = {str(file.relative_to(SOURCE)): found for file in SOURCE.rglob("*.py") if (found := prints(file))}
    # A pass's panel, whose own test shows that it steers nothing.
    panel = {"console/progress.py": ["Console"]}
    assert {file: found for file, found in past.items() if file not in WRITERS} == panel


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_shown_as_a_mark(code: str) -> None:
    """What stands around it stays, at its place."""
    shown = one_line(f"a{code}b")
    assert (shown[0], shown[-1], len(shown)) == ("a", "b", len(code) + 2)
    assert MARK in shown
    assert steers(shown) == []


def test_text_of_any_language_stays_as_it_is() -> None:
    """Letters, spaces of every width, joined emoji, and a tab."""
    text = "Größe\u00a012\u202f345 ± 5 µJ\t漢字\u3000한국어 می\u200cخواهم हिन्दी 👩\u200d🔬 →"
    assert harmless(text) == text
    assert harmless("two\nlines") == "two\nlines"
    assert one_line("two\nlines") == "two lines"


def test_lines_tables_and_styled_texts_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """In every place of every part of a view; also in a table that nobody made harmless."""
    bare = Table(HOSTILE.replace("\n", ""))
    bare.add_row(HOSTILE.replace("\n", ""))
    sheet = Listing((HOSTILE, "b"), [(HOSTILE, "1.0"), ("c", HOSTILE)], title=HOSTILE)
    say(HOSTILE)
    print_view([HOSTILE, Text(HOSTILE, style="bold"), Text.assemble((HOSTILE, "red"), HOSTILE)])
    print_view([sheet, pairs([(HOSTILE, HOSTILE)]), bare])
    printed = capsys.readouterr().out
    assert "forged" in printed
    assert steers(printed) == []


def test_libraries_and_tracebacks_are_harmless_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the command runs, all that writes to its streams goes through the one place."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    guard_output()
    guard_output()
    text = HOSTILE.replace("\n", "")
    print(text)
    sys.stdout.writelines([text])
    assert logging.lastResort
    logging.lastResort.emit(logging.LogRecord("hub", logging.WARNING, "", 1, text, None, None))
    try:
        raise ValueError(text)
    except ValueError:
        traceback.print_exc()
    out, err = capsys.readouterr()
    assert out.count("owned") == 2
    assert err.count("owned") == 2
    assert steers(out + err) == []


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """A program gets the text back whole, and a terminal none of it."""
    print_json({HOSTILE: HOSTILE})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert steers(printed) == []
