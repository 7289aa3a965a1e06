"""Where output goes: terminals, pipes, readers that leave, disks that are full; and Ctrl-C while watching."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import SMALL, WATTDOCK, one_line
from make.stored import store_golden
from steering import HOSTILE, steers
from unprivileged import UID, give_to_user, run_as_user

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from command import Command

# How a terminal is told to print in colour, and to erase lines, which are a pass's progress.
CODES = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]|\r")
# A model that is known without a hub.
MODEL = "llama-3.1-70b"
# Every command that writes a file which a person names.
WRITE = (
    "report RESULT -o FOLDER/x.html",
    "plot table RESULT -o FOLDER/x.md",
    "form model-card RESULT -o FOLDER/x.md",
    "results export --csv FOLDER/x.csv",
    "results export --parquet FOLDER/x.parquet",
    "bundle create RESULT -o FOLDER/x.tar",
    "pair FOLDER/x.pem",
)
# Long enough for a machine that has other things to do.
PATIENT_S = 240


def on_terminal(wattdock: Command, *words: str, columns: int) -> str:
    """Return what the command prints on a terminal of so many columns, without its codes."""
    ours, theirs = pty.openpty()
    if os.getuid() == 0:
        os.fchown(theirs, UID, UID)
    env = {"COLUMNS": str(columns), "TERM": "xterm"}
    with wattdock.start(*words, env=env, stdout=theirs, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        read = bytearray()
        while piece := _read(ours):
            read += piece
        assert process.wait() == 0
    os.close(ours)
    # A terminal's own line ends.
    return CODES.sub("", read.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # How Linux says that the other end is closed.
        return b""


def test_a_pipe_gets_whole_lines_and_a_narrow_terminal_every_figure(wattdock: Command) -> None:
    """Of what a model takes on each known GPU, the widest table that needs no measurement."""
    piped = wattdock("estimate", MODEL).stdout
    [line] = [line for line in piped.splitlines() if line.startswith("A100-PCIE-40GB")]
    assert "fits" in line.split()
    shown = on_terminal(wattdock, "estimate", MODEL, columns=60)
    assert "…" not in shown
    assert all(figure in shown for figure in line.split()[1:3])


def test_no_name_steers_a_real_terminal(wattdock: Command) -> None:
    """While it is measured, as a result, and as a file that is written to the terminal itself."""
    experiment = {"name": HOSTILE, "backend": "fake", "model": "shape:tiny-llama", "repeats": {"passes": 1}}
    wattdock.write(json.dumps({"name": HOSTILE, "experiments": [experiment]}))
    for words in (("run", "x.yaml"), ("results", "list")):
        shown = on_terminal(wattdock, *words, columns=300)
        assert "owned" in shown, words
        assert steers(shown) == [], words
    # A cell of CSV may hold line feeds.
    shown = on_terminal(wattdock, "results", "export", "--csv", "/dev/stdout", columns=300).replace("\n", " ")
    assert "owned" in shown
    assert steers(shown) == []


def test_a_reader_that_leaves_ends_a_command_by_sigpipe_and_silently(wattdock: Command) -> None:
    """As `wattdock estimate MODEL | head` in a shell, which says 141; text and JSON alike."""
    for words in (("estimate", MODEL), ("estimate", MODEL, "--json"), ("--help",)):
        assert unread(wattdock, *words, stderr=subprocess.PIPE) == (-signal.SIGPIPE, ""), words


def unread(wattdock: Command, *words: str, stderr: int | None = None) -> tuple[int, str | None]:
    """Run a command whose standard output, and error stream where none is named, nobody reads."""
    ours, theirs = os.pipe()
    os.close(ours)
    with wattdock.start(*words, stdout=theirs, stderr=stderr or theirs) as process:
        os.close(theirs)
        _, err = process.communicate(timeout=PATIENT_S)
    return process.returncode, err


def test_readers_that_leave_cost_no_exit_code_and_no_measurement(wattdock: Command) -> None:
    """Progress and table both went to `head`: the result is stored before the end by SIGPIPE."""
    assert unread(wattdock, "plan", "missing.yaml") == (2, None)
    assert unread(wattdock, "run", *SMALL) == (-signal.SIGPIPE, None)
    [result] = wattdock.results()
    assert result["status"] == "ok"


@pytest.mark.parametrize("folder", ["closed", "barred"])
def test_a_file_that_cannot_be_written_has_one_exit_code_whatever_writes_it(wattdock: Command, folder: str) -> None:
    """In a folder that others may read, or not even enter: code 7, one line, and all results as they were."""
    [result] = store_golden(wattdock.folder / "results", "h200-pytorch-32")
    (wattdock.folder / folder).mkdir(mode=0o555 if folder == "closed" else 0o700)
    for words in WRITE:
        done = wattdock(*words.replace("RESULT", result.name).replace("FOLDER", folder).split())
        one_line(done, ExitCode.STORE, f"{folder}/x")
    assert [path.name for path in (wattdock.folder / folder).iterdir()] == []
    assert [path.name for path in (wattdock.folder / "results").iterdir()] == [result.name]


def test_output_that_has_no_room_or_no_place_is_no_traceback(wattdock: Command) -> None:
    """A full disk is one line and code 7; closed streams are as good as nowhere."""
    with Path("/dev/full").open("w") as full:
        with wattdock.start("estimate", MODEL, stdout=full, stderr=subprocess.PIPE) as process:
            _, err = process.communicate(timeout=PATIENT_S)
        assert process.returncode == 7
        assert err == "wattdock: cannot write: No space left on device; free some space, or write elsewhere\n"
    script = wattdock.folder / "closed.sh"
    script.write_text('exec "$@" >&- 2>&-\n')
    give_to_user(script)
    closed = run_as_user(["/bin/sh", script, WATTDOCK, "estimate", MODEL], env=wattdock.env(), cwd=wattdock.folder)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")
