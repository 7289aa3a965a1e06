"""What a person and a program see on standard error while a study is measured."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest
from seams.console import JsonLines, Plain, describe
from steering import HOSTILE, steers

from wattdock.console.progress import progress_for
from wattdock.study import events

BEAT = events.TokensSeen("pass 1/2", 1500, 3.0, {"GPU-1": 300.4, "GPU-2": None})


@pytest.mark.parametrize(
    ("event", "values"),
    [
        (events.Note("something"), ["something"]),
        (events.StudyStarted("s", None, 0, 6, 6, "1 min"), []),
        (events.StudyStarted("s", False, 0, 6, 6, "9 s"), ["begun as s", "6 of 6 passes", "9 s"]),
        (events.StudyStarted("s", True, 2, 1, 5, "9 s"), ["s: 2 experiments", "1 of 5 passes", "9 s"]),
        (events.Loading("tiny", "reading weights"), ["reading weights"]),
        (events.RestartStarted("batch 8", 1, 1, 4, 6, "9 s"), ["batch 8: begins", "4 of 6 passes", "9 s"]),
        (events.RestartStarted("batch 8", 2, 3, 4, 6, "9 s"), ["batch 8: restart 2 of 3", "4 of 6 passes"]),
        (events.PassFinished("pass 1/2", 40960, 20.5, None), ["pass 1/2: 40,960 tokens", "20.50 s"]),
        (events.PassFinished("pass 2/2", 9, 1.0, 0.6), ["pass 2/2: 9 tokens", "1.00 s", "60%"]),
        (events.ResultStored("batch 8", "ab", "ok", Path("results/x")), ["batch 8: ok", "results/x"]),
        (events.PassStarted("pass 1/2"), []),
        (events.ExperimentFailed("b", "load", "RunnerError", "m", None), ["b: failed", "load"]),
    ],
)
def test_each_event_has_a_line_with_its_values_or_none(event: events.Event, values: list[str]) -> None:
    """What a page would show and a person need not read stays out."""
    line = describe(event)
    assert bool(line) is bool(values)
    assert all(value in line for value in values)


def test_a_pipe_gets_a_line_of_a_pass_every_few_seconds_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each heartbeat would drown a log file."""
    plain = Plain()
    plain(events.RestartStarted("batch 8", 1, 1, 2, 2, "9 s", ("GPU-1",)))
    plain(events.PassStarted("pass 1/2"))
    capsys.readouterr()
    for _ in range(3):
        plain(BEAT)
    assert (
        capsys.readouterr().err
        == "  pass 1/2: 3 s, ≤ 1,500 tokens so far, 500 tokens/s, 300 W, 0.6008 J/token so far\n"
    )


def test_an_event_is_one_harmless_line_and_a_traceback_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The message of a model's own code must not pass for one of ours."""
    plain = Plain()
    plain(events.ExperimentFailed(HOSTILE, "load", "RunnerError", HOSTILE, None))
    plain(events.UnexpectedError("Traceback:\n  File\n\x1b[2J\n"))
    said = capsys.readouterr().err
    assert said.count("\n") == 4
    assert steers(said) == []


def test_a_terminal_shows_the_pass_below_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress, time left, tokens, power and J/token of the GPUs in use, a course of each; then it is gone."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    for name in ("COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    with open(theirs, "w") as terminal:  # noqa: PTH123 (it is a descriptor)
        monkeypatch.setattr("sys.stderr", terminal)
        live = progress_for(quiet=False)
        live(events.RestartStarted(HOSTILE, 1, 1, 2, 2, "9 s", ("GPU-1",)))
        live(events.PassStarted(f"pass 1/2{HOSTILE}", 6.0, 2000))
        for elapsed_s, watts in ((1.0, 100.0), (2.0, 300.0), (3.0, 200.0)):
            tokens = round(500 * elapsed_s)
            live(events.TokensSeen(f"pass 1/2{HOSTILE}", tokens, elapsed_s, {"GPU-1": watts, "GPU-2": 900.0}))
        live(events.PassFinished("pass 1/2", 3000, 6.0, None))
        live.close()
        written = ""
        while "3,000 tokens" not in written:
            written += os.read(ours, 65536).decode()
    os.close(ours)
    shown = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", written)) if line.strip()]
    # The lines of a first heartbeat, the second and the third, then what stays.
    last = " ".join(line.strip() for line in shown[-3:-1])
    assert last.endswith("50%, 3 s left, 3 s, ≤ 1,500 tokens so far, 500 tokens/s, 200 W, 0.4000 J/token so far"), shown
    assert shown[-1] == "  pass 1/2: 3,000 tokens in 6.00 s"
    assert steers("".join(shown)) == []
    assert max(map(len, shown)) <= 80


def test_json_lines_hold_every_event_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one strict JSON object."""
    progress = JsonLines()
    progress(BEAT)
    progress(events.ResultStored("batch 8", "ab", "ok", Path("results/x")))
    progress.say("a line")
    beat, stored, note = map(json.loads, capsys.readouterr().err.splitlines())
    assert (beat["event"], beat["output_tokens"], beat["watts"]) == (
        "TokensSeen",
        1500,
        {"GPU-1": 300.4, "GPU-2": None},
    )
    assert (stored["event"], stored["folder"]) == ("ResultStored", "results/x")
    assert (note["event"], note["text"]) == ("Note", "a line")


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Results are all that is printed then."""
    progress = progress_for(quiet=True)
    progress(BEAT)
    progress.say("a line")
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_line_for_what_is_over_and_none_within_a_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file keeps all lines; the same library in a terminal is no notebook."""
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for within, lines in (("", 1), ("pass 1/2", 2)):
        progress = progress_for(quiet=False)
        progress(events.PassStarted("pass 1/2"))
        progress(BEAT)
        progress(events.PassFinished("pass 1/2", 9, 1.0, None))
        said = capsys.readouterr().err
        assert (within in said, said.count("\n")) == (True, lines)
        vars(shell).clear()
