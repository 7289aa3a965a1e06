"""The fuzzers of `make fuzz`, for some inputs each, the same each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import TARGETS

INPUTS = "25"


@pytest.mark.parametrize("target", TARGETS)
def test_what_others_may_have_written_is_read_or_refused_in_one_line(target: str) -> None:
    """No traceback, no hang, no more than 1 GB; the same inputs each time: what fails here failed before, too."""
    words = ("--target", target, "--inputs", INPUTS, "--seed", "0")
    run = Path(__file__).with_name("run.py")
    done = subprocess.run([sys.executable, run, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, f"{target} seed 0: {INPUTS} inputs" in done.stdout) == (0, True), done.stdout + done.stderr
