"""What a process of a runner does so that it does not outlive who started it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "import sys; from wattdock_runner.process import die_with_parent; die_with_parent(int(sys.argv[1]))"


@pytest.mark.parametrize(("another", "code"), [(0, 0), (1, 1)])
def test_a_process_that_lost_its_parent_before_it_could_be_tied_to_it_ends(another: int, code: int) -> None:
    """The kernel tells of no end that was before."""
    parent = os.getpid() + another
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(parent)], env=path, check=False).returncode == code
