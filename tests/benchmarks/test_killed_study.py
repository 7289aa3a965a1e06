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
from killed_study import compare, moments, seen_dead

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


def test_kills_are_spread_over_all_passes_and_fall_into_launches_and_stores_too() -> None:
    """One in six during a launch or load; two while a row is stored, the last kill always."""
    reached = set()
    for seed in range(200):
        planned = moments(random.Random(seed), 12, passes=48)
        kept = [one.passes for one in planned if one.passes is not None]
        assert kept == sorted(set(kept))
        assert len(kept) == 10
        assert [one.storing for one in planned].count(True) == 2
        assert planned[-1].storing
        reached |= set(kept)
    assert reached == set(range(48))


def test_a_study_is_killed_resumed_and_found_whole_and_what_is_tampered_with_is_seen(tmp_path: Path) -> None:
    """The command itself, on the fake backend: every run is killed before its end; then each defect by itself."""
    done = killed(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing measured twice, on and with the same, equal in shape" in done.stdout
    assert "2 rows, 8 passes, 24 requests, 240 output tokens" in done.stdout
    assert "; 3 of 3 kills, " in done.stdout
    assert "had ended" not in done.stdout
    one, other = tmp_path / "out/killed", tmp_path / "out/whole"
    whole = seen_dead(one, 0, ran_s=1.0, doing="", ended=False)
    assert compare([whole], one, other) == []
    assert compare([dataclasses.replace(whole, ended=True)], one, other) == ["kill 1: the run had ended before"]
    [journal] = one.glob("studies/*/journal.jsonl")
    row = sorted(one.glob("2*/result.json"))[0]
    for file, before, after, expected in (
        (journal, '"restart": 1, "pass": 1', '"restart": 1, "pass": 7', "stands in the journal and nowhere else"),
        (row, '"changes": []', '"changes": [{"name": "driver", "restarts": {"1": [0], "2": [1]}}]', "driver: 1, 2"),
        (row, '"changes": []', '"changes": null', "was not recorded"),
    ):
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after, 1))
        assert any(expected in problem for problem in compare([whole], one, other))
        file.write_text(text)
    row.unlink()
    assert any(problem.endswith("is gone") for problem in compare([whole], one, other))


def killed(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "fake.yaml").write_text(FAKE.format(python=sys.executable))
    command: list[str | Path] = [sys.executable, ROOT / "benchmarks/killed_study.py", "--kills", "3", "--seed", "4"]
    env = {
        **os.environ,
        "HOME": str(folder),
        "WATTDOCK_HOME": str(folder / "home"),
        "WATTDOCK_LEASES": str(folder / "leases"),
        "WATTDOCK_RUNNERS": str(ROOT / "tests/runners"),
    }
    options: list[str | Path] = ["--study", folder / "fake.yaml", "--folder", folder / "out"]
    return subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=False, timeout=300)
