"""What a study has left to measure, in which order, and what is stored."""

from __future__ import annotations

import bisect
import random
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wattdock.analysis import StudyFacts
from wattdock.errors import StoreError
from wattdock.execution.context import RunContext
from wattdock.execution.experiment import require_same_model, require_same_prompts, restore
from wattdock.host import folders
from wattdock.inputs import resolve_model
from wattdock.planning import eta, load_groups
from wattdock.store import StoredResult, store_result
from wattdock.study import events, open_study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.config import ExperimentConfig, ModelSpec, Study
    from wattdock.execution.context import MachineAccess, Measurement, RunOptions
    from wattdock.execution.experiment import ExperimentState, Restart
    from wattdock.execution.interrupts import Interrupts
    from wattdock.host import leases
    from wattdock.inputs import ModelFolder
    from wattdock.planning import ExecutionPlan
    from wattdock.study import EarlierStudy

# What one session is to serve: experiments of one load group, and the number of their restart, from 0.
ToServe = tuple[deque["ExperimentState"], int]


class Run:
    """One run of a study: the experiments that earlier runs left, and their plans in their order."""

    context: RunContext

    def __init__(
        self, study: Study, plans: Sequence[ExecutionPlan], options: RunOptions, measurement: Measurement
    ) -> None:
        self._study, self._options, self._measurement = study, options, measurement
        self._plans = {plan.config.experiment_id: plan for plan in plans}
        # The experiments that earlier runs did not complete, by position; and those without a result from this run.
        self._states: dict[int, ExperimentState] = {}
        self._unstored: list[ExperimentState] = []
        self._models: dict[tuple[ModelSpec, ModelSpec | None, str], ModelFolder] = {}
        self._store_error: StoreError | None = None

    @contextmanager
    def opened(
        self,
        machine: MachineAccess,
        held: leases.HeldLeases,
        interrupts: Interrupts,
        emit: events.Emit,
        earlier: EarlierStudy | None,
    ) -> Iterator[None]:
        """Open the study's folder, and find out what earlier runs have stored and measured; close its journal.

        Args:
            earlier: The study that is continued.

        Raises:
            PreflightError: The machine has changed.
            ConfigError: A model or a prompts file has changed.
            StoreError: A result or the journal could not be written; raised in the end.
        """
        options, plans = self._options, list(self._plans.values())
        task = options.task.path if options.task else None
        with (
            folders.scratch_folder() as scratch,
            open_study(self._study, plans, options.output_dir, earlier=earlier, task=task, emit=emit) as folder,
            folder.event_log(emit) as log,
        ):
            self.context = RunContext(machine, folder, options.home, scratch, held, log, interrupts, self._remaining)
            self._measurement.study_id = folder.study_id
            self._restore()
            resumed = folder.resumed or (False if options.resume else None)
            log(events.StudyStarted(folder.study_id, resumed, len(self._measurement.results), *self._remaining()))
            yield
            if error := self._store_error or folder.broken:
                raise error
            if self._unstored:
                log(events.StudyLeftUnfinished(len(self._unstored)))
            else:
                folder.end()

    def sessions(self) -> Iterator[ToServe]:
        """Yield what each session is to serve, restarts interleaved, until nothing is left to measure.

        A session takes from the queue what it served; the rest needs a fresh runner, and comes again.
        """
        for restart in range(max((state.config.repeats.restarts for state in self._states.values()), default=0)):
            for group in schedule(self._study, restart):
                states = (self._states[position] for position in group if position in self._states)
                pending = deque(state for state in states if state.wants(restart))
                while pending:
                    yield pending, restart
                    failed = [state.config for state in self._states.values() if state.failure]
                    if self.context.folder.broken or any(config.on_failure == "stop" for config in failed):
                        return

    def complete(self) -> list[ExperimentState]:
        """Return the experiments that have no result yet and nothing left to measure."""
        return [state for state in self.begun() if state.complete]

    def begun(self) -> list[ExperimentState]:
        """Return the experiments that have no result yet, and that a runner has served."""
        return [state for state in self._unstored if state.begun]

    @contextmanager
    def storing(self, state: ExperimentState) -> Iterator[None]:
        """Let an experiment be stored; where that fails, the others are stored all the same, and the run fails then."""
        self._unstored.remove(state)
        try:
            yield
        except StoreError as error:
            self.context.emit(events.Note(str(error)))
            self._store_error = self._store_error or error

    def store(self, state: ExperimentState, result: ExperimentResult, restarts: Sequence[Restart]) -> None:
        """Store the result of an experiment.

        Raises:
            StoreError: It could not be written; the message says where it is instead.
        """
        folder = self.context.folder
        facts = StudyFacts(study_id=folder.study_id, attempt=state.earlier_results + 1)
        result = result.model_copy(update={"study": facts})
        # A coordinator that was killed may have stored the result without noting it in the journal.
        path = store_result(result, restarts, log=state.log_path, output_dir=folder.output_dir)
        stored = StoredResult(path, result)
        order = list(self._plans)
        bisect.insort(self._measurement.results, stored, key=lambda stored: order.index(stored.result.experiment_id))
        folder.note_stored(stored)
        self.context.emit(events.ResultStored(state.config.label, result.experiment_id, result.status, path))

    def _restore(self) -> None:
        """Find out what earlier runs have stored and measured."""
        folder = self.context.folder
        expected_s = eta.earlier_pass_s(self._study.experiments, folder.output_dir)
        for position, (experiment_id, plan) in enumerate(self._plans.items()):
            history = folder.history(experiment_id)
            if history.is_done(retry_failed=self._options.retry_failed):
                self._measurement.results.append(history.result(experiment_id, folder.output_dir))
                # A coordinator that was killed may have left the records.
                folder.drop(experiment_id)
            else:
                expected_pass_s = expected_s.get(experiment_id)
                self._states[position] = restore(plan, folder, resolve=self._resolve, expected_pass_s=expected_pass_s)
        self._unstored = list(self._states.values())
        for stored in self._measurement.results:
            environment = stored.result.environment
            config = self._plans[stored.result.experiment_id].config
            require_same_prompts(config, [environment.dataset_sha256 if environment else None])
            # To show what is done, no hub is asked.
            if environment and not config.model.on_hub:
                require_same_model(config, self._resolve(config), [environment])

    def _resolve(self, config: ExperimentConfig) -> ModelFolder:
        """Return a model's folder as it was when this run first looked at it."""
        key = config.model, config.draft, config.load_key if config.command else ""
        if key not in self._models:
            with self.context.interrupts.interruptible():
                say = events.notes(self.context.emit)
                home = self.context.home
                self._models[key] = resolve_model(config.model, home=home, progress=say, config=config)
        return self._models[key]

    def _remaining(self) -> tuple[int, int, str]:
        """Return how many passes the study has left, of how many, and how long they take without starting runners."""
        work = [state.remaining() for state in self._states.values()]
        asked = sum(config.repeats.measured for config in self._study.experiments)
        return sum(experiment.passes for experiment in work), asked, eta.duration(work)


def schedule(study: Study, restart: int) -> eta.Groups:
    """Return the load groups in the order in which restart number `restart` serves them.

    A shuffled order depends on the seed, the restart and the experiments, not on their order in the file.
    """
    groups = load_groups(study.experiments)
    if study.order == "written":
        return groups
    ids = [experiment.experiment_id for experiment in study.experiments]
    shuffler = random.Random(f"{study.seed}/{restart}")
    shuffled = []
    for group in sorted(groups, key=lambda group: min(ids[position] for position in group)):
        positions = sorted(group, key=ids.__getitem__)
        shuffler.shuffle(positions)
        shuffled.append(tuple(positions))
    shuffler.shuffle(shuffled)
    return tuple(shuffled)
