"""Whole studies of people's workloads in virtual time: lengths that vary, and arrivals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import known

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.records import PassRecord
    from wattdock.store import StoredResult

GPU = "GPU-1"


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
    assert known(stored.result.energy).measured_per_output_token_j
    # In a table of results a distribution counts as its mean.
    assert stored.row.max_output_tokens == pytest.approx(40, abs=3)


def test_a_trace_is_served_at_its_instants_in_its_order(tmp_path: Path) -> None:
    """Lengths and arrivals belong together; the passes differ in their ids alone."""
    rows = [(0.0, 8, 5), (1.0, 9, 30), (1.05, 10, 4), (4.0, 11, 6)]
    trace = tmp_path / "trace.jsonl"
    lines = ({"arrival_s": at_s, "input_tokens": tokens, "output_tokens": out} for at_s, tokens, out in rows)
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    work = {"arrival": "trace", "prompts": str(trace), "batch_size": 8, "min_requests": 4, "trace_speed": 0.5}
    stored, passes = measured(tmp_path, workload=work)
    for each in passes:
        intended_s = [((request.intended_ns or 0) - each.span.start_ns) / NS_PER_S for request in each.requests]
        assert intended_s == pytest.approx([0, 2, 2.1, 8])
        assert [request.output_tokens for request in each.requests] == [5, 30, 4, 6]
        assert each.arrivals_due == 4
    speed = known(stored.result.performance)
    # Four in the eight seconds until the last one came.
    assert speed.offered_rate_per_s == pytest.approx(0.5, rel=0.02)
    assert speed.arrivals_left_out is None


def test_bursty_arrivals_are_offered_at_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    """Gamma arrivals at 5/s for 100 s, of which an engine with room for few serves what it can."""
    work = {"arrival": "gamma", "rate_per_s": 5, "burstiness": 0.5, "min_duration_s": 100, "batch_size": 32}
    stored, passes = measured(tmp_path, workload=work | {"max_output_tokens": 10})
    speed = known(stored.result.performance)
    assert speed.offered_rate_per_s == pytest.approx(5, rel=0.15)
    assert speed.arrivals_left_out is None
    assert [each.prompt_repeats for each in passes] == [0, 0]
    slow, _ = measured(tmp_path / "slow", workload=work | {"max_output_tokens": 200, "batch_size": 8})
    assert str(known(slow.result.performance).arrivals_left_out).startswith("only ")


@pytest.mark.parametrize(("caches", "status"), [(True, "pass"), (False, "fail")])
def test_a_prefix_cache_that_serves_what_conversations_declare_passes_the_audit(
    tmp_path: Path, caches: bool, status: str
) -> None:
    """The virtual engine's cache holds whole blocks; one that serves nothing, though switched on, fails."""
    prompts = {"turns": 4, "shared_prefix_tokens": 200, "input_tokens": 100, "count": 64}
    machine = VirtualMachine(tmp_path, power={GPU: lambda _: 300.0}, caches=caches)
    config = experiment(
        "talks",
        workload={"arrival": "closed", "batch_size": 4, "prompts": prompts, "max_output_tokens": 20},
        fake={"enable_prefix_caching": True},
    )
    [stored] = machine.run(study(config)).results
    speed, audit = stored.result.performance, stored.result.audit
    assert speed
    assert audit
    # Sixteen conversations of 300 + 420 + 540 + 660 tokens, of which the first's prefix is nowhere yet.
    declared = (16 * (200 + 300 + 420 + 540) - 200) / (16 * 1920)
    assert (speed.cacheable_prompt_tokens or 0) / (speed.prompt_tokens or 1) == pytest.approx(declared)
    [check] = [check for check in audit.checks if check.name == "cached prompts"]
    assert check.status == status
