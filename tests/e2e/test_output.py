"""What is printed, where it goes: terminals of any width, pipes, readers that leave, disks that are full."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import SMALL, WATTDOCK
from rich.console import Console
from unprivileged import give_to_user, run_as_user

from wattdock.reports.terminal import Sheet

if TYPE_CHECKING:
    from command import Command

SIZES = [("one experiment of a long name", "0.05312", "12,383"), ("two", "0.08061", "7,640")]
# How a terminal is told to print bold or in colour.
STYLE = re.compile(r"\x1b\[[0-9;]*m")
# Long enough for a machine that has other things to do.
PATIENT_S = 240
SHEET = Sheet(("experiment", "J/token", "tokens/s"), SIZES)


def printed(sheet: Sheet, columns: int) -> str:
    out = Console(width=columns)
    with out.capture() as captured:
        out.print(sheet)
    return captured.get()


@pytest.mark.parametrize("columns", [100, 40, 32, 20])
def test_no_width_of_a_terminal_cuts_a_figure_or_a_word(columns: int) -> None:
    """Texts are wrapped, then rows become lines of heading and value; what is read is the same."""
    seen = printed(SHEET, columns)
    assert "…" not in seen
    assert max(len(line.rstrip()) for line in seen.splitlines()) <= columns
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
    assert "0.05" in printed(sheet, 31)
    assert "J/token 0.05" in " ".join(printed(sheet, 20).split())


def on_terminal(wattdock: Command, *words: str, columns: int) -> str:
    """Return what the command prints on a terminal of so many columns, without its styles."""
    ours, theirs = pty.openpty()
    env = {"COLUMNS": str(columns), "TERM": "xterm"}
    with wattdock.start(*words, env=env, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        read = bytearray()
        while piece := _read(ours):
            read += piece
        assert process.wait() == 0
    os.close(ours)
    return STYLE.sub("", read.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # How Linux says that the other end is closed.
        return b""


def test_a_pipe_gets_whole_lines_and_a_narrow_terminal_every_figure(wattdock: Command) -> None:
    """Of the known GPUs, the widest table that needs no measurement."""
    piped = wattdock("estimate").stdout
    [line] = [line for line in piped.splitlines() if line.startswith("A100-PCIE-40")]
    assert line.endswith("NOT VERIFIED: peak rates, link")
    assert not any(line.endswith(" ") for line in piped.splitlines())
    shown = on_terminal(wattdock, "estimate", columns=60)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert all(word in shown for word in ("1.555", "362.05", "250"))


def test_a_reader_that_leaves_ends_a_command_by_sigpipe_and_silently(wattdock: Command) -> None:
    """As `wattdock estimate | head` in a shell, which says 141; text and JSON alike."""
    for words in (("estimate",), ("estimate", "--json"), ("--help",)):
        ours, theirs = os.pipe()
        os.close(ours)
        with wattdock.start(*words, stdout=theirs, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            _, err = process.communicate(timeout=PATIENT_S)
        assert (process.returncode, err) == (-signal.SIGPIPE, ""), words


def test_an_error_keeps_its_code_where_nobody_reads(wattdock: Command) -> None:
    """A script that looks at the code alone still learns it."""
    ours, theirs = os.pipe()
    os.close(ours)
    with wattdock.start("plan", "missing.yaml", stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert process.wait(PATIENT_S) == 2


def test_readers_that_leave_cost_no_measurement(wattdock: Command) -> None:
    """Progress and table both went to `head`: the result is stored before the end by SIGPIPE."""
    ours, theirs = os.pipe()
    os.close(ours)
    with wattdock.start("run", *SMALL, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert process.wait(PATIENT_S) == -signal.SIGPIPE
    [result] = wattdock.results()
    assert result["status"] == "ok"


def test_output_that_has_no_room_or_no_place_is_no_traceback(wattdock: Command) -> None:
    """A full disk is one line and code 7; closed streams are as good as nowhere."""
    with Path("/dev/full").open("w") as full:
        with wattdock.start("estimate", stdout=full, stderr=subprocess.PIPE) as process:
            _, err = process.communicate(timeout=PATIENT_S)
        assert process.returncode == 7
        assert err == "wattdock: cannot write: No space left on device; make room, or lead the output elsewhere\n"
    script = wattdock.folder / "closed.sh"
    script.write_text('exec "$@" >&- 2>&-\n')
    give_to_user(script)
    closed = run_as_user(["/bin/sh", script, WATTDOCK, "estimate"], env=wattdock.env(), cwd=wattdock.folder)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
