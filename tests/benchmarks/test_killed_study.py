"""The study that is killed and resumed: its check sees what it is there for, and passes where nothing is wrong."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

from contract.runner_process import ROOT
from kept_passes import Kept, PassShape, RowShape, lost, shape_differences
from killed_study import moments

if TYPE_CHECKING:
    from pathlib import Path

KEY = ("e" * 64, 0, 1)
PASS = Kept(1, 2, ("a", "b"))
ROW = RowShape("ok", {(0, 0): PassShape(2, 8, 10), (0, 1): PassShape(2, 8, 10)})
FAKE = """\
defaults:
  backend: fake
  model: 'shape:tiny-llama'
  runner_python: {python}
  workload: {{max_output_tokens: 10}}
  repeats: {{restarts: 2, passes: 2}}
  fake: {{step_s: 0.02}}
sweep: {{workload.batch_size: [1, 2]}}
"""


def test_a_pass_that_is_gone_or_measured_anew_is_lost() -> None:
    """The same pass of the same restart with other instants or other tokens is another measurement."""
    assert lost({KEY: PASS}, {KEY: PASS}) == []
    assert lost({KEY: PASS}, {}) == ["experiment eeeeeeee, restart 1, pass 2 is gone"]
    for changed in (dataclasses.replace(PASS, end_ns=3), dataclasses.replace(PASS, requests=("a", "c"))):
        assert lost({KEY: PASS}, {KEY: changed}) == ["experiment eeeeeeee, restart 1, pass 2 has changed"]


def test_tables_that_differ_in_a_row_a_pass_or_a_count_are_not_equal_in_shape() -> None:
    """Each of them is named."""
    fewer = RowShape("ok", {(0, 0): PassShape(2, 8, 10)})
    tokens = RowShape("ok", {**ROW.passes, (0, 1): PassShape(2, 8, 11)})
    failed = dataclasses.replace(ROW, status="failed")
    assert shape_differences({"e": ROW}, {"e": ROW}) == []
    for other in ({}, {"e": fewer}, {"e": tokens}, {"e": failed}):
        assert len(shape_differences({"e": ROW}, other)) == 1


def test_most_kills_come_after_passes_were_kept() -> None:
    """One in six falls into a launch or load."""
    for seed in range(20):
        planned = moments(random.Random(seed), 12)
        assert sum(one.passes == 0 for one in planned) == 2


def test_a_study_is_killed_resumed_and_found_whole(tmp_path: Path) -> None:
    """The command itself, on the fake backend: two kills, then the table."""
    (tmp_path / "fake.yaml").write_text(FAKE.format(python=sys.executable))
    command: list[str | Path] = [sys.executable, ROOT / "benchmarks/killed_study.py", "--kills", "2", "--seed", "3"]
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "WATTDOCK_HOME": str(tmp_path / "home"),
        "WATTDOCK_LEASES": str(tmp_path / "leases"),
        "WATTDOCK_RUNNERS": str(ROOT / "tests/runners"),
    }
    options: list[str | Path] = ["--study", tmp_path / "fake.yaml", "--folder", tmp_path / "out"]
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing measured twice, equal in shape" in done.stdout
    assert "2 rows, 8 passes, 24 requests, 240 output tokens" in done.stdout
