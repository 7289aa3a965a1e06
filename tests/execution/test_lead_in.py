"""Restarts of one continuous run: its length, what of it counts, and restarts that are added; in virtual time."""

from __future__ import annotations

import json
import os
import signal
from array import array
from collections import Counter
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import known, passes, statuses
from make.snapshot import Snapshot
from refused import raises
from scipy.stats import t as student
from seams.inputs import shape_config
from seams.study import Note, PassFinished, RestartStarted, TokensSeen

from wattdock.clock import NS_PER_S
from wattdock.errors import StoreError
from wattdock.inputs import load_prompts
from wattdock_runner.checkpoint import hash_of

if TYPE_CHECKING:
    from pathlib import Path

    from seams.study import Event

    from wattdock.analysis import ExperimentResult
    from wattdock.config import Study
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
    assert needed_s * 0.97 <= end_s - begin_s <= needed_s + 2 * lifetime_s
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
    # A request that comes in the middle of a step waits for its end.
    assert max(3, 2 * lifetime_s) <= begin_s <= max(3, 2 * (lifetime_s + STEP_S))
    needed_s = max(9, 5 * lifetime_s)
    assert needed_s <= end_s - begin_s <= 1.3 * needed_s
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
    assert [span.name for span in result.spans] == ["idle-empty", "launch", "load", "pass"]
    [mix] = known(result.procedure).mix
    assert mix.mismatches == {}


# What each restart draws, in watts, one after the other.
LEVELS_W = (300.0, 306.0, 300.0, 303.0, 303.0, 303.0, 303.0, 303.0)


def expected_u(restarts: int, timing: float) -> float:
    """Return half of the 95 % interval: restarts, a room of 1.5 °C at 0.06 ± 0.03 %/°C, 0.05 % of the start, timing.

    The first three restarts scatter most, and with two degrees of freedom.

    Source: GUM, G.4: Student's t of the effective degrees of freedom.
    """
    of_restarts = float(np.std(np.log(LEVELS_W[:3]), ddof=1)) / sqrt(restarts)
    combined = hypot(of_restarts, 0.06e-2 * 1.5, 0.03e-2 * 1.5, 0.05e-2, timing)
    freedom = 2 * (combined / of_restarts) ** 4
    return float(student.ppf(0.975, freedom)) * combined


def varying(folder: Path) -> tuple[VirtualMachine, Any]:
    """Return a machine whose power depends on the restart, and what has to be told of its events."""
    level_w = [LEVELS_W[0]]

    def consume(event: Event) -> None:
        if isinstance(event, RestartStarted):
            level_w[0] = LEVELS_W[event.restart - 1]

    return VirtualMachine(folder, {GPU: lambda _: level_w[0]}), consume


def asking(until: Any, *, most: int = 8, passes: int = 1) -> Study:
    """Return a study of three restarts, and of as many more as their interval asks for."""
    return study(
        experiment(
            "a",
            workload={"arrival": "closed", "batch_size": 4, "staggered_start": True, "min_duration_s": 40},
            warmup={"profile": "lead-in"},
            repeats={"restarts": 3, "passes": passes, "until": until, "most": most},
        )
    )


@pytest.mark.parametrize(
    ("until", "most", "restarts", "is_known"),
    [
        # Half of the interval of three is 2.73 %: 1.1 × 3 × (2.73 ÷ 2.5)² = 3.9, at 2.1 % 5.6, at 1.8 % 7.6.
        (None, 8, 3, False),
        ("4 %", 8, 3, False),
        ("2.5 %", 8, 4, False),
        ("2.1 %", 8, 6, True),
        (0.018, 8, 8, True),
        ("0.9 %", 8, 8, True),
        ("0.9 %", 5, 5, False),
        ("1.2 %", 3, 3, False),
    ],
)
def test_the_first_restarts_decide_how_many_are_added(
    tmp_path: Path, until: Any, most: int, restarts: int, *, is_known: bool
) -> None:
    """No more than `most`; what may be published is an interval of 2 %, whatever was aimed at."""
    machine, consume = varying(tmp_path)
    [stored] = machine.run(asking(until, most=most), on=consume).results
    assert (stored.result.status, machine.launches) == ("ok", restarts)
    budget = known(stored.result.budget)
    timing = known(budget.entry("timing")).standard_uncertainty
    assert budget.expanded == pytest.approx(expected_u(restarts, timing), rel=0.01)
    assert budget.per_restart == pytest.approx([power_w * STEP_S / 4 for power_w in LEVELS_W[:restarts]], rel=1e-4)
    [check] = [check for check in known(stored.result.audit).checks if check.name == "uncertainty"]
    assert (check.status == "pass") == is_known
    told = [
        (event.restart, event.restarts, event.passes_left, event.passes)
        for event in machine.emitted
        if isinstance(event, RestartStarted)
    ]
    wanted = [3, 3, 3, *[restarts] * (restarts - 3)]
    assert told == [(at + 1, number, number - at, number) for at, number in enumerate(wanted)]
    assert len(list(machine.results.glob("2*"))) == 1


@pytest.mark.parametrize(("passes_each", "number"), [(1, 3), (1, 4), (1, 5), (1, 6), (2, 7), (2, 8), (2, 10)])
def test_a_study_killed_while_restarts_are_added_goes_on_to_the_same_figure(
    tmp_path: Path, passes_each: int, number: int
) -> None:
    """It chooses the same number: a restart that is half measured is completed, none comes twice."""
    machine, consume = varying(tmp_path / "whole")
    killed = VirtualMachine(tmp_path / "killed", machine.power, clock=machine.clock)
    planned, kill = asking("0.9 %", passes=passes_each), Snapshot(machine, PassFinished, number, killed.folder)

    def both(event: Event) -> None:
        consume(event)
        kill(event)

    whole = machine.run(planned, on=both)
    resumed = killed.run(planned, resume=True, on=consume)
    assert statuses(resumed.results) == [("a", "ok")]
    assert passes(resumed.results) == passes(whole.results)
    assert set(passes(resumed.results).values()) == {1}
    per_restart = [known(run.results[0].result.budget).per_restart for run in (resumed, whole)]
    assert per_restart[0] == pytest.approx(per_restart[1], rel=1e-3)


def test_an_interrupted_run_adds_its_restarts_when_it_is_resumed(tmp_path: Path) -> None:
    """The restart that was cut short is measured again, and then those that the first ones asked for."""
    machine, consume = varying(tmp_path)

    def stopping(event: Event) -> None:
        consume(event)
        begun = Counter(type(each) for each in machine.emitted)[RestartStarted]
        if begun == 5 and isinstance(event, TokensSeen):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        machine.run(asking("0.9 %"), on=stopping)
    assert statuses(machine.last.results) == [("a", "interrupted")]
    assert len(passes(machine.last.results)) == 4
    resumed = machine.run(asking("0.9 %"), on=consume, resume=True)
    assert statuses(resumed.results) == [("a", "ok")]
    assert passes(resumed.results) == {("a", restart, 0): 1 for restart in range(8)}


def test_records_that_cannot_be_read_add_no_restart_and_cost_no_other_experiment(tmp_path: Path) -> None:
    """The run says so, and ends with the error, once everything else is measured and stored."""
    machine, consume = varying(tmp_path)
    [first] = asking("0.9 %").experiments
    second = experiment("b", workload={"batch_size": 1})

    def spoil(event: Event) -> None:
        consume(event)
        if isinstance(event, RestartStarted) and (event.experiment, event.restart) == ("a", 3):
            for table in machine.results.glob("studies/*/records/*/*.parquet"):
                table.write_bytes(b"")

    with raises(StoreError):
        machine.run(study(first, second, order="written"), on=spoil)
    assert ("b", "ok") in statuses(machine.last.results)
    told = [event.text for event in machine.emitted if isinstance(event, Note)]
    assert any(text.startswith("a: no restarts are added for repeats.until: ") for text in told)
