"""Whole studies in virtual time: order, failures, fallbacks, interruptions, kills and resumption."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
from make import models as tiny
from make.machine import Snapshot, VirtualMachine, VirtualRunner, experiment, study
from refused import raises
from seams.metering import Ticks
from seams.study import (
    BackendGivenUp,
    ExperimentFailed,
    FallbackSkipped,
    FallbacksPlanned,
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
from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError, ExitCode, PreflightError
from wattdock.metering import GpuTimeline, MeterChoice, MeterEvent
from wattdock.planning import forecast
from wattdock.study import StudyFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from seams.study import Event

    from wattdock.metering import Timeline
    from wattdock.store import StoredResult

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


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    return VirtualMachine(tmp_path / "machine", {GPU: lambda _: 300.0})


def passes(results: Sequence[StoredResult]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (stored.result.config.name, measured.restart, measured.pass_index)
        for stored in results
        if stored.result.energy
        for measured in stored.result.energy.passes
    )


def statuses(results: Sequence[StoredResult]) -> list[tuple[str, str]]:
    return [(stored.result.config.name, stored.result.status) for stored in results]


def journal(machine: VirtualMachine) -> list[dict[str, Any]]:
    [file] = machine.results.glob("studies/*/journal.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def send(number: signal.Signals, when: Callable[[Event], bool]) -> Callable[[Event], None]:
    """Return a consumer that sends a signal to this process each time `when` says so of an event."""

    def consume(event: Event) -> None:
        if when(event):
            os.kill(os.getpid(), number)

    return consume


def begins(stage: str) -> Callable[[Event], bool]:
    """Return what knows the beginning of a pass."""
    return lambda event: isinstance(event, PassStarted) and event.stage == stage


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
    energy = run.results[0].result.energy
    assert energy is not None
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
    assert kinds == [PassStarted, *[TokensSeen] * 20, PassFinished, ResultStored]
    beat = next(event for event in machine.emitted if isinstance(event, TokensSeen))
    assert (beat.stage, beat.output_tokens) == ("pass 1/1", 2)
    assert beat.elapsed_s == pytest.approx(0.1)
    assert beat.watts == {GPU: 300.0}


def test_a_failure_is_a_result_and_the_others_go_on(machine: VirtualMachine) -> None:
    """The rest of its load group gets a fresh runner; results stand in the order written."""
    run = machine.run(
        study(experiment("a"), experiment("b", fake={"pass_fault": "die"}), experiment("c", workload={"batch_size": 4}))
    )
    assert statuses(run.results) == [("a", "ok"), ("b", "failed"), ("c", "ok")]
    error = run.results[1].result.error
    assert error is not None
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


def test_a_backend_that_fails_the_same_way_three_times_is_given_up(machine: VirtualMachine) -> None:
    """No more of its experiments are tried, and an event says so; `--resume` would try them."""
    run = machine.run(
        study(*(experiment(f"{step}", fake={"load_fault": "die", "step_s": step}) for step in (1, 2, 3, 4)))
    )
    assert len(run.results) == 3
    [given_up] = [event for event in machine.emitted if isinstance(event, BackendGivenUp)]
    assert "3 attempts in a row failed with RunnerError (load)" in given_up.reason


def test_an_experiment_past_its_time_is_stopped_and_the_others_go_on(machine: VirtualMachine) -> None:
    """Its result says which limit it was, and keeps the passes before it."""
    slow = experiment("slow", timeouts={"experiment_s": 7}, repeats={"passes": 50})
    run = machine.run(study(slow, experiment("quick", workload={"batch_size": 1})))
    assert statuses(run.results) == [("slow", "failed"), ("quick", "ok")]
    result = run.results[0].result
    assert result.error is not None
    assert "the experiment took longer than 7 s" in result.error.message
    assert 1 <= len(passes(run.results[:1])) < 50


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


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_a_study_killed_at_any_pass_is_resumed_with_nothing_lost_and_nothing_measured_twice(
    machine: VirtualMachine, tmp_path: Path, number: int
) -> None:
    """What lies on disk at that moment is all that a kill leaves; the table is then that of a run left alone."""
    killed = VirtualMachine(tmp_path / "killed", machine.power, clock=machine.clock)
    machine.run(PAIR, on=Snapshot(machine, PassFinished, number, killed.folder))
    resumed = killed.run(PAIR, resume=True)
    started = next(event for event in killed.emitted if isinstance(event, StudyStarted))
    assert (started.resumed, started.passes_left) == (True, 8 - (number - 1))
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
    assert resumed.results[0].result.study is not None
    assert resumed.results[0].result.study.attempt == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_second_ctrl_c_and_other_signals_stop_at_once(machine: VirtualMachine, number: signal.Signals) -> None:
    """The pass being measured is lost, those before it are not."""
    in_second = send(number, lambda event: isinstance(event, TokensSeen) and event.stage == "pass 2/3")
    with pytest.raises(KeyboardInterrupt):
        machine.run(study(experiment("a", repeats={"passes": 3})), on=in_second)
    assert statuses(machine.last.results) == [("a", "interrupted")]
    assert len(passes(machine.last.results)) == 1


def test_fallbacks_are_measured_until_one_works_and_none_replaces_what_was_requested(machine: VirtualMachine) -> None:
    """Eight and four in flight are too many, two are not: three results, and the first stays failed."""
    requested = experiment("asked", workload={"batch_size": 8}, fake={"most_in_flight": 2}, on_failure="fallback")
    run = machine.run(study(requested))
    assert [stored.result.status for stored in run.results] == ["failed", "failed", "ok"]
    fallbacks = [stored.result.fallback for stored in run.results]
    assert [fallback and (fallback.step, fallback.change) for fallback in fallbacks] == [
        None,
        (1, "workload.batch_size: 4"),
        (2, "workload.batch_size: 2"),
    ]
    assert {fallback.fallback_of for fallback in fallbacks if fallback} == {requested.experiment_id}
    changes = ("workload.batch_size: 4", "workload.batch_size: 2")
    assert FallbacksPlanned("asked", "KV cache too small", changes) in machine.emitted
    assert journal(machine)[-1]["event"] == "ended"
    again = machine.run(study(requested), resume=True)
    assert statuses(again.results) == statuses(run.results)
    assert machine.launches == 3


def test_a_fallback_that_the_study_asks_for_itself_is_measured_once_and_as_itself(machine: VirtualMachine) -> None:
    """It is no fallback then, and the other fallbacks go on without it."""
    tight = {"most_in_flight": 2}
    requested = experiment("asked", workload={"batch_size": 8}, fake=tight, on_failure="fallback")
    run = machine.run(study(requested, experiment("four", workload={"batch_size": 4}, fake=tight)))
    results = {(stored.result.config.workload.batch_size, bool(stored.result.fallback)) for stored in run.results}
    assert results == {(2, True), (4, False), (8, False)}


def test_a_fallback_begun_on_other_gpus_is_left_for_them_and_the_study_goes_on(tmp_path: Path) -> None:
    """One line instead of an end in the middle; on its own GPUs it is gone on with."""
    power = {GPU: lambda _: 300.0, OTHER: lambda _: 100.0}
    machine = VirtualMachine(tmp_path / "a", power)
    killed = VirtualMachine(tmp_path / "b", power, clock=machine.clock)
    requested = experiment("asked", workload={"batch_size": 8}, fake={"most_in_flight": 2}, on_failure="fallback")
    both = study(requested, experiment("after", workload={"batch_size": 1}), order="written")
    machine.run(both, gpus=[GPU], on=Snapshot(machine, PassFinished, 2, killed.folder))
    killed.run(both, gpus=[OTHER], resume=True)
    [skipped] = [event for event in killed.emitted if isinstance(event, FallbackSkipped)]
    assert f" was measured on {GPU}, and this run would take {OTHER}; " in skipped.reason
    assert ("after", "ok") in statuses(killed.last.results)
    assert journal(killed)[-1]["event"] != "ended"
    killed.run(both, gpus=[GPU], resume=True)
    assert sorted(status for _, status in statuses(killed.last.results)) == ["failed", "failed", "ok", "ok"]
    assert journal(killed)[-1]["event"] == "ended"


def test_an_experiment_is_not_gone_on_with_on_other_gpus_than_its_own(tmp_path: Path) -> None:
    """Its joules would be those of one GPU for all of its passes."""
    machine = VirtualMachine(tmp_path / "a", {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    killed = VirtualMachine(tmp_path / "b", machine.power, clock=machine.clock)
    planned = study(experiment("a"))
    machine.run(planned, gpus=[GPU], on=Snapshot(machine, PassFinished, 2, killed.folder))
    with raises(PreflightError, GPU, OTHER, cause=Cause.OTHER_MACHINE):
        killed.run(planned, gpus=[OTHER], resume=True)
    resumed = killed.run(planned, gpus=[GPU], resume=True)
    energy = resumed.results[0].result.energy
    assert energy is not None
    assert [measured.total_j for measured in energy.passes] == pytest.approx([600, 600], rel=0.02)


@pytest.mark.parametrize("interrupted_in", ["pass 2/2", "pass 1/3", None])
def test_a_study_whose_prompts_file_changed_is_not_resumed_until_it_is_put_back(
    machine: VirtualMachine, tmp_path: Path, interrupted_in: str | None
) -> None:
    """A path in the settings is the same whatever stands in the file; an experiment that is done counts, too."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [1, 2, 3]}\n')
    first = experiment("a", workload={"prompts": {"source": str(prompts)}, "batch_size": 1})
    planned = study(first, experiment("b", repeats={"passes": 3}), order="written")
    with pytest.raises(KeyboardInterrupt) if interrupted_in else nullcontext():
        machine.run(planned, on=send(signal.SIGTERM, begins(interrupted_in or "")))
    prompts.write_text('{"token_ids": [4, 5, 6]}\n')
    with raises(ConfigError, "prompts.jsonl", cause=Cause.PROMPTS_CHANGED):
        machine.run(planned, resume=True)
    prompts.write_text('{"token_ids": [1, 2, 3]}\n')
    assert statuses(machine.run(planned, resume=True).results) == [("a", "ok"), ("b", "ok")]


def edit(folder: Path, change: dict[str, str | None]) -> None:
    """Write files into a model's folder, or remove those without content."""
    for name, text in change.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"chat_template.jinja": "{{ 2 }}"}, "chat_template.jinja has changed"),
        ({"chat_template.jinja": None}, "chat_template.jinja is gone"),
        ({"generation_config.json": '{"eos_token_id": 2}'}, "generation_config.json is new"),
        ({"config.json": '{"model_type": "llama", "vocab_size": 31}'}, "config.json has changed"),
        ({"tokenizer.json": "[]", "merges.txt": "a b"}, "merges.txt is new, tokenizer.json has changed"),
        ({"additional_chat_templates/tools.jinja": ""}, "additional_chat_templates/tools.jinja is new"),
        ({"tokenizer.model": "x"}, "tokenizer.model is new"),
        ({"code.py": "x = 1"}, "code.py is new"),
    ],
)
def test_a_study_whose_model_folder_changed_is_not_resumed_until_it_is_put_back(
    machine: VirtualMachine, tmp_path: Path, change: dict[str, str | None], told: str
) -> None:
    """The settings hold the folder's path only; the restart that was interrupted has passes already."""
    folder = tiny.write(tmp_path / "model", tiny.files() | {"chat_template.jinja": b"{{ 1 }}"})
    model = ModelSpec(path=folder, trust_remote_code=True)
    planned = study(experiment("a", model=model, repeats={"restarts": 2, "passes": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    shutil.copytree(folder, tmp_path / "kept")
    edit(folder, change)
    launches = machine.launches
    with raises(ConfigError, folder, told, cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)
    assert machine.launches == launches
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    resumed = machine.run(planned, resume=True)
    assert statuses(resumed.results) == [("a", "ok")]
    assert sum(passes(resumed.results).values()) == 4


def test_code_in_a_model_folder_is_nothing_to_a_study_that_does_not_run_it(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Nor is a file that no engine reads."""
    folder = tiny.write(tmp_path / "model")
    planned = study(experiment("a", model=str(folder), repeats={"restarts": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    edit(folder, {"code.py": "x = 1", "README.md": "other"})
    assert statuses(machine.run(planned, resume=True).results) == [("a", "ok")]


def test_a_study_is_not_resumed_where_the_model_of_what_is_done_has_changed(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Results of one study are of one model, as they are of one machine."""
    folder = tiny.write(tmp_path / "model")
    planned = study(experiment("a", model=str(folder)), experiment("b", repeats={"passes": 3}), order="written")
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/3")))
    edit(folder, {"tokenizer.json": "[]"})
    with raises(ConfigError, "tokenizer.json", cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)


def test_a_file_of_a_shape_that_was_edited_counts_as_well(machine: VirtualMachine) -> None:
    """It lies in a folder that can be edited, and its revision stays the same, as that of a hub's cached model does."""
    planned = study(experiment("a", repeats={"restarts": 2}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/2")))
    [folder] = (machine.folder / "home").glob("models/shapes/tiny-*")
    edit(folder, {"config.json": (folder / "config.json").read_text() + " "})
    with raises(ConfigError, "config.json", cause=Cause.MODEL_CHANGED):
        machine.run(planned, resume=True)


def test_a_model_that_changes_between_restarts_ends_its_experiment_and_not_the_others(
    machine: VirtualMachine, tmp_path: Path
) -> None:
    """Restarts of two models have no common mean; what was measured before is kept."""
    folder = tiny.write(tmp_path / "model")
    planned = study(
        experiment("a", model=str(folder), repeats={"restarts": 2}),
        experiment("b", repeats={"restarts": 2}),
        order="written",
    )

    def change(event: Event) -> None:
        if isinstance(event, PassFinished) and event.stage == "pass 2/2":
            edit(folder, {"tokenizer_config.json": "{}"})

    run = machine.run(planned, on=change)
    assert statuses(run.results) == [("a", "failed"), ("b", "ok")]
    failed = run.results[0].result
    assert failed.error is not None
    assert (failed.error.exit_code, failed.error.kind) == (ExitCode.CONFIG, "ConfigError")
    assert "since a was measured: tokenizer_config.json is new" in failed.error.message
    assert passes(run.results[:1]).keys() == {("a", 0, 0), ("a", 0, 1)}
    assert failed.environment is not None
    assert "tokenizer_config.json" not in failed.environment.model.files


def test_a_model_that_changes_while_it_is_loaded_is_not_measured(
    machine: VirtualMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could say which of the two files the engine has read."""
    folder, load = tiny.write(tmp_path / "model"), VirtualRunner.load

    def editing(*arguments: Any, **options: Any) -> Any:
        edit(folder, {"tokenizer.json": "[]"})
        return load(*arguments, **options)

    monkeypatch.setattr(VirtualRunner, "load", editing)
    [stored] = machine.run(study(experiment("a", model=str(folder)))).results
    assert stored.result.error is not None
    assert "tokenizer.json has changed" in stored.result.error.message
    assert not passes([stored])


@pytest.mark.parametrize("variables", [{"NCCL_NTHREADS": "3"}, {}])
def test_a_study_is_not_gone_on_with_under_other_engine_settings_of_the_environment(
    machine: VirtualMachine, variables: dict[str, str]
) -> None:
    """They decide how an engine runs as much as its arguments do."""
    machine.variables = {"NCCL_NTHREADS": "2"}
    machine.run(study(experiment("a")))
    machine.variables = variables
    with pytest.raises(PreflightError, match=rf"variables\.NCCL_NTHREADS 2 → {variables.get('NCCL_NTHREADS')}"):
        machine.run(study(experiment("a")), resume=True)


def test_a_limit_that_changes_between_restarts_is_told_and_not_publishable(tmp_path: Path) -> None:
    """Each runner's conditions are those it finds, not those that the run began with."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0}, limit_w=lambda at_s: 700.0 if at_s < 110 else 500.0)
    run = machine.run(study(experiment("a", repeats={"restarts": 2})))
    audit = run.results[0].result.audit
    assert audit is not None
    [check] = [check for check in audit.checks if check.name == "environment of the restarts"]
    assert (check.status, check.figure) == ("fail", "GPU power limit, W: 700.0 (restart 1), 500.0 (restart 2)")


def test_a_steady_warm_up_and_three_idle_spans_surround_the_measured_passes(machine: VirtualMachine) -> None:
    """At a constant 300 W nothing is left above idle."""
    steady = {"profile": "steady", "window_s": 10, "min_s": 20, "cap_s": 60}
    run = machine.run(study(experiment("a", warmup=steady, idle={"duration_s": 5}, repeats={"passes": 1})))
    result = run.results[0].result
    assert result.procedure is not None
    assert result.energy is not None
    [warm_up] = result.procedure.warm_up
    assert (warm_up.converged, warm_up.duration_s >= 20, warm_up.temperature_range_c) == (True, True, 0)
    names = [span.name for span in result.spans if span.name != "warm-up"]
    assert names == ["idle-empty", "launch", "load", "idle-loaded-before", "idle-loaded-after", "pass"]
    assert result.energy.idle_baselines is not None
    assert [idle.state for idle in result.energy.idle_baselines] == ["empty", "loaded_before", "loaded_after"]
    assert [idle.mean_power_w for idle in result.energy.idle_baselines] == pytest.approx([300] * 3, rel=0.01)
    assert result.energy.net_j == pytest.approx(0, abs=0.05 * (result.energy.total_j or 0))


def test_weights_say_how_the_engine_holds_them(machine: VirtualMachine) -> None:
    """What is quantised is not the same model as the whole one; in a table and a comparison the two differ."""
    run = machine.run(study(experiment("a", fake={"quantization": "Q4_1"}), experiment("b")))
    weights = [stored.result.environment.model.weights for stored in run.results if stored.result.environment]
    assert weights[1].startswith("random(")
    assert weights[0] == f"{weights[1]}, Q4_1"


def test_a_warm_up_that_never_settles_ends_at_its_cap_and_the_result_says_so(tmp_path: Path) -> None:
    """Power that climbs by 10 W a second is a drift of joules per token that no cap hides."""
    machine = VirtualMachine(tmp_path, {GPU: lambda at_s: 10 * at_s})
    steady = {"profile": "steady", "window_s": 10, "min_s": 20, "cap_s": 40}
    run = machine.run(study(experiment("a", warmup=steady, repeats={"passes": 1})))
    procedure = run.results[0].result.procedure
    assert procedure is not None
    [warm_up] = procedure.warm_up
    assert warm_up.converged is False
    assert any("J/token" in found for found in warm_up.drifting)


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
    assert stored.result.error is not None
    assert stored.result.error.message == "the NVIDIA driver cannot be initialised"


@pytest.mark.parametrize("breaks", [GPU, OTHER])
def test_a_meter_that_breaks_off_on_one_gpu_costs_the_energy_of_that_gpu_only(tmp_path: Path, breaks: str) -> None:
    """A used GPU without energy fails the result with its reason and keeps the speed; a bystander's is only unknown."""

    def broken(timeline: Timeline) -> Timeline:
        event = MeterEvent(timeline.end_ns, "broke_off")
        gpu = replace(timeline.gpus[breaks], ticks=Ticks.from_rows(), events=(event,))
        return replace(timeline, gpus={**timeline.gpus, breaks: gpu})

    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0}, at_meter_end=broken)
    result = machine.run(study(experiment("a")), gpus=[GPU]).results[0].result
    energy, performance, error = result.energy, result.performance, result.error
    assert energy is not None
    assert performance is not None
    assert performance.output_tokens > 0
    if breaks == OTHER:
        assert (result.status, energy.bystander_j) == ("ok", {OTHER: None})
        assert energy.total_j == pytest.approx(300 * performance.duration_s, rel=0.02)
    else:
        assert error is not None
        assert (error.kind, error.stage, error.exit_code) == ("MeterError", "meter", ExitCode.METER)
        assert "broke off" in error.message
        assert (energy.total_j, GPU in str(energy.reason)) == (None, True)


# What the meter says of a GPU that is lost, and of one whose counter freezes.
LOST = MeterEvent(0, "gpu_lost", said="GPU is lost")
FROZEN = MeterEvent(0, "counter_frozen", values={"stood_s": 9.0, "mean_w": 300.0})


def spoiled(uuid: str, event: MeterEvent, from_s: float) -> Callable[[Timeline], Timeline]:
    """Return what a timeline becomes where one GPU's counter no longer changes from an instant on, and why."""
    from_ns = round(from_s * NS_PER_S)

    def change(timeline: Timeline) -> Timeline:
        gpu = timeline.gpus[uuid]
        if timeline.end_ns < from_ns:
            return timeline
        end_ns = timeline.end_ns if event == FROZEN else None
        before = gpu.ticks.after_end_ns < from_ns
        ticks = Ticks(**{column.name: getattr(gpu.ticks, column.name)[before] for column in fields(Ticks)})
        gpu = replace(gpu, ticks=ticks, events=(replace(event, at_ns=from_ns, end_ns=end_ns),))
        return replace(timeline, gpus={**timeline.gpus, uuid: gpu})

    return change


@pytest.mark.parametrize("event", [LOST, FROZEN])
@pytest.mark.parametrize(("on_failure", "later"), [("continue", [("b", "failed")]), ("stop", [])])
def test_a_gpu_lost_or_a_counter_frozen_within_a_pass_fails_the_experiment_and_keeps_what_was_measured(
    machine: VirtualMachine, event: MeterEvent, on_failure: Any, later: list[tuple[str, str]]
) -> None:
    """Exit code 6, the loss as the first reason everywhere, the energy of earlier passes, no pass without energy."""

    def note(happened: Event) -> None:
        if isinstance(happened, PassStarted) and happened.stage == "pass 2/3":
            machine.as_read = spoiled(GPU, event, machine.clock.now_ns() / NS_PER_S + 0.5)

    settings = {"repeats": {"passes": 3}, "on_failure": on_failure}
    both = (experiment(name, **settings, fake={"step_s": step_s}) for name, step_s in (("a", 0.1), ("b", 0.2)))
    run = machine.run(study(*both, order="written"), on=note)
    assert statuses(run.results) == [("a", "failed"), *later]
    result = run.results[0].result
    error, energy, performance, audit = result.error, result.energy, result.performance, result.audit
    assert error is not None
    assert (error.kind, error.stage, error.exit_code) == ("MeterError", "pass 2/3", ExitCode.METER)
    assert error.message == f"{GPU}: {event.message}; `wattdock doctor` says what to do"
    assert energy is not None
    assert energy.reason == f"{GPU}: {event.message}"
    first, second = energy.passes
    assert first.total_j == pytest.approx(300 * first.duration_s, rel=0.02)
    assert (second.total_j, second.reason) == (None, energy.reason)
    assert performance is not None
    assert performance.output_tokens == first.output_tokens + second.output_tokens
    assert audit is not None
    [first_reason, *_] = audit.reasons
    assert (first_reason.group, first_reason.name, first_reason.found) == ("wrong", "completion", error.message)
    assert "energy" in first_reason.follows


def test_a_counter_that_is_found_frozen_only_after_the_last_pass_fails_the_experiment_too(
    machine: VirtualMachine,
) -> None:
    """It takes seconds until a standstill can be called so."""
    machine.at_meter_end = lambda timeline: spoiled(GPU, FROZEN, timeline.end_ns / NS_PER_S - 3.5)(timeline)
    error = machine.run(study(experiment("a"))).results[0].result.error
    assert error is not None
    assert (error.stage, error.exit_code, FROZEN.message in error.message) == ("meter", ExitCode.METER, True)


def test_a_gpu_that_is_lost_when_nothing_is_measured_any_more_costs_nothing(machine: VirtualMachine) -> None:
    """Every pass has its energy; the loss is told."""
    machine.at_meter_end = lambda timeline: spoiled(GPU, LOST, timeline.end_ns / NS_PER_S - 0.5)(timeline)
    assert statuses(machine.run(study(experiment("a"))).results) == [("a", "ok")]
    assert f"{GPU}: {LOST.message}" in machine.notes()


def without_source(timeline: Timeline) -> Timeline:
    """Return what a timeline becomes where the driver reports neither energy nor power."""
    return replace(timeline, gpus={GPU: replace(timeline.gpus[GPU], energy_source=None, ticks=Ticks.from_rows())})


def reset_in(from_s: float) -> Callable[[Timeline], Timeline]:
    """Return what a timeline becomes where the counter begins anew at an instant."""

    def change(timeline: Timeline) -> Timeline:
        ticks = timeline.gpus[GPU].ticks
        energy_mj = np.where(ticks.after_end_ns < from_s * NS_PER_S, ticks.energy_mj + 10**9, ticks.energy_mj)
        return replace(timeline, gpus={GPU: replace(timeline.gpus[GPU], ticks=replace(ticks, energy_mj=energy_mj))})

    return change


@pytest.mark.parametrize(
    ("cause", "told", "unknown"),
    [
        ("reset", "the energy counter was reset", 1),
        ("0 W", "counter stood at 0 W", 3),
        ("no source", "no energy source", 3),
    ],
)
def test_a_measured_pass_without_energy_fails_its_experiment_with_the_meters_code_and_is_kept(
    machine: VirtualMachine, cause: str, told: str, unknown: int
) -> None:
    """Exit code 6 as docs/exit-codes.md says; all passes are in the row, with the energy that they have."""
    if cause == "0 W":
        machine.power = {GPU: lambda _: 0.0}
    machine.as_read = without_source if cause == "no source" else machine.as_read

    def note(happened: Event) -> None:
        if cause == "reset" and isinstance(happened, PassStarted) and happened.stage == "pass 2/3":
            machine.as_read = reset_in(machine.clock.now_ns() / NS_PER_S + 0.5)

    idle = {"duration_s": 0.0}
    [stored] = machine.run(study(experiment("a", repeats={"passes": 3}, idle=idle)), on=note).results
    error, energy, performance = stored.result.error, stored.result.energy, stored.result.performance
    assert error is not None
    assert (stored.result.status, error.kind, error.exit_code) == ("failed", "MeterError", ExitCode.METER)
    assert (GPU in error.message, told in error.message, "wattdock doctor" in error.message) == (True, True, True)
    assert energy is not None
    assert [measured.total_j for measured in energy.passes].count(None) == unknown
    assert performance is not None
    assert performance.output_tokens > 0


def test_an_interruption_does_not_hide_that_a_pass_has_no_energy(machine: VirtualMachine) -> None:
    """A resumption would measure the passes that are left and pool them with one that nobody metered."""
    machine.as_read = without_source
    planned = study(experiment("a", repeats={"passes": 3}, idle={"duration_s": 0.0}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/3")))
    assert statuses(machine.last.results) == [("a", "failed")]


def test_without_gpu_metering_by_choice_no_energy_is_missing(machine: VirtualMachine) -> None:
    """`meter: none` and `meter: rapl` name their reason; the GPU runs all the same."""
    plans, machine.as_read = machine.plans, without_source
    chosen = MeterChoice("none", "asked for", "meter: none was asked for")
    with patch.object(
        VirtualMachine, "plans", lambda _, *planned: [replace(plan, meter=chosen) for plan in plans(*planned)]
    ):
        [stored] = machine.run(study(experiment("a"))).results
    assert (stored.result.status, stored.result.error) == ("ok", None)


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


def test_a_lost_gpu_comes_before_the_death_of_its_runner(machine: VirtualMachine) -> None:
    """The runner died of it."""
    machine.as_read = spoiled(GPU, LOST, machine.clock.now_ns() / NS_PER_S + 5)
    error = machine.run(study(experiment("a", fake={"pass_fault": "die"}))).results[0].result.error
    assert error is not None
    first, _, second = error.message.partition("; then: ")
    assert (error.kind, error.exit_code, error.stage) == ("MeterError", ExitCode.METER, "warm-up 1/1")
    assert (first.startswith(f"{GPU}: {LOST.message}"), "died" in second) == (True, True)


def test_a_bystander_that_is_lost_is_told_and_fails_nothing(tmp_path: Path) -> None:
    """Its energy alone is unknown."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    machine.as_read = spoiled(OTHER, LOST, machine.clock.now_ns() / NS_PER_S + 5)
    [stored] = machine.run(study(experiment("a")), gpus=[GPU]).results
    assert stored.result.status == "ok"
    assert stored.result.energy is not None
    assert stored.result.energy.bystander_j == {OTHER: None}
    assert f"{OTHER}: {LOST.message}" in machine.notes()


def test_no_runner_is_started_on_a_gpu_that_the_meter_does_not_find(tmp_path: Path) -> None:
    """Lost between two experiments of a study; what the meter says of it, without its UUID, is the reason."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})

    def without(timeline: Timeline) -> Timeline:
        told = replace(timeline.gpus[OTHER], events=(MeterEvent(0, "read_error", reading="power_w", said="busy"),))
        unread = GpuTimeline(
            "index-0", None, Ticks.from_rows(), events=(MeterEvent(0, "gpu_lost", reading="GPU 0", said="GPU is lost"),)
        )
        return replace(timeline, gpus={OTHER: told, "index-0": unread})

    def lose(happened: Event) -> None:
        if isinstance(happened, ResultStored):
            machine.power, machine.as_read = {OTHER: lambda _: 100.0}, without

    both = study(experiment("a"), experiment("b", fake={"step_s": 0.2}), order="written")
    run = machine.run(both, gpus=[GPU], on=lose)
    assert (statuses(run.results), machine.launches) == ([("a", "ok"), ("b", "failed")], 1)
    error = run.results[1].result.error
    assert error is not None
    message = f"GPU 0: GPU is lost; not metered: {GPU}; `wattdock doctor` says what to do"
    assert (error.exit_code, error.message) == (ExitCode.METER, message)


def test_a_meter_that_cannot_be_stopped_does_not_hide_what_went_wrong_first(machine: VirtualMachine) -> None:
    """The first error is the result's and decides the exit code; the meter's is in the record."""

    def broken(_: Timeline) -> Timeline:
        raise RuntimeError("put in by a test")

    machine.at_meter_end = broken
    [stored] = machine.run(study(experiment("a", fake={"pass_fault": "die"}))).results
    error, [record] = stored.result.error, stored.restarts()
    assert error is not None
    assert record.timeline is not None
    assert (record.timeline.start_ns, record.timeline.end_ns, record.timeline.broke_off) == (0, 0, True)
    assert (error.kind, error.cause) == ("RunnerError", Cause.RUNNER)
    assert str(record.timeline.reason).endswith(": put in by a test")


def test_an_interrupt_while_the_meter_stops_costs_nothing(machine: VirtualMachine) -> None:
    """The last pass is over and its result is whole: nothing was left to interrupt."""

    def interrupted(timeline: Timeline) -> Timeline:
        os.kill(os.getpid(), signal.SIGINT)
        return timeline

    machine.at_meter_end = interrupted
    run = machine.run(study(experiment("a")))
    assert statuses(run.results) == [("a", "ok")]
    assert len(passes(run.results)) == 2


def test_a_leased_gpu_that_holds_no_part_of_the_model_counts_for_the_lease_only(tmp_path: Path) -> None:
    """Its energy is a bystander's; GPUs used are summed in the host's order."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    partly, wholly = machine.run(
        study(experiment("one", fake={"used_gpus": 1}), experiment("two"), order="written"), gpus=[GPU, OTHER]
    ).results
    for stored, used, watts, others in ((partly, [GPU], 300, [OTHER]), (wholly, [GPU, OTHER], 400, [])):
        energy, environment = stored.result.energy, stored.result.environment
        assert energy is not None
        assert environment is not None
        seconds = sum(measured.duration_s for measured in energy.passes)
        assert environment.gpu_uuids == used
        assert energy.total_j == pytest.approx(watts * seconds, rel=0.02)
        assert list(energy.bystander_j) == others
    assert wholly.result.multi_gpu is not None
    assert wholly.result.multi_gpu.load_imbalance == pytest.approx(1.5, rel=0.02)
