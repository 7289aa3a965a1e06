"""The benchmark command itself: what it keeps, and how it ends where a claim is not shown."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from bench import unmet
from contract.runner_process import PYTORCH_PYTHON, ROOT
from paired import Claim

if TYPE_CHECKING:
    from pathlib import Path


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/bench.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_was_measured_must_hold() -> None:
    """Unresolved, failed, cut short and not measured are all no pass."""
    steady = [0.0, 0.0001, -0.0001]
    claims = {
        "good": [Claim("good", 0.99, 3, steady)],
        "half": [Claim("good", 0.99, 3, steady), Claim("scattered", 0.99, 3, [0.5, -0.5, 0.1])],
        "slow": [Claim("slow", 0.99, 3, [value - 0.1 for value in steady])],
        "short": [Claim("short", 0.99, 4, steady)],
        "absent": [],
    }
    left = ["half (holds, unresolved)", "slow (fails)", "short (unresolved)", "absent (not measured)"]
    assert unmet(claims) == left


def test_a_planted_cost_must_be_found() -> None:
    """A comparison that lets it pass is no good."""
    steady = [0.0, 0.0001, -0.0001]
    found = {"pytorch-planted": [Claim("planted", 0.995, 3, [value - 0.01 for value in steady])]}
    missed = {"pytorch-planted": [Claim("planted", 0.995, 3, steady)]}
    assert unmet(found) == []
    assert unmet(missed) == ["pytorch-planted (holds)"]


def test_a_name_that_means_nothing_is_refused() -> None:
    """Before anything is measured."""
    done = bench("--only", "nvml")
    assert done.returncode == 2
    assert "'nvml'" in done.stderr


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_a_comparison_is_kept_with_its_verdict_and_the_exit_code_follows_it(tmp_path: Path) -> None:
    """Two short quadruples on a real engine; whatever this machine says, file and code agree."""
    kept = tmp_path / "figures.md"
    arguments = ("--cpu", "--only", "energy,pytorch", "--block-s", "0.1", "--quadruples", "2")
    done = bench(*arguments, "--output", str(kept))
    # Blocks this short may end up shorter still.
    verdict = r"\*\*(\w+)\*\*(?:: a block took [\d.]+ s, less than 0\.1)?"
    seen = rf"^\| runner / bare loop, PyTorch \| 2 \| .* \| 0\.995 \| .* \| {verdict} \|$"
    row = re.search(seen, done.stdout, re.M)
    assert row, done.stdout + done.stderr
    assert done.returncode == (0 if row[1] == "holds" else 9)
    assert (f"pytorch ({row[1]})" in done.stderr) is (row[1] != "holds")
    assert re.search(r"^`python benchmarks/bench\.py --cpu --only .*` at revision \S+ on ", done.stdout, re.M)
    assert kept.read_text(encoding="utf-8") == done.stdout
    assert "1 of 2" in done.stderr
