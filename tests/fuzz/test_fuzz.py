"""The fuzzers of `make fuzz`, for some inputs each, the same each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import TARGETS

INPUTS = "25"


@pytest.fixture(scope="module")
def said() -> str:
    """What the fuzzers say of all targets, one after the other, each in a process of its own."""
    words = ("--inputs", INPUTS, "--minutes", "60", "--seed", "0")
    run = Path(__file__).with_name("run.py")
    done = subprocess.run([sys.executable, run, *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_what_others_may_have_written_is_read_or_refused_in_one_line(said: str, target: str) -> None:
    """No traceback, no hang, no more than 1 GB; the same inputs each time: what fails here failed before, too."""
    lines = [line.split() for line in said.splitlines() if line.startswith(f"{target} ")]
    assert len(lines) == 1, said
    _, _, inputs, *_, findings = lines[0]
    assert findings == "0", said
    # Of nothing, everything can be said.
    assert inputs != "0", said
