"""What a session makes of what goes wrong around its passes, in virtual time."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.outcomes import known
from make.virtual_meter import VirtualClock
from refused import raises
from seams.host import LeaseRequest, hold
from seams.store import LOG
from seams.study import Loading, PassFinished, PassStarted, RunnerReady, UnexpectedError

from wattdock.errors import Cause, ExitCode, PreflightError, StoreError
from wattdock.records import RestartRecord, disk
from wattdock.runner import RunnerDescription

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from seams.study import Event

    from wattdock.config import Study
    from wattdock.owned_folder import OwnedFolder
    from wattdock.records import Failure

GPU, OTHER = "GPU-1", "GPU-2"
# One load group.
TWO = study(experiment("a"), experiment("b", workload={"batch_size": 4}), order="written")


def statuses(machine: VirtualMachine) -> list[tuple[str, str]]:
    return [(str(stored.result.config.name), stored.result.status) for stored in machine.last.results]


def failure(machine: VirtualMachine, planned: Study) -> Failure:
    """Return why the first experiment of a study failed."""
    return known(machine.run(planned).results[0].result.error)


def tracebacks(machine: VirtualMachine) -> int:
    """Return how many tracebacks a run has told."""
    found = [event for event in machine.emitted if isinstance(event, UnexpectedError)]
    assert all(event.traceback.startswith("Traceback") for event in found)
    return len(found)


def at(kind: type[Event], act: Callable[[], None], *, number: int = 1) -> Callable[[Event], None]:
    """Return a consumer that acts when the n-th event of a kind comes."""
    left = [number]

    def consume(event: Event) -> None:
        left[0] -= isinstance(event, kind)
        if isinstance(event, kind) and not left[0]:
            act()

    return consume


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("fault", "kind", "code"), [("die", "RunnerError", 5), ("bug", "KeyError", 1)])
def test_a_traceback_is_told_of_a_bug_only(machine: VirtualMachine, fault: str, kind: str, code: int) -> None:
    """What is no fault of wattdock's has its reason in one line."""
    error = failure(machine, study(experiment("a", fake={"pass_fault": fault})))
    assert (error.kind, error.exit_code, error.stage) == (kind, code, "warm-up 1/1")
    assert error.message.startswith("a bug in wattdock: ") == (fault == "bug")
    assert tracebacks(machine) == (fault == "bug")


def test_a_load_that_fails_fails_all_that_it_was_for(machine: VirtualMachine) -> None:
    """Another runner would fail at it as well; nothing is tried twice."""
    machine.load_fault = "die"
    machine.run(TWO)
    assert (statuses(machine), machine.launches) == ([("a", "failed"), ("b", "failed")], 1)


@pytest.mark.parametrize("other", ["batch", "closed"])
def test_an_arrival_that_the_runner_cannot_serve_is_refused_before_the_load(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """A load takes minutes; experiments with other arrivals go on."""
    described = RunnerDescription("fake", "fake", "1.0", "3.12", arrivals=("batch",))
    monkeypatch.setattr(VirtualRunner, "wait_ready", lambda *_: described)
    first = experiment("a", workload={"arrival": "closed"})
    machine.run(study(first, experiment("b", workload={"arrival": other, "batch_size": 4})))
    served = other == "batch"
    assert statuses(machine) == [("a", "failed"), ("b", "ok" if served else "failed")]
    assert "workload.arrival: closed" in known(machine.last.results[0].result.error).message
    assert ("load_s" in machine.limits) == served


class LateSignal(VirtualClock):
    """A signal comes while somebody first waits after the runner's end."""

    def __init__(self, limits: dict[str, float]) -> None:
        super().__init__()
        self._limits = limits

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if self._limits.pop("stop_s", None):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(event, timeout_s)


def test_a_runner_that_a_scheduler_ends_first_is_interrupted_and_has_not_failed(machine: VirtualMachine) -> None:
    """A scheduler signals the processes of a job one by one."""
    machine.clock = LateSignal(machine.limits)
    with pytest.raises(KeyboardInterrupt):
        machine.run(study(experiment("a", fake={"pass_fault": "die"})))
    assert statuses(machine) == [("a", "interrupted")]


def test_an_end_that_is_not_clean_takes_nothing_from_what_was_measured(machine: VirtualMachine) -> None:
    """All passes are over; it is told."""
    machine.run(study(experiment("a", fake={"unload_fault": "die"})))
    assert statuses(machine) == [("a", "ok")]
    assert any("exited with code 70" in note for note in machine.notes())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_runner_that_sees_other_gpus_than_its_own_measures_nothing(tmp_path: Path, number: int) -> None:
    """Joules of one GPU beside the tokens of another would look like a figure."""
    machine = VirtualMachine(tmp_path, {f"GPU-{n}": lambda _: 300.0 for n in range(3)})
    planned = study(experiment("a", fake={"visible_gpus": number}))
    if number == 3:
        machine.run(planned)
        assert statuses(machine) == [("a", "ok")]
    else:
        error = failure(machine, planned)
        assert (error.stage, error.exit_code) == ("load", ExitCode.RUNNER)


@pytest.mark.parametrize("moment", [Loading, RunnerReady])
def test_an_interruption_before_the_first_pass_is_that_of_the_first_experiment(
    machine: VirtualMachine, moment: type[Event]
) -> None:
    """The next one was never begun, and nobody interrupted it."""
    with pytest.raises(KeyboardInterrupt):
        machine.run(TWO, on=at(moment, interrupt))
    assert statuses(machine) == [("a", "interrupted")]


def test_an_interruption_between_two_experiments_is_of_neither(machine: VirtualMachine) -> None:
    """The one is whole and the other not begun."""
    with pytest.raises(KeyboardInterrupt):
        machine.run(TWO, on=at(PassFinished, interrupt, number=2))
    assert statuses(machine) == [("a", "ok")]


def test_a_pass_is_said_to_be_over_once_it_is_on_disk(machine: VirtualMachine) -> None:
    """Whatever kills the run right after."""
    on_disk: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, PassFinished):
            records = machine.results.glob("studies/*/records/*/record.json")
            on_disk.append(sum(len(json.loads(record.read_text())["passes"]) for record in records))

    machine.run(study(experiment("a", repeats={"passes": 3})), on=look)
    assert on_disk == [1, 2, 3]


def test_where_a_pass_cannot_be_written_down_no_other_experiment_is_begun(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one ends and is stored from memory; the error says what to do, and the study goes on from there."""

    write = disk.write

    def full(record: RestartRecord, folder: Path) -> None:
        if folder.parent.name == "records":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(record, folder)

    with monkeypatch.context() as no_room:
        no_room.setattr(disk, "write", full)
        with raises(StoreError, os.strerror(errno.ENOSPC)):
            machine.run(TWO)
    started = [event.stage for event in machine.emitted if isinstance(event, PassStarted)]
    assert started == ["warm-up 1/1", "pass 1/2", "pass 2/2"]
    assert statuses(machine) == [("a", "ok")]
    machine.run(TWO, resume=True)
    assert (statuses(machine), machine.launches) == ([("a", "ok"), ("b", "ok")], 2)


def test_a_record_that_cannot_be_read_back_costs_no_other_experiment_its_result(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with the error; what lies in the study's folder is used when it can be read again."""
    read, first = disk.read, TWO.experiments[0].experiment_id[:16]

    def unreadable(folder: OwnedFolder) -> RestartRecord:
        if folder.path.name.startswith(first):
            raise StoreError("a record is gone")
        return read(folder)

    with monkeypatch.context() as damaged:
        damaged.setattr(disk, "read", unreadable)
        with pytest.raises(StoreError):
            machine.run(TWO)
    assert statuses(machine) == [("b", "ok")]
    machine.run(TWO, resume=True)
    assert statuses(machine) == [("a", "ok"), ("b", "ok")]


class Logging(VirtualMachine):
    """Its runners write a line into their log."""

    def launch(self, spec: Any) -> VirtualRunner:
        spec.log_path.write_text(f"runner {self.launches} is ready\n")
        return super().launch(spec)


@pytest.mark.parametrize(("kind", "log"), [(Logging, "runner 0 is ready\nrunner 1 is ready\n"), (VirtualMachine, "")])
def test_each_experiment_has_the_logs_of_all_its_runners(tmp_path: Path, kind: type[VirtualMachine], log: str) -> None:
    """Two experiments share a runner in each of two restarts; where a runner wrote nothing, nothing is lost."""
    machine = kind(tmp_path / "machine", {GPU: lambda _: 300.0})
    twice: dict[str, Any] = {"repeats": {"restarts": 2}}
    machine.run(study(experiment("a", **twice), experiment("b", workload={"batch_size": 4}, **twice)))
    assert [(stored.folder / LOG).read_text() for stored in machine.last.results] == [log, log]
    assert [note for note in machine.notes() if "log" in note] == []


@pytest.mark.parametrize(("exclusive", "runs"), [("gpus", True), ("machine", False)])
def test_a_machine_that_is_to_be_alone_does_not_share_it_with_who_measures_on_another_gpu(
    machine: VirtualMachine, exclusive: Any, *, runs: bool
) -> None:
    """And it names itself to whoever comes meanwhile."""
    refusals: list[str] = []

    def come() -> None:
        with (
            pytest.raises(PreflightError) as refused,
            hold(LeaseRequest((GPU,), "gpus"), refusals.append),
        ):
            pytest.fail("a GPU that is being measured on was leased again")
        refusals.append(str(refused.value))

    planned = study(experiment("a", exclusive="gpus"), experiment("b", exclusive=exclusive, fake={"step_s": 0.2}))
    with hold(LeaseRequest(("GPU-9",), "gpus"), refusals.append):
        if not runs:
            with raises(PreflightError, "GPU-9", cause=Cause.LEASE_HELD):
                machine.run(planned)
            return
        machine.run(planned, on=at(PassStarted, come))
    [refusal] = refusals
    assert (GPU in refusal, str(os.getpid()) in refusal) == (True, True)


def test_a_bug_in_the_analysis_costs_the_figures_and_nothing_that_was_measured(
    machine: VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result says where the passes are."""

    def broken(*_: object) -> None:
        raise KeyError("power")

    monkeypatch.setattr(importlib.import_module("wattdock.execution.measure"), "audited", broken)
    error = failure(machine, TWO)
    assert statuses(machine) == [("a", "failed"), ("b", "failed")]
    assert (error.kind, error.stage, error.exit_code) == ("KeyError", "analysis", ExitCode.BUG)
    assert error.message == "a bug in wattdock: 'power'; the folders under restarts hold what was measured"
    assert [len(record.passes) for record in machine.last.results[0].restarts()] == [2]
    assert tracebacks(machine) == 2
