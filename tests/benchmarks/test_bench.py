"""The benchmark command itself: what it keeps, and how it ends where a claim is not shown."""

from __future__ import annotations

import subprocess
import sys

from bench import unmet
from contract.runner_process import ROOT
from paired import Claim


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
