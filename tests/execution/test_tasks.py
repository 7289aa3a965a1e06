"""A task of a larger study: its folder, and what becomes of it on another machine; the study's own folder."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import known
from refused import raises
from seams.fleet import prepare
from seams.study import PassFinished, PassStarted

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.launch import LauncherChoice
from wattdock.study import find_study, study_to_resume
from wattdock.study.tasks import TASKS, begin_tasks, tasks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from seams.study import Event

ONE, OTHER = "GPU-1", "GPU-2"
PAIR = study(*(experiment(f"{step}", fake={"step_s": step}, repeats={"restarts": 2}) for step in (0.1, 0.2)))


@pytest.fixture
def machine(tmp_path: Path) -> VirtualMachine:
    return VirtualMachine(tmp_path / "machine", {ONE: lambda _: 300.0, OTHER: lambda _: 300.0})


def end_after(passes: int, number: signal.Signals = signal.SIGUSR1) -> Callable[[Event], None]:
    """Return what to call with each event, so that the process gets a signal once so many passes were measured."""
    left = [passes]

    def on(event: Event) -> None:
        left[0] -= isinstance(event, PassFinished) and event.stage.startswith("pass")
        if not left[0]:
            os.kill(os.getpid(), number)
            left[0] = -1

    return on


@pytest.mark.parametrize(("second", "measured_then"), [(ONE, 1), (OTHER, 4)])
def test_a_task_goes_on_where_it_stopped_and_begins_anew_on_other_gpus(
    machine: VirtualMachine, second: str, measured_then: int
) -> None:
    """Its results are the study's; an experiment's joules are of one set of GPUs."""
    path = begin_tasks(PAIR, machine.results)
    task = tasks_of(PAIR, path)[1]
    with pytest.raises(KeyboardInterrupt):
        machine.run(task.study, gpus=[ONE], task=task.begun.path, on=end_after(3))
    run = machine.run(task.study, gpus=[second], task=task.begun.path)
    assert sum(isinstance(event, PassFinished) for event in machine.emitted) == measured_then
    assert any(note.startswith("another machine than before") for note in machine.notes()) == (second == OTHER)
    [stored] = run.results
    assert (stored.result.status, stored.result.config.name) == ("ok", "0.2")
    assert stored.result.study
    assert (stored.result.study.study_id, stored.result.study.attempt) == (path.name, 2)
    assert known(stored.result.environment).leased_gpus == [second]
    [first, other] = tasks_of(PAIR, path)
    assert (first.is_done(), other.is_done()) == (False, True)
    assert not (path / TASKS / "0").exists()


def test_what_tasks_need_is_made_once_and_no_environment_for_what_runs_in_containers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container or a named interpreter needs no environment; CPUs and GPUs need one each."""
    made: list[tuple[str, bool]] = []
    models: list[str] = []

    @contextmanager
    def launcher(choice: LauncherChoice, *, on_gpu: bool, say: object) -> Iterator[None]:
        del say
        made.append((known(choice.runner_dir).name, on_gpu))
        yield

    monkeypatch.setattr(LauncherChoice, "launcher", launcher)
    monkeypatch.setattr("wattdock.fleet.fleet.resolve_model", lambda model, **_: models.append(model.id))
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"workload": {"batch_size": 2}},
        {"accelerator": "cpu", "model": "org/other"},
        {"backend": "vllm", "launcher": "docker"},
        {"backend": "vllm", "container": {"locked": True}},
        {"backend": "vllm", "runner_python": "/usr/bin/python3"},
    )
    usual = {"backend": "pytorch", "model": "org/one"}
    prepare(study(*(ExperimentConfig.model_validate(usual | settings) for settings in asked)), emit=lambda _: None)
    assert made == [("pytorch", True), ("pytorch", False)]
    assert models == ["org/one", "org/other"]


def test_a_study_in_tasks_is_not_gone_on_with_on_this_machine_nor_the_other_way_round(machine: VirtualMachine) -> None:
    """By name each is told; without one neither is taken for the other."""
    path = begin_tasks(PAIR, machine.results)
    with raises(ConfigError, "s-1", "--on slurm", cause=Cause.OTHER_MACHINE):
        study_to_resume(PAIR, machine.results, resume=find_study("s-1", machine.results))
    machine.run(PAIR, gpus=[ONE], resume=True)
    with raises(ConfigError, "s-2", cause=Cause.OTHER_MACHINE):
        study_to_resume(PAIR, machine.results, resume=find_study("s-2", machine.results), in_tasks=True)
    for resume in (True, find_study("s-1", machine.results)):
        begun = known(study_to_resume(PAIR, machine.results, resume=resume, in_tasks=True))
        assert begun.path == path
    with raises(ConfigError, "s-1", cause=Cause.STUDY_CHANGED):
        study_to_resume(
            study(PAIR.experiments[0]), machine.results, resume=find_study("s-1", machine.results), in_tasks=True
        )


def test_a_study_in_tasks_holds_its_cluster_settings(machine: VirtualMachine) -> None:
    """So that it can be gone on with by its name alone."""
    path = begin_tasks(PAIR, machine.results)
    head = json.loads((path / "journal.jsonl").read_text())
    assert (head["fleet"], head["machine"], len(head["experiments"])) == ({}, {}, 2)


def test_a_study_that_others_could_have_changed_is_not_taken_at_its_word(machine: VirtualMachine) -> None:
    """Its settings can name programs; what is made under a umask of groups is the owner's alone."""
    before = os.umask(0o002)
    try:
        path = begin_tasks(PAIR, machine.results)
    finally:
        os.umask(before)
    journal = path / "journal.jsonl"
    assert [place.stat().st_mode & 0o777 for place in (path, path / TASKS, journal)] == [0o755, 0o755, 0o644]
    assert len(find_study("s-1", machine.results).settings["experiments"]) == 2
    for place in (path, journal):
        mode = place.stat().st_mode
        place.chmod(mode | 0o020)
        with raises(ConfigError, place.name, cause=Cause.OTHERS_COULD_WRITE):
            _ = find_study("s-1", machine.results).settings
        place.chmod(mode)


def test_a_task_with_another_s_journal_is_refused(machine: VirtualMachine) -> None:
    """As where another version of wattdock makes other load groups."""
    first, second = tasks_of(PAIR, begin_tasks(PAIR, machine.results))
    machine.run(first.study, gpus=[ONE], task=first.path)
    with raises(StoreError, "tasks/0", cause=Cause.STUDY_CHANGED):
        machine.run(second.study, gpus=[ONE], task=first.path)


def test_a_runner_that_ends_with_its_job_is_an_interruption_no_failure(machine: VirtualMachine) -> None:
    """A scheduler signals the runner and the coordinator at once; whichever is first, the pass is measured later."""
    fragile = study(experiment("fragile", fake={"pass_fault": "die"}))

    def end(event: Event) -> None:
        if isinstance(event, PassStarted):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        machine.run(fragile, gpus=[ONE], on=end)
    assert [stored.result.status for stored in machine.last.results] == ["interrupted"]
    [stored] = machine.run(fragile, gpus=[ONE]).results
    assert stored.result.status == "failed"
