"""Whole studies of people's workloads in virtual time: lengths that vary, and arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from execution.virtual import VirtualMachine, experiment, study

from wattdock.store.table import SUMMARY, Row

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.records import PassRecord
    from wattdock.store import StoredResult

GPU = "GPU-1"


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))


def measured(tmp_path: Path, **settings: Any) -> tuple[StoredResult, list[PassRecord]]:
    """Return the result and the measured passes of an experiment with other settings than `BASE`."""
    machine = VirtualMachine(tmp_path, power={GPU: lambda _: 300.0})
    [stored] = machine.run(study(experiment("people", **settings))).results
    assert stored.result.error is None, stored.result.error
    return stored, [each for restart in stored.restarts() for each in restart.passes]


def test_a_closed_loop_of_lognormal_lengths_stays_full_and_serves_what_was_drawn(tmp_path: Path) -> None:
    """Answers end when their own limits say so, and each is replaced at once."""
    lengths = {"distribution": "lognormal", "mean": 40, "std": 30, "max": 200}
    work = {"arrival": "closed", "batch_size": 8, "min_requests": 200, "max_output_tokens": lengths}
    stored, passes = measured(tmp_path, workload=work | {"staggered_start": True})
    tokens = [[request.output_tokens or 0 for request in each.requests] for each in passes]
    assert tokens[0] != tokens[1]
    assert np.mean(tokens) == pytest.approx(40, abs=5)
    ends = sorted(request.finished_ns or 0 for request in passes[0].requests)
    begun = sorted(request.submitted_ns for request in passes[0].requests)
    assert begun[8:] == ends[:-8]
    assert stored.result.energy
    assert stored.result.energy.energy_per_output_token_j
    # In a table of results a distribution counts as its mean.
    assert Row.of(stored).max_output_tokens == pytest.approx(40, abs=3)
    read = SUMMARY.model_validate(stored.result.model_dump(mode="json", by_alias=True))
    assert read.config.workload.max_output_tokens == stored.result.config.workload.max_output_tokens
