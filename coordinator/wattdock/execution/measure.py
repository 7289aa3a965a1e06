"""A measurement whole, from its study to its stored results: read this file first.

Each step, and the file that does it:

- `context`: remove what dead runs left, plan every experiment, and lease the GPUs for the whole run.
- `run`: open the study's folder; for each restart, and in it for each load group, say which experiments are left.
- `session`: start the meter, get the model, and serve these experiments one after the other on one runner; an error
  becomes an experiment's failure (`failures`).
- `loaded`: make the runner's environment, meter the GPUs without a model, launch a runner, load the model, and meter
  the idle GPUs where `idle` asks for it.
- `evaluation`: ask the model the questions of `quality`, after the passes of all experiments of the session.
- `procedure`: warm up, and measure the passes; `analysis/windows` says when a pass with a lead-in is long enough, and
  which part of a pass counts.
- `experiment`: save a record, with a snapshot of the environment, after each pass and as the session ends.
- Here: after each session, analyse and audit the records of the experiments that are complete, and store their
  results.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wattdock.analysis import ExperimentResult
from wattdock.audit import audited
from wattdock.errors import ExitCode
from wattdock.execution.context import HERE, leased
from wattdock.execution.failures import failure_of
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.procedure import measured_passes
from wattdock.execution.run import Run
from wattdock.execution.session import Session
from wattdock.study import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.config import Study
    from wattdock.execution.context import MachineAccess, Measurement, RunOptions
    from wattdock.execution.experiment import ExperimentState


def measure(
    study: Study, options: RunOptions, measurement: Measurement, *, emit: events.Emit, machine: MachineAccess = HERE
) -> None:
    """Measure what is left of a study on this machine, and store a result for each of its experiments.

    Args:
        measurement: Receives results as they are stored; valid after any error.
        emit: Receives each event.
        machine: How the run reaches clock, meter and launcher.

    Raises:
        ConfigError: The study to be resumed has changed, or an experiment names what does not exist.
        PreflightError: This machine cannot run it or has changed, or others use it or its GPUs; nothing was started.
        LaunchError: An engine will not remove the container of a coordinator that is gone.
        StoreError: A result could not be written; the message says where it is instead. The others are stored.
        KeyboardInterrupt: The run was interrupted; everything measured so far is stored.
    """
    with Interrupts(emit) as interrupts, ExitStack() as stack:
        with interrupts.interruptible():
            earlier = options.earlier(study)
            plans = options.planned(machine.plan, study, events.notes(emit))
            held = stack.enter_context(leased(plans, machine, emit))
        run = Run(study, plans, options, measurement)
        stack.enter_context(run.opened(machine, held, interrupts, emit, earlier))
        try:
            _store(run, run.complete())
            for pending, restart in run.sessions():
                with Session(run.context, pending, restart) as session:
                    for runner, recording in session.loaded_experiments():
                        for _ in measured_passes(runner, recording):
                            session.save()
                _store(run, run.complete())
        finally:
            _store(run, run.begun())


def _store(run: Run, experiments: Iterable[ExperimentState]) -> None:
    """Analyse, audit and store every experiment, even where one of them cannot be read back or stored."""
    for experiment in experiments:
        with run.storing(experiment):
            restarts = experiment.restart_records()
            records = [record for record, _ in restarts]
            try:
                result = audited(experiment.config, records)
            except Exception as error:  # noqa: BLE001  (what was measured is still worth storing)
                run.context.emit(events.UnexpectedError(traceback.format_exc()))
                started_utc = min(record.started_utc for record in records)
                # An earlier bug may be why the records cannot be analysed.
                failures = [record.failure for record in records if record.failure]
                earlier = (failure for failure in failures if failure.exit_code == ExitCode.BUG)
                failure = next(earlier, failure_of(error, "analysis"))
                result = ExperimentResult.bare(experiment.config, failure, started_utc=started_utc)
            run.store(experiment, result, restarts)
