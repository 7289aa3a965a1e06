"""Whole studies in virtual time: order, failures, interruptions, kills and resumption."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import begins, journal, known, passes, send, statuses
from make.snapshot import Snapshot
from make.stored import rows
from refused import raises
from seams.study import (
    Event,
    ExperimentFailed,
    IdleStarted,
    PassFinished,
    PassStarted,
    RestartStarted,
    ResultStored,
    StopAsked,
    StudyLeftUnfinished,
    StudyStarted,
    TokensSeen,
)

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ExitCode, PreflightError
from wattdock.planning import forecast
from wattdock.study import StudyFolder

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Called


GPU, OTHER = "GPU-1", "GPU-2"


# Three load groups of two experiments, two restarts of two passes.
SWEEP = study(
    *(
        experiment(f"{size} {step}", workload={"batch_size": size}, fake={"step_s": step}, repeats={"restarts": 2})
        for size in (1, 2)
        for step in (0.1, 0.2, 0.3)
    )
)


# Two load groups of one experiment, two restarts of two passes.
PAIR = study(*(experiment(f"{step}", fake={"step_s": step}, repeats={"restarts": 2}) for step in (0.1, 0.2)))


def test_a_sweep_is_measured_whole_with_one_load_per_group_and_restart(machine: VirtualMachine) -> None:
    """Twelve services by six runners; each restart has an order of its own, and 300 W give the joules."""
    run = machine.run(SWEEP)
    assert statuses(run.results) == [(str(config.name), "ok") for config in SWEEP.experiments]
    expected = {
        (str(config.name), restart, number) for config in SWEEP.experiments for restart in (0, 1) for number in (0, 1)
    }
    assert passes(run.results) == dict.fromkeys(expected, 1)
    assert machine.launches == 6
    services = [event for event in machine.emitted if isinstance(event, RestartStarted)]
    assert [(event.restart, event.restarts) for event in services] == [(1, 2)] * 6 + [(2, 2)] * 6
    assert [event.experiment for event in services[:6]] != [event.experiment for event in services[6:]]
    assert (services[0].passes_left, services[0].time_left) == (24, "time unknown until the first pass")
    assert services[-1].passes_left == 2
    energy = known(run.results[0].result.energy)
    assert energy.total_j == pytest.approx(300 * sum(measured.duration_s for measured in energy.passes), rel=0.02)
    assert journal(machine)[-1]["event"] == "ended"


def test_each_timeout_reaches_what_it_limits(machine: VirtualMachine) -> None:
    """A load or a pass that hangs ends after the time that was set for it, not after another's."""
    timeouts = {"launch_s": 11.0, "load_s": 12.0, "heartbeat_s": 13.0, "stall_s": 14.0, "stop_s": 15.0}
    machine.run(study(experiment("a", timeouts=timeouts)))
    assert machine.limits == timeouts


def test_events_tell_a_pass_from_its_start_to_its_end(machine: VirtualMachine) -> None:
    """What a live page shows: stage, tokens, seconds, watts."""
    machine.run(study(experiment("a", repeats={"passes": 1}, warmup={"passes": 0})))
    kinds = [
        type(event)
        for event in machine.emitted
        if isinstance(event, PassStarted | TokensSeen | PassFinished | ResultStored)
    ]
    assert kinds == [PassStarted, *[TokensSeen] * 21, PassFinished, ResultStored]
    begun, first, second, *_ = (event for event in machine.emitted if isinstance(event, TokensSeen))
    assert [(beat.stage, beat.output_tokens) for beat in (first, second)] == [("pass 1/1", 2), ("pass 1/1", 4)]
    assert begun.output_tokens == 0
    # Since the first heartbeat with a request in the engine.
    assert [first.elapsed_s, second.elapsed_s] == pytest.approx([0.0, 0.1])
    assert first.watts == {GPU: 300.0}


def test_a_failure_is_a_result_and_the_others_go_on(machine: VirtualMachine) -> None:
    """The rest of its load group gets a fresh runner; results stand in the order written."""
    run = machine.run(
        study(experiment("a"), experiment("b", fake={"pass_fault": "die"}), experiment("c", workload={"batch_size": 4}))
    )
    assert statuses(run.results) == [("a", "ok"), ("b", "failed"), ("c", "ok")]
    error = known(run.results[1].result.error)
    assert (error.kind, error.exit_code, error.cause) == ("RunnerError", ExitCode.RUNNER, "runner died")
    assert error.stage == "warm-up 1/1"
    assert ExperimentFailed("b", error.stage, error.kind, error.message, error.cause) in machine.emitted


@pytest.mark.parametrize(("until_s", "launches"), [(103, 1), (107, 0)])
def test_a_gpu_that_was_taken_since_preflight_must_become_free_soon(
    machine: VirtualMachine, until_s: float, launches: int
) -> None:
    """A runner that has just ended holds memory for a moment; others' work is named before anything is started."""
    machine.vram_used_bytes = lambda now_s: 10**10 if now_s < until_s else 0
    with nullcontext() if launches else raises(PreflightError, "GPU", "10,000,000,000", cause=Cause.GPU_BUSY):
        machine.run(study(experiment("a")))
    assert machine.launches == launches


def test_a_bug_in_the_snapshot_is_the_experiments_failure_and_costs_no_pass(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know otherwise on what the passes were measured, nor that this is not known."""

    def broken(*_: object) -> None:
        raise KeyError("driver")

    monkeypatch.setattr("wattdock.execution.experiment.environment", broken)
    [stored] = machine.run(study(experiment("a"))).results
    assert stored.result.error is not None
    assert (stored.result.error.stage, stored.result.error.exit_code) == ("environment", ExitCode.BUG)
    assert stored.result.error.message == "a bug in wattdock: 'driver'"
    assert [len(record.passes) for record in stored.restarts()] == [2]


def test_on_failure_stop_leaves_the_rest_unmeasured(machine: VirtualMachine) -> None:
    """What was asked to stop stops, and says what was not begun."""
    failing = experiment("a", fake={"load_fault": "die"}, on_failure="stop")
    run = machine.run(study(failing, experiment("b"), order="written"))
    assert statuses(run.results) == [("a", "failed")]
    assert machine.emitted[-1] == StudyLeftUnfinished(not_begun=1)


def test_failures_stay_as_they_are_unless_they_are_to_be_tried_again(machine: VirtualMachine) -> None:
    """`--resume` shows them, `--retry-failed` measures them and nothing else."""
    failing = study(experiment("a"), experiment("b", fake={"pass_fault": "die"}))
    machine.run(failing)
    launches = machine.launches
    assert statuses(machine.run(failing, resume=True).results) == [("a", "ok"), ("b", "failed")]
    assert machine.launches == launches
    machine.run(failing, resume=True, retry_failed=True)
    assert machine.launches == launches + 1
    assert [line["event"] for line in journal(machine)].count("retried") == 1


def test_a_study_named_from_elsewhere_goes_on_with_the_files_of_where_it_was_begun(
    tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of the same relative name lies where the command is called; what it prints works there."""
    for name, tokens in (("begun", 5), ("elsewhere", 500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lengths.jsonl").write_text(f'{{"input_tokens": {tokens}, "output_tokens": 2}}\n' * 2)
    monkeypatch.chdir(tmp_path / "begun")
    machine = VirtualMachine(tmp_path / "begun", load_fault="die")
    machine.run(study(experiment("a", workload={"prompts": "lengths.jsonl"})))
    machine.load_fault = "none"
    monkeypatch.setattr("wattdock.console.machine.machine_of", lambda _: nullcontext(machine.access()))
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = called("run", "--retry-failed", "s-1", "--output-dir", "../begun/results")
    assert done.returncode == 0, done.stderr
    [found] = [each for each in rows(machine.results) if each.result.status == "ok"]
    assert known(found.result.performance).prompt_tokens == 2 * 5 * 2
    assert f"--output-dir {tmp_path}/elsewhere/../begun/results" in done.stdout


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_a_study_killed_at_any_pass_is_resumed_with_nothing_lost_and_nothing_measured_twice(
    machine: VirtualMachine, tmp_path: Path, number: int
) -> None:
    """What lies on disk once a pass is said to be over is all that a kill leaves; the table is that of a run alone."""
    killed = VirtualMachine(tmp_path / "killed", machine.power, clock=machine.clock)
    machine.run(PAIR, on=Snapshot(machine, PassFinished, number, killed.folder))
    resumed = killed.run(PAIR, resume=True)
    started = next(event for event in killed.emitted if isinstance(event, StudyStarted))
    assert (started.resumed, started.passes_left) == (True, 8 - number)
    assert passes(resumed.results) == passes(machine.last.results)
    assert {status for _, status in statuses(resumed.results)} == {"ok"}
    assert journal(killed)[-1]["event"] == "ended"


def test_a_kill_before_stored_records_are_removed_leaves_a_study_that_ends_when_it_is_resumed(
    machine: VirtualMachine,
) -> None:
    """They are in the result by then; nothing is measured again for their sake."""
    with patch.object(StudyFolder, "drop"):
        machine.run(PAIR)
    assert journal(machine)[-1]["event"] == "stored"
    launches = machine.launches
    machine.run(PAIR, resume=True)
    assert (journal(machine)[-1]["event"], machine.launches) == ("ended", launches)
    assert list(machine.results.glob("studies/*/records")) == []


def test_the_first_ctrl_c_lets_the_pass_end_and_the_study_goes_on_from_there(machine: VirtualMachine) -> None:
    """The pass being measured counts; the result is marked until the rest is measured."""
    planned = study(experiment("a", repeats={"passes": 3}))
    in_second = send(signal.SIGINT, begins("pass 2/3"))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=in_second)
    assert statuses(machine.last.results) == [("a", "interrupted")]
    assert len(passes(machine.last.results)) == 2
    assert machine.emitted.count(StopAsked()) == 1
    resumed = machine.run(planned, resume=True)
    assert statuses(resumed.results) == [("a", "ok")]
    assert passes(resumed.results) == dict.fromkeys([("a", 0, 0), ("a", 0, 1), ("a", 0, 2)], 1)
    assert len(resumed.results[0].restarts()) == 2
    assert known(resumed.results[0].result.study).attempt == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_second_ctrl_c_and_other_signals_stop_at_once(machine: VirtualMachine, number: signal.Signals) -> None:
    """The pass being measured is lost, those before it are not."""
    in_second = send(number, lambda event: isinstance(event, TokensSeen) and event.stage == "pass 2/3")
    with pytest.raises(KeyboardInterrupt):
        machine.run(study(experiment("a", repeats={"passes": 3})), on=in_second)
    assert statuses(machine.last.results) == [("a", "interrupted")]
    assert len(passes(machine.last.results)) == 1


def test_an_experiment_is_not_gone_on_with_on_other_gpus_than_its_own(tmp_path: Path) -> None:
    """Its joules would be those of one GPU for all of its passes."""
    machine = VirtualMachine(tmp_path / "a", {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    killed = VirtualMachine(tmp_path / "b", machine.power, clock=machine.clock)
    planned = study(experiment("a"))
    machine.run(planned, gpus=[GPU], on=Snapshot(machine, PassFinished, 2, killed.folder))
    with raises(PreflightError, GPU, OTHER, cause=Cause.OTHER_MACHINE):
        killed.run(planned, gpus=[OTHER], resume=True)
    resumed = killed.run(planned, gpus=[GPU], resume=True)
    energy = known(resumed.results[0].result.energy)
    assert [measured.total_j for measured in energy.passes] == pytest.approx([600, 600], rel=0.02)


def test_a_limit_that_changes_between_restarts_is_told_and_not_publishable(tmp_path: Path) -> None:
    """Each runner's conditions are those it finds, not those that the run began with."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0}, limit_w=lambda at_s: 700.0 if at_s < 110 else 500.0)
    run = machine.run(study(experiment("a", repeats={"restarts": 2})))
    audit = known(run.results[0].result.audit)
    [check] = [check for check in audit.checks if check.name == "environment of the restarts"]
    assert (check.status, check.figure) == ("fail", "GPU power limit, W: 700.0 (restart 1), 500.0 (restart 2)")


def test_gpus_are_metered_without_a_model_and_once_after_each_load(machine: VirtualMachine) -> None:
    """For 3 s before each launch; the loaded board settles for 5 s first. At 300 W nothing is left above idle."""
    pair = [experiment(name, idle={"duration_s": idle_s}) for name, idle_s in (("a", 5), ("b", 8))]
    run = machine.run(study(*pair, order="written"))
    [first, second] = [stored.result for stored in run.results]
    spans = [(span.name, (span.end_ns - span.start_ns) / NS_PER_S) for span in first.spans]
    idle = [("idle-empty", 3.0), ("launch", 2.0), ("load", 10.0), ("idle-loaded", 8.0)]
    assert spans == [*idle, ("warm-up", 2.0), ("pass", 2.0), ("pass", 2.0)]
    load, loaded = first.spans[2:4]
    assert loaded.start_ns - load.end_ns == 5 * NS_PER_S
    assert machine.launches == 1
    for result in (first, second):
        energy = known(result.energy)
        idle_spans = known(energy.idle_baselines)
        assert [(idle.state, idle.duration_s) for idle in idle_spans] == [("empty", 3.0), ("loaded", 8.0)]
        assert [idle.mean_power_w for idle in idle_spans] == pytest.approx([300] * 2, rel=0.01)
        assert energy.net_j == pytest.approx(0, abs=0.01 * known(energy.total_j))


def test_a_signal_ends_the_metering_of_idle_gpus_within_half_a_second(machine: VirtualMachine) -> None:
    """The person who interrupts a run waits for its end."""
    began_ns: list[int] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, IdleStarted):
            began_ns.append(machine.clock.now_ns())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        machine.run(study(experiment("a", idle={"duration_s": 60})), on=interrupt)
    # The meter itself takes 1.5 s to stop.
    assert machine.clock.now_ns() - began_ns[0] <= 2 * NS_PER_S


def test_weights_say_how_the_engine_holds_them(machine: VirtualMachine) -> None:
    """What is quantised is not the same model as the whole one; in a table and a comparison the two differ."""
    run = machine.run(study(experiment("a", fake={"quantization": "Q4_1"}), experiment("b")))
    weights = [stored.result.environment.model.weights for stored in run.results if stored.result.environment]
    assert weights[1].startswith("random(")
    assert weights[0] == f"{weights[1]}, Q4_1"


def test_a_resumed_study_that_fails_before_another_span_stores_that_failure_too(machine: VirtualMachine) -> None:
    """Its result holds the spans of the interrupted one, and is not taken for it."""
    planned = study(experiment("a", repeats={"passes": 3}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGINT, begins("pass 2/3")))
    machine.load_fault = "die"
    resumed = machine.run(planned, resume=True)
    assert statuses(resumed.results) == [("a", "failed")]
    assert len(passes(resumed.results)) == 2
    assert len(list(machine.results.glob("2*"))) == 2


def test_a_driver_that_dies_between_two_runners_is_the_only_failure(machine: VirtualMachine) -> None:
    """Nothing is said of a meter that had nothing to do yet."""

    def limit_w(at_s: float) -> float:
        if at_s > began_s:
            raise PreflightError("the NVIDIA driver cannot be initialised")
        return 700.0

    began_s = machine.clock.now_ns() / NS_PER_S
    machine.limit_w = limit_w
    [stored] = machine.run(study(experiment("a", repeats={"restarts": 2}))).results
    assert known(stored.result.error).message == "the NVIDIA driver cannot be initialised"


def test_a_study_s_duration_is_told_by_the_latest_results_that_are_whole(machine: VirtualMachine) -> None:
    """Two passes and a warm-up of 2 s each; a later attempt that failed, and what never ran, say nothing."""
    known, unknown = experiment("a"), experiment("b", fake={"step_s": 0.2})
    machine.run(study(known))
    machine.load_fault = "die"
    machine.run(study(known))
    told = forecast([known, unknown], machine.results)
    assert (told.experiments, told.passes, told.total) == (
        ("6 s", ""),
        4,
        "at least 6 s",
    )


def test_an_interrupted_run_tells_how_long_a_pass_takes_until_a_whole_run_does(machine: VirtualMachine) -> None:
    """Its one pass of 2 s bears the whole warm-up of 2 s, so that two passes would take 8 s; whole, they took 6 s."""
    config = experiment("a")
    for last, expected in (("pass 2/2", "8 s"), ("", "6 s"), ("pass 2/2", "6 s")):
        with pytest.raises(KeyboardInterrupt) if last else nullcontext():
            machine.run(study(config), on=send(signal.SIGTERM, begins(last or "no such pass")))
        assert forecast([config], machine.results).total == expected
