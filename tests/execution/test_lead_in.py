"""Restarts of one continuous run: its length, what of it counts, and restarts that are added; in virtual time."""

from __future__ import annotations

import json
from array import array
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import known
from scipy.stats import t as student
from seams.inputs import shape_config
from seams.study import RestartStarted

from wattdock.clock import NS_PER_S
from wattdock.inputs import load_prompts
from wattdock_proto.prompt_hash import hash_of

if TYPE_CHECKING:
    from pathlib import Path

    from seams.study import Event

    from wattdock.analysis import ExperimentResult
    from wattdock.records import PassRecord

GPU = "GPU-1"
STEP_S = 0.1


def continuous(tmp_path: Path, **workload: Any) -> tuple[ExperimentResult, PassRecord]:
    """Return the result and the only pass of an experiment that needs a lead-in of 3 s and a window of 6 s at least."""
    machine = VirtualMachine(tmp_path, power={GPU: lambda _: 300.0})
    prompts = {"source": "synthetic", "input_tokens": 30, "count": 7}
    config = experiment(
        "one run",
        workload={"prompts": prompts, "ignore_eos": True, "min_duration_s": 6.0, **workload},
        warmup={"profile": "lead-in", "lead_in_s": 3.0},
        repeats={"passes": 1},
    )
    [stored] = machine.run(study(config)).results
    assert stored.result.error is None, stored.result.error
    [restart] = stored.restarts()
    [run_pass] = restart.passes
    return stored.result, run_pass


def window_s(result: ExperimentResult, run_pass: PassRecord) -> tuple[float, float]:
    """Return where the headline's window begins and ends, s after the first request."""
    windows = known(known(result.energy).windows)
    [figure] = windows.of_headline()
    assert windows.headline == "steady_state", [each.reason for each in windows.passes]
    first_ns = min(request.submitted_ns for request in run_pass.requests)
    return (known(figure.start_ns) - first_ns) / NS_PER_S, (known(figure.end_ns) - first_ns) / NS_PER_S


@pytest.mark.parametrize("tokens", [5, 20, 64])
def test_a_closed_loop_lasts_as_long_as_its_requests_ask_for(tmp_path: Path, tokens: int) -> None:
    """Two mean lifetimes do not count, five do, or the seconds that were set; at no time does the engine drain."""
    lifetime_s = tokens * STEP_S
    work = {"arrival": "closed", "batch_size": 4, "staggered_start": True, "max_output_tokens": tokens}
    result, run_pass = continuous(tmp_path, **work)
    lead_in_s, needed_s = max(3.0, 2 * lifetime_s), max(6.0, 5 * lifetime_s)
    begin_s, end_s = window_s(result, run_pass)
    # The mean of all requests counts those of the staggered start, which are shorter.
    assert begin_s == pytest.approx(lead_in_s, rel=0.05)
    # A lifetime to balance the start in, and one in which no request may have come.
    assert needed_s * 0.97 <= end_s - begin_s <= needed_s + 2.5 * lifetime_s
    ends, begun = (
        sorted(getattr(each, name) for each in run_pass.requests) for name in ("finished_ns", "submitted_ns")
    )
    assert begun[4:] == ends[:-4]
    assert known(result.energy).mean_power_w == pytest.approx(300, rel=0.01)
    # Four tokens a step at 300 W.
    assert known(result.budget).measured == pytest.approx(300 * STEP_S / 4, rel=0.01)


@pytest.mark.parametrize(("arrival", "batch_size"), [("batch", 4), ("single", 1)])
def test_static_batches_count_as_whole_rounds_behind_the_lead_in(tmp_path: Path, arrival: str, batch_size: int) -> None:
    """Rounds of 2 s: two before the window, as many whole ones in it as 10 s hold, and four where they may lie off."""
    result, run_pass = continuous(tmp_path, arrival=arrival, batch_size=batch_size, max_output_tokens=20)
    begin_s, end_s = window_s(result, run_pass)
    assert begin_s == pytest.approx(4)
    assert end_s - begin_s == pytest.approx(2 * round((end_s - begin_s) / 2))
    assert 10 <= end_s - begin_s <= 10 + 4 * 2
    assert end_s == pytest.approx(run_pass.span.duration_s)
    assert known(result.budget).measured == pytest.approx(300 * STEP_S / batch_size, rel=0.01)


@pytest.mark.parametrize("tokens", [10, 25])
def test_an_open_loop_counts_from_the_lead_in_to_the_last_arrival(tmp_path: Path, tokens: int) -> None:
    """Arrivals, eight a second here, go on through lead-in and window, and end there."""
    lines = ({"arrival_s": i / 8, "input_tokens": 9, "output_tokens": tokens} for i in range(50))
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    work = {"arrival": "trace", "prompts": str(tmp_path / "trace.jsonl"), "batch_size": 64, "min_duration_s": 9.0}
    result, run_pass = continuous(tmp_path, **work)
    lifetime_s = tokens * STEP_S
    begin_s, end_s = window_s(result, run_pass)
    # A request that comes in the middle of a step waits for its end; a balanced start comes within a lifetime.
    assert max(3, 2 * lifetime_s) <= begin_s <= max(3, 2 * (lifetime_s + STEP_S)) + lifetime_s + STEP_S
    needed_s = max(9, 5 * lifetime_s)
    assert needed_s <= end_s - begin_s <= needed_s + 2.5 * lifetime_s
    last_ns = max(known(each.intended_ns) for each in run_pass.requests)
    assert (last_ns - run_pass.span.start_ns) / NS_PER_S == pytest.approx(end_s, abs=2 * STEP_S)
    assert known(result.budget).measured == pytest.approx(300 / 8 / tokens, rel=0.02)


def test_the_prompts_of_lead_in_and_window_are_one_stream(tmp_path: Path) -> None:
    """The list of the only pass, over and over in its order; nothing is sent beside it, as a warm-up would be."""
    result, run_pass = continuous(tmp_path, arrival="closed", batch_size=3, max_output_tokens=10)
    drawn = load_prompts(result.config, pass_index=0, vocab_size=shape_config("tiny-llama")["vocab_size"])
    hashes = [hash_of(item) for item in drawn.items if isinstance(item, array)]
    sent = sorted(run_pass.requests, key=lambda each: each.index)
    assert [each.prompt_hash for each in sent] == [hashes[each.index % 7] for each in sent]
    assert [each.index for each in sent] == list(range(len(sent)))
    assert [span.name for span in result.spans] == ["idle-empty", "launch", "load", "pass", "window"]
    [mix] = known(result.procedure).mix
    assert mix.mismatches == {}


# What each restart draws, in watts, one after the other.
LEVELS_W = (300.0, 306.0, 300.0, 303.0, 303.0, 303.0, 303.0, 303.0)


def expected_u(restarts: int, timing: float) -> float:
    """Return half of the 95 % interval: restarts, a room of 1.5 °C at 0.06 ± 0.03 %/°C, 0.05 % of the start, timing.

    Source: GUM, G.4: Student's t of the effective degrees of freedom; never less than restarts give alone.
    """
    of_restarts = float(np.std(np.log(LEVELS_W[:restarts]), ddof=1)) / sqrt(restarts)
    combined = hypot(of_restarts, 0.06e-2 * 1.5, 0.03e-2 * 1.5, 0.05e-2, timing)
    freedom = (restarts - 1) * (combined / of_restarts) ** 4
    alone = float(student.ppf(0.975, restarts - 1)) * of_restarts
    return max(float(student.ppf(0.975, freedom)) * combined, alone)


@pytest.mark.parametrize(("restarts", "is_known"), [(3, False), (8, True)])
def test_the_interval_holds_what_restarts_differ_by(tmp_path: Path, restarts: int, *, is_known: bool) -> None:
    """What may be published is an interval of 2 %."""
    level_w = [LEVELS_W[0]]

    def consume(event: Event) -> None:
        if isinstance(event, RestartStarted):
            level_w[0] = LEVELS_W[event.restart - 1]

    machine = VirtualMachine(tmp_path, {GPU: lambda _: level_w[0]})
    asked = experiment(
        "a",
        workload={"arrival": "closed", "batch_size": 4, "staggered_start": True, "min_duration_s": 40},
        warmup={"profile": "lead-in"},
        repeats={"restarts": restarts, "passes": 1},
    )
    [stored] = machine.run(study(asked), on=consume).results
    assert (stored.result.status, machine.launches) == ("ok", restarts)
    budget = known(stored.result.budget)
    timing = known(budget.entry("timing")).standard_uncertainty
    assert budget.expanded == pytest.approx(expected_u(restarts, timing), rel=0.01)
    assert budget.per_restart == pytest.approx([power_w * STEP_S / 4 for power_w in LEVELS_W[:restarts]], rel=1e-4)
    [check] = [check for check in known(stored.result.audit).checks if check.name == "uncertainty"]
    assert (check.status == "pass") == is_known
