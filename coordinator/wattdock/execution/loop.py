"""A whole study: plan, then for each restart and load group a session, and a stored result for each experiment.

Every measured pass is durable at once, and a result is stored as soon as its experiment is finished.
"""

from __future__ import annotations

import traceback
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wattdock import __version__
from wattdock.analysis import Fallback, StudyFacts, analyse, bare_result
from wattdock.checks import ExecutionPlan, audit, preflight, require_still_free
from wattdock.errors import ConfigError, ExitCode, PreflightError, StoreError
from wattdock.execution.events import Note, ResultStored, StudyStarted, notes
from wattdock.execution.failures import describe_ladder, fallback_steps
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.resume import open_study, require_same_prompts, restore, stored_result
from wattdock.execution.schedule import Breaker, Remaining, duration, earlier_pass_s, load_groups, schedule
from wattdock.execution.session import Seams, Session, Workplace
from wattdock.execution.study_folder import FAILED, GIVEN_UP, OK, STORED, UNFINISHED, History, histories
from wattdock.host import folders, leases
from wattdock.launch import NoContainersError, reap
from wattdock.records import Failure
from wattdock.store import StoredResult, store_result
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.config import Study
    from wattdock.execution.events import Emit
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.failures import Step
    from wattdock.execution.study_folder import StudyFolder
    from wattdock.records import RestartRecord


def plan_study(
    study: Study, *, output_dir: Path, home: Path, emit: Emit, lock: Path | None = None
) -> list[ExecutionPlan]:
    """Check everything that needs no runner, and decide how each experiment runs here.

    Args:
        lock: Lock file of images; None is the one in use.

    Raises:
        ConfigError, PreflightError: An experiment cannot run here; nothing was started.
        LaunchError: An engine will not remove the container of a coordinator that is gone.
    """
    with suppress(NoContainersError):
        # Left alone, these containers would be found on the GPUs.
        for name in reap().removed:
            emit(Note(f"removed container {name}: the coordinator that started it is gone"))
    plans = []
    for checked in preflight(study.experiments, output_dir=output_dir, home=home, lock=lock):
        if not isinstance(checked, ExecutionPlan):
            raise checked
        plans.append(checked)
    return plans


class StudyRun:
    """Measures the experiments of a study and stores a result for each.

    Args:
        plans: What `plan_study` decided about each experiment, in their order.
        output_dir: Where results go, and the study's journal below it.
        home: WATTDOCK_HOME.
        resume: Go on with this study where it was begun before.
        retry_failed: Then measure failed experiments again.

    Attributes:
        results: Stored so far, those of a resumed study first; readable at any time, and after any error.
        study_id: Name of the study's folder; None until `run` has one.
    """

    def __init__(
        self,
        study: Study,
        plans: Sequence[ExecutionPlan],
        *,
        output_dir: Path,
        home: Path,
        resume: bool = False,
        retry_failed: bool = False,
        seams: Seams | None = None,
    ) -> None:
        self._study, self.plans, self._output_dir, self._home = study, plans, output_dir, home
        self._resume, self._retry_failed, self._seams = resume, retry_failed, seams or Seams()
        self.results: list[StoredResult] = []
        self.study_id: str | None = None

    def run(self, emit: Emit) -> None:
        """Measure until everything is done, or an experiment has failed under `on_failure: stop`.

        Raises:
            ConfigError: The study to be resumed has changed.
            PreflightError: The machine has, or others use it or its GPUs; nothing was started.
            StoreError: A result could not be written; the message says where it is instead. The others are stored.
            KeyboardInterrupt: The run was interrupted; everything measured so far is stored.
        """
        decisions = dict.fromkeys(line for plan in self.plans for line in (plan.decisions, *plan.warnings))
        for line in (*self._study.notes, *decisions):
            emit(Note(line))
        machine = _machine_identity(self.plans)
        with folders.scratch_folder() as scratch, Interrupts(emit) as interrupts, ExitStack() as stack:
            with interrupts.allowed():
                lease_fds = stack.enter_context(leases.held(wanted_leases(self.plans), notes(emit)))
                require_still_free(self.plans)
            with open_study(self._study, self._output_dir, machine=machine, resume=self._resume) as folder:
                self.study_id = folder.study_id
                workplace = Workplace(folder, self._home, scratch, lease_fds, emit, interrupts, self._seams)
                loop = _Loop(self._study, self.plans, workplace, self._output_dir, self._restore(folder), self.results)
                passes_left, time_left = loop.left()
                resumed = folder.resumed if self._resume else None
                emit(StudyStarted(folder.study_id, resumed, len(self.results), passes_left, time_left))
                try:
                    loop.run()
                finally:
                    ids = [experiment.experiment_id for experiment in self._study.experiments]
                    self.results.sort(key=lambda stored: _position(stored.result, ids))

    def _restore(self, folder: StudyFolder) -> dict[int, ExperimentState]:
        """Return the unfinished experiments by position, and append finished ones to `results`."""
        unfinished = {}
        before = histories(folder.lines)
        expected_s = earlier_pass_s(self._study.experiments, self._output_dir)
        for position, plan in enumerate(self.plans):
            experiment_id = plan.config.experiment_id
            history = before.get(experiment_id, History())
            if history.is_done(retry_failed=self._retry_failed):
                self.results.append(stored_result(history.folders[-1], self._output_dir))
            else:
                unfinished[position] = restore(plan, folder, history, expected_pass_s=expected_s.get(experiment_id))
        if unfinished:
            configs = {plan.config.experiment_id: plan.config for plan in self.plans}
            for stored in self.results:
                sent = stored.result.environment.dataset_sha256 if stored.result.environment else None
                require_same_prompts(configs[stored.result.experiment_id], [sent])
        return unfinished


class _Loop:
    """Measures what is missing of unfinished experiments, appending each result to `results` as it is stored."""

    def __init__(
        self,
        study: Study,
        plans: Sequence[ExecutionPlan],
        workplace: Workplace,
        output_dir: Path,
        unfinished: dict[int, ExperimentState],
        results: list[StoredResult],
    ) -> None:
        self._study, self._at, self._output_dir, self._results = study, workplace, output_dir, results
        self._folder, self._emit = workplace.folder, workplace.emit
        self._plans = {plan.config.experiment_id: plan for plan in plans}
        self._states, self._unstored = unfinished, list(unfinished.values())
        self._groups = load_groups(study.experiments)
        self._breaker = Breaker(study.stop_after_failures)
        self._given_up: set[str] = set()
        self._store_errors: list[StoreError] = []
        self._sessions = 0
        # Results that failed and whose ladders of other settings are still to be walked.
        self._to_fall_back: deque[ExperimentResult] = deque()
        self._left_begun = False
        for stored in results:
            self._note_failed(stored.result)

    def run(self) -> None:
        """Measure, store, and close the journal where nothing is left."""
        try:
            self._store(state for state in self._unstored if state.complete)
            self._measure_all()
        finally:
            self._store(state for state in self._unstored if state.begun)
        if error := next(iter(self._store_errors), self._folder.broken):
            raise error
        if self._unstored:
            self._emit(Note(f"not begun: {pluralize(len(self._unstored), 'experiment')}; go on with --resume"))
        elif not self._left_begun and all(stored.result.status != UNFINISHED for stored in self._results):
            self._folder.end()

    def left(self) -> tuple[int, str]:
        """Return how many passes the study has left, and how long they take without starting runners."""
        work = [
            self._states[position].remaining() if position in self._states else Remaining(config, 0, None)
            for position, config in enumerate(self._study.experiments)
        ]
        return sum(experiment.passes for experiment in work), duration(work)

    def _measure_all(self) -> None:
        """Serve each load group in each restart, with fresh runners until none of its experiments is pending."""
        self._fall_back()
        for restart in range(max(experiment.repeats.restarts for experiment in self._study.experiments)):
            for group in schedule(self._study, self._groups, restart):
                states = [self._states[position] for position in group if position in self._states]
                pending = deque(state for state in states if state.wants(restart))
                while pending and not self._gives_up(pending[0].config.backend):
                    self._serve(pending, restart)
                    self._fall_back()
                    if self._folder.broken or self._stops():
                        return

    def _serve(self, pending: deque[ExperimentState], restart: int) -> None:
        """Let one runner serve what it can of `pending`, and store what is complete then."""
        self._sessions += 1
        states = tuple(pending)
        before = sum(len(state.measured(restart)) for state in states)
        Session(self._at, pending, restart, number=self._sessions, left=self.left).run()
        failure = next((state.failure for state in reversed(states) if state not in pending and state.failure), None)
        measured = sum(len(state.measured(restart)) for state in states) > before
        if not states[0].fallback:
            self._breaker.note(states[0].config.backend, failure, measured=measured)
        self._store(state for state in self._unstored if state.complete)

    def _gives_up(self, backend: str) -> bool:
        reason = self._breaker.reason(backend)
        if reason and backend not in self._given_up:
            self._given_up.add(backend)
            self._emit(Note(reason))
            self._folder.note(GIVEN_UP, backend=backend, reason=reason)
        return bool(reason)

    def _stops(self) -> bool:
        return any(state.failure and state.config.on_failure == "stop" for state in self._states.values())

    def _note_failed(self, result: ExperimentResult) -> None:
        plan = self._plans.get(result.experiment_id)
        if plan and result.status == FAILED and plan.config.on_failure == "fallback":
            self._to_fall_back.append(result)

    def _fall_back(self) -> None:
        """For each experiment that failed and has a ladder, measure other settings until some work."""
        while self._to_fall_back and not self._folder.broken:
            failed = self._to_fall_back.popleft()
            plan = self._plans[failed.experiment_id]
            steps = fallback_steps(plan, failed)
            self._emit(Note(describe_ladder(plan.config, failed, steps)))
            for number, step in enumerate(steps, 1):
                if self._folder.broken or self._works(failed, number, step):
                    break

    def _works(self, failed: ExperimentResult, number: int, step: Step) -> bool:
        """Measure one step of a ladder, unless it was measured before; return whether it worked."""
        experiment_id = step.config.experiment_id
        if experiment_id in self._plans:
            self._emit(Note(f"fallback {step.change}: an experiment of this study, and measured as such"))
            return False
        history = histories(self._folder.lines).get(experiment_id, History())
        if history.is_done(retry_failed=False):
            stored = stored_result(history.folders[-1], self._output_dir)
            if stored.folder not in [result.folder for result in self._results]:
                self._results.append(stored)
            return history.status == OK
        # On the same GPUs, whose leases are held for the whole run.
        plan = replace(self._plans[failed.experiment_id], config=step.config)
        try:
            state = restore(plan, self._folder, history, expected_pass_s=None)
        except (ConfigError, PreflightError) as error:
            # The records stay, for a resumption that can go on with them; other experiments are measured now.
            self._left_begun = True
            self._emit(Note(f"fallback {step.change}: left unfinished: {error}"))
            return False
        state.fallback = Fallback(fallback_of=failed.experiment_id, step=number, change=step.change)
        self._unstored.append(state)
        for restart in range(step.config.repeats.restarts):
            if state.wants(restart):
                self._serve(deque([state]), restart)
        return state.failure is None

    def _store(self, states: Iterable[ExperimentState]) -> None:
        """Analyse and store every experiment of `states`, even where one of them cannot be stored."""
        for state in tuple(states):
            self._unstored.remove(state)
            try:
                self._store_result(state)
            except StoreError as error:
                self._emit(Note(str(error)))
                self._store_errors.append(error)

    def _store_result(self, state: ExperimentState) -> None:
        restarts = state.restarts(stopped="the study ended before this experiment was complete; go on with --resume")
        result = self._analysed(state, [record for record, _ in restarts])
        # A coordinator that was killed may have stored the result without noting it.
        folder = store_result(result, restarts, log=state.log_path, output_dir=self._output_dir)
        self._results.append(StoredResult(folder, result))
        self._note_failed(result)
        self._folder.note(STORED, experiment=result.experiment_id, status=result.status, folder=folder.name)
        if result.status != UNFINISHED and not self._folder.broken:
            self._folder.drop(result.experiment_id)
        self._emit(ResultStored(state.config.label, result.experiment_id, result.status, folder))

    def _analysed(self, state: ExperimentState, restarts: list[RestartRecord]) -> ExperimentResult:
        try:
            result = analyse(state.config, restarts)
            result = result.model_copy(update={"audit": audit(result)})
        except Exception as error:  # noqa: BLE001  (what was measured is still worth storing)
            self._emit(Note(traceback.format_exc()))
            message = f"a bug in wattdock: {error}; the folders under restarts hold what was measured"
            failure = Failure(kind=type(error).__name__, message=message, stage="analysis", exit_code=int(ExitCode.BUG))
            result = bare_result(state.config, failure, started_utc=min(restart.started_utc for restart in restarts))
        study = StudyFacts(study_id=self._folder.study_id, attempt=state.earlier_results + 1)
        return result.model_copy(update={"study": study, "fallback": state.fallback})


def _position(result: ExperimentResult, ids: Sequence[str]) -> tuple[int, int]:
    """Return a result's place among all: fallbacks follow the experiment that they replace."""
    if result.fallback:
        return ids.index(result.fallback.fallback_of), result.fallback.step
    return ids.index(result.experiment_id), 0


def wanted_leases(plans: Sequence[ExecutionPlan]) -> leases.Wanted:
    """Return what these experiments need for themselves, all of it for the whole run."""
    alone = any(plan.config.exclusive == "machine" for plan in plans)
    more = f" and {len(plans) - 1} more" if len(plans) > 1 else ""
    return leases.Wanted(
        names=tuple(dict.fromkeys(name for plan in plans for name in plan.lease_names)),
        exclusive="machine" if alone else "gpus",
        experiment=plans[0].config.label + more,
        wait_s=max(plan.config.wait_s for plan in plans),
    )


def _machine_identity(plans: Sequence[ExecutionPlan]) -> dict[str, Any]:
    """Return what must not change within a study, or its figures would not be of one machine and version."""
    gpus = plans[0].inventory.gpus
    images = {f"{plan.config.backend}'s image": plan.launch.image.id for plan in plans if plan.launch.image}
    # Equal bits under another name: earlier passes would be attributed to a digest that was not checked.
    pins = {f"{plan.config.backend}'s locked digest": plan.launch.pin.repo_digest for plan in plans if plan.launch.pin}
    return {
        **images,
        **pins,
        "variables": {name: value for plan in plans for name, value in plan.variables.items()},
        "wattdock_version": __version__,
        "cpu_model": plans[0].machine.cpu_model,
        "gpu_uuids": [gpu.uuid for gpu in gpus],
        "driver_version": gpus[0].driver_version if gpus else None,
    }
