"""The fuzzers of `make fuzz`, for some inputs each; `WATTDOCK_FUZZ_INPUTS` says for how many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import TARGETS

INPUTS = os.environ.get("WATTDOCK_FUZZ_INPUTS", "10")


@pytest.mark.parametrize("target", TARGETS)
def test_what_others_may_have_written_is_read_or_refused_in_one_line(target: str) -> None:
    """No traceback, no hang, no more than 1 GB; the same inputs each time: what fails here failed before, too."""
    words = ("--target", target, "--inputs", INPUTS, "--minutes", "60", "--seed", "0")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run.py"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Of nothing, everything can be said.
    assert done.stdout.splitlines()[1].split()[2] != "0", done.stdout
