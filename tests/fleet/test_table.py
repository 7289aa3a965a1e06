"""The table of a study's tasks: printed, and followed on a terminal."""

from __future__ import annotations

import os
import pty
import re
import termios
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group
from seams.console import Plain, tasks_view
from steering import HOSTILE, steers

from wattdock.console.progress import progress_for
from wattdock.console.views import show
from wattdock.fleet import TaskState, summary

if TYPE_CHECKING:
    import pytest

DONE = TaskState(0, "done", "", "", "", 1, 2, 2, 8, 8, f"a{HOSTILE}", 0)
RUNNING = replace(DONE, task=1, state="running", node="n1", job="7_1", done=0, measured=3, label="b and 1 more")
WAITING = replace(DONE, task=2, state="pending", job="7_2", detail=f"Priority{HOSTILE}", done=0, measured=0)


def test_all_tasks_are_printed_and_their_names_steer_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, with a line about all."""
    monkeypatch.delenv("COLUMNS", raising=False)
    show([DONE, RUNNING, WAITING])
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [["0", "done"], ["1", "running"], ["2", "pending"]]
    assert out.splitlines()[-1] == "3 tasks: 1 done, 1 pending, 1 running; 11 of 24 passes"
    assert steers(out) == []


def test_a_terminal_shows_what_runs_and_waits_first_and_a_log_the_line_about_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the table is gone, as that of a pass."""
    states = [DONE, WAITING, RUNNING]
    table, line = Group(*tasks_view(states, most=2)), summary(states)
    Plain().show(line, table)
    assert capsys.readouterr().err == f"{line}\n"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    for name in ("COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    with open(theirs, "w") as terminal:  # noqa: PTH123 (it is a descriptor)
        monkeypatch.setattr("sys.stderr", terminal)
        live = progress_for(quiet=False)
        live.show(line, table)
        live.close()
        live.say("after")
        written = ""
        while "after" not in written:
            written += os.read(ours, 65536).decode()
    os.close(ours)
    shown = [text for text in re.split(r"[\r\n]+", re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", written)) if text.strip()]
    assert [text.split()[:2] for text in shown[1:3]] == [["1", "running"], ["2", "pending"]]
    assert [text.strip() for text in shown[-2:]] == [line, "after"]
    assert steers("".join(shown)) == []
