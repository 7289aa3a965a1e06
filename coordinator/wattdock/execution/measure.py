"""A measurement whole, from its study to its stored results: read this file first.

A study is planned. For each restart and load group, a session launches a runner, loads the model and waits until the
GPUs are idle; then it serves one experiment after the other: warm-up, passes, and after each pass a record on disk.
Of each experiment that is complete, the records are analysed and audited, and the result is stored.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wattdock.analysis import ExperimentResult, analyse
from wattdock.audit import audit
from wattdock.errors import ExitCode
from wattdock.execution.context import HERE
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.procedure import measured_passes
from wattdock.execution.run import Run
from wattdock.execution.session import Session
from wattdock.records import Failure
from wattdock.study import events, study_to_resume

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.context import MachineAccess
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.run import Measurement, NodeTask
    from wattdock.records import RestartRecord
    from wattdock.study import EarlierStudy


def measure(
    study: Study,
    measurement: Measurement,
    *,
    output_dir: Path,
    home: Path,
    emit: events.Emit,
    resume: bool | EarlierStudy = False,
    retry_failed: bool = False,
    lock: Path | None = None,
    task: NodeTask | None = None,
    machine: MachineAccess = HERE,
) -> None:
    """Measure what is left of a study on this machine, and store a result for each of its experiments.

    Args:
        measurement: Receives results as they are stored; valid after any error.
        output_dir: Where results go, and the study's journal below it.
        home: WATTDOCK_HOME.
        emit: Receives each event.
        resume: Continue this study, or the latest equal study that was begun before, if there is one.
        retry_failed: When resuming, measure failed experiments again.
        lock: Lock file of images; None is the one in use.
        task: The task of a larger study on a cluster that this study is; instead of `resume`.
        machine: How the run reaches clock, meter and launcher.

    Raises:
        ConfigError: The study to be resumed has changed, or an experiment names what does not exist.
        PreflightError: This machine cannot run it or has changed, or others use it or its GPUs; nothing was started.
        LaunchError: An engine will not remove the container of a coordinator that is gone.
        StoreError: A result could not be written; the message says where it is instead. The others are stored.
        KeyboardInterrupt: The run was interrupted; everything measured so far is stored.
    """
    with Interrupts(emit) as interrupts, ExitStack() as stack:
        with interrupts.allowed():
            earlier = None if task else study_to_resume(study, output_dir, resume=resume, retry_failed=retry_failed)
            plans = machine.plan(study, output_dir=output_dir, home=home, say=events.notes(emit), lock=lock)
        run = Run(study, task.planned(plans) if task else plans, measurement, retry_failed=retry_failed)
        opened = run.opened(
            machine, interrupts, output_dir, home, emit, earlier=earlier, task=task, resumes=bool(resume)
        )
        stack.enter_context(opened)
        try:
            _store(run, run.complete())
            for pending, restart in run.sessions():
                with Session(run.context, pending, restart) as session:
                    for runner, recording in session.serve():
                        for _ in measured_passes(runner, recording):
                            session.save(recording)
                run.note_failures(session)
                _store(run, run.complete())
        finally:
            _store(run, run.begun())


def _store(run: Run, experiments: Iterable[ExperimentState]) -> None:
    """Analyse, audit and store every experiment, even where one of them cannot be stored."""
    for experiment in experiments:
        restarts = experiment.restarts()
        records = [record for record, _ in restarts]
        try:
            result = analyse(experiment.config, records)
            result = result.model_copy(update={"audit": audit(result)})
        except Exception as error:  # noqa: BLE001  (what was measured is still worth storing)
            run.context.emit(events.UnexpectedError(traceback.format_exc()))
            started_utc = min(record.started_utc for record in records)
            result = ExperimentResult.bare(experiment.config, _failure(error, records), started_utc=started_utc)
        run.store(experiment, result, restarts)


def _failure(error: Exception, records: Iterable[RestartRecord]) -> Failure:
    """Return the failure of an analysis; an earlier bug may be why the records cannot be analysed."""
    failures = (record.failure for record in records if record.failure)
    message = f"a bug in wattdock: {error}; the folders under restarts hold what was measured"
    failure = Failure(kind=type(error).__name__, message=message, stage="analysis", exit_code=int(ExitCode.BUG))
    return next((earlier for earlier in failures if earlier.exit_code == ExitCode.BUG), failure)
