"""Measure a whole study: plan, then for each restart and load group a session, and a stored result per experiment.

Each measured pass is on disk at once, and a result is stored as soon as its experiment is complete.
"""

from __future__ import annotations

import bisect
import traceback
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock.analysis import ExperimentResult, Fallback, StudyFacts
from wattdock.checks import ExecutionPlan, audited, preflight
from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError, ExitCode, PreflightError, StoreError
from wattdock.execution.event_log import EVENTS, EventLog
from wattdock.execution.events import (
    BackendGivenUp,
    FallbackSkipped,
    FallbacksPlanned,
    Note,
    ResultStored,
    StudyLeftUnfinished,
    StudyStarted,
    UnexpectedError,
    notes,
)
from wattdock.execution.failures import fallback_steps
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.resume import (
    machine_identity,
    open_study,
    open_task,
    require_same_model,
    require_same_prompts,
    restore,
    stored_result,
)
from wattdock.execution.schedule import CircuitBreaker, duration, earlier_pass_s, schedule
from wattdock.execution.session import RunDependencies, Session, SessionContext
from wattdock.execution.study_folder import FAILED, OK, RECORDS, STORED, UNFINISHED, History, histories
from wattdock.host import folders, leases
from wattdock.inputs import resolve_model
from wattdock.launch import NoContainersError, reap
from wattdock.records import Failure
from wattdock.store import StoredResult, store_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from wattdock.config import ModelSpec, Study
    from wattdock.execution.events import Emit, Event
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.failures import FallbackStep
    from wattdock.execution.study_folder import StudyFolder
    from wattdock.inputs import ModelFolder
    from wattdock.records import RestartRecord

# A runner that has just ended may still be on its GPU for a moment.
TEARDOWN_S, TEARDOWN_POLL_S = 5.0, 0.5


def plan_study(
    study: Study, *, output_dir: Path, home: Path, emit: Emit, lock: Path | None = None
) -> list[ExecutionPlan]:
    """Check everything that needs no runner, and decide how each experiment runs here; to be run, not only shown.

    Args:
        lock: Lock file of images; None is the one in use.

    Raises:
        ConfigError, PreflightError: An experiment cannot run here; nothing was started.
        LaunchError: An engine will not remove the container of a coordinator that is gone.
    """
    removed = [
        f"removed {path}: the command that was filling it is gone"
        for path in folders.remove_leftovers(output_dir, home)
    ]
    with suppress(NoContainersError):
        # Preflight would find these containers on the GPUs.
        names = reap().removed
        removed += [f"removed container {name}: the coordinator that started it is gone" for name in names]
    plans = []
    for checked in preflight(study.experiments, output_dir=output_dir, home=home, lock=lock, online=True):
        if not isinstance(checked, ExecutionPlan):
            raise checked
        plans.append(checked)
    for launch in {plan.launch.python: plan.launch for plan in plans}.values():
        launch.check()
    # An error's line is the first.
    for line in removed:
        emit(Note(line))
    return plans


class StudyRun:
    """Measures the experiments of a study and stores a result for each.

    Args:
        plans: What `plan_study` decided about each experiment, in their order.
        output_dir: Where results go, and the study's journal below it.
        home: WATTDOCK_HOME.
        resume: Continue the latest equal study that was begun before, if there is one; or the study of this name.
        retry_failed: When resuming, measure failed experiments again.
        task: Folder of the task of a larger study that this run is, begun or gone on with; instead of `resume`.
        dependencies: The clock, meter and launcher; those of this machine unless given.

    Attributes:
        results: Stored so far, in the study's order, earlier runs' results included; valid after any error.
        study_id: Name of the study's folder; None until `run` has opened it.
    """

    def __init__(
        self,
        study: Study,
        plans: Sequence[ExecutionPlan],
        *,
        output_dir: Path,
        home: Path,
        resume: bool | str = False,
        retry_failed: bool = False,
        task: Path | None = None,
        dependencies: RunDependencies | None = None,
    ) -> None:
        self._study, self.plans, self._output_dir, self._home = study, plans, output_dir, home
        self._resume, self._retry_failed, self._task = resume, retry_failed, task
        self._dependencies = dependencies or RunDependencies()
        self.results: list[StoredResult] = []
        self.study_id: str | None = None
        self._context: SessionContext
        self._plans = {plan.config.experiment_id: plan for plan in plans}
        # The study's experiments that earlier runs did not complete, by position; and all, fallbacks included, that
        # have no result from this run yet.
        self._states: dict[int, ExperimentState] = {}
        self._unstored: list[ExperimentState] = []
        self._breaker = CircuitBreaker(study.stop_after_failures)
        self._fallen_back: set[str] = set()
        self._models: dict[ModelSpec, ModelFolder] = {}
        self._store_error: StoreError | None = None

    def run(self, emit: Emit) -> None:
        """Measure until everything is done, or an experiment has failed under `on_failure: stop`.

        Raises:
            ConfigError: The study to be resumed has changed.
            PreflightError: The machine has changed, or others use it or its GPUs; nothing was started.
            StoreError: A result could not be written; the message says where it is instead. The others are stored.
            KeyboardInterrupt: The run was interrupted; everything measured so far is stored.
        """
        decisions = dict.fromkeys(line for plan in self.plans for line in (plan.decisions, *plan.warnings))
        for line in (*self._study.notes, *decisions):
            emit(Note(line))
        with self._opened(emit) as self._context:
            emit = self._context.emit
            self._restore()
            folder = self._context.folder
            resumed = folder.resumed or (False if self._resume else None)
            emit(StudyStarted(folder.study_id, resumed, len(self.results), *self._remaining()))
            try:
                self._measure()
            finally:
                self._store(state for state in self._unstored if state.begun)
            self._finish()

    def _measure(self) -> None:
        """For each restart and load group, let fresh runners serve its experiments until none is pending."""
        self._store(state for state in self._unstored if state.complete)
        self._fall_back()
        for restart in range(max(experiment.repeats.restarts for experiment in self._study.experiments)):
            for group in schedule(self._study, restart):
                states = (self._states[position] for position in group if position in self._states)
                pending = deque(state for state in states if state.wants(restart))
                while pending and not self._breaker.reason(pending[0].config.backend):
                    self._serve(pending, restart)
                    self._fall_back()
                    if self._stops():
                        return

    def _serve(self, pending: deque[ExperimentState], restart: int) -> None:
        """Let one runner serve what it can of `pending`, and store each experiment that is complete then."""
        backend, is_fallback = pending[0].config.backend, pending[0].fallback is not None
        records = Session(self._context, pending, restart).run()
        if not is_fallback:
            failure = next((record.failure for record in reversed(records) if record.failure), None)
            self._breaker.note(backend, failure, measured=any(record.passes for record in records))
            if reason := self._breaker.reason(backend):
                self._context.emit(BackendGivenUp(backend, reason))
        self._store(state for state in self._unstored if state.complete)

    @contextmanager
    def _opened(self, emit: Emit) -> Iterator[SessionContext]:
        """Take the leases, check that the GPUs are free, and open the study's folder."""
        with folders.scratch_folder() as scratch, Interrupts(emit) as interrupts, ExitStack() as stack:
            with interrupts.allowed():
                held = stack.enter_context(leases.hold(_lease_request(self.plans), notes(emit)))
                _require_free_gpus(self.plans, self._dependencies)
            with self._folder(emit) as folder:
                self.study_id = folder.study_id
                log = EventLog(folder.path / RECORDS / EVENTS)
                stack.callback(log.close)

                def told(event: Event) -> None:
                    log(event)
                    emit(event)

                yield SessionContext(
                    folder, self._home, scratch, held, told, interrupts, self._dependencies, self._remaining
                )

    def _folder(self, emit: Emit) -> StudyFolder:
        if self._task:
            return open_task(self._study, self._task, plans=self.plans, emit=emit)
        return open_study(
            self._study,
            self._output_dir,
            machine=machine_identity(self.plans),
            resume=self._resume,
            retry_failed=self._retry_failed,
        )

    def _restore(self) -> None:
        """Find out what earlier runs have stored and measured."""
        journal = histories(self._context.folder.lines)
        expected_s = earlier_pass_s(self._study.experiments, self._output_dir)
        for position, (experiment_id, plan) in enumerate(self._plans.items()):
            history = journal.get(experiment_id, History())
            if history.is_done(retry_failed=self._retry_failed):
                self.results.append(self._stored(history, experiment_id))
            else:
                self._states[position] = restore(
                    plan,
                    self._context.folder,
                    history,
                    resolve=self._resolve,
                    expected_pass_s=expected_s.get(experiment_id),
                )
        self._unstored = list(self._states.values())
        for stored in self.results:
            environment = stored.result.environment
            config = self._plans[stored.result.experiment_id].config
            require_same_prompts(config, [environment.dataset_sha256 if environment else None])
            # To show what is done, no hub is asked.
            if environment and not config.model.on_hub:
                require_same_model(config, self._resolve(config.model), [environment])

    def _resolve(self, spec: ModelSpec) -> ModelFolder:
        """Return a model's folder as it was when this run first looked at it."""
        if spec not in self._models:
            with self._context.interrupts.allowed():
                self._models[spec] = resolve_model(spec, home=self._home, progress=notes(self._context.emit))
        return self._models[spec]

    def _stored(self, history: History, experiment_id: str) -> StoredResult:
        """Return the result of an experiment that is done, and remove its records if a killed coordinator left them."""
        stored = stored_result(history, experiment_id, self._output_dir)
        self._context.folder.drop(experiment_id)
        return stored

    def _remaining(self) -> tuple[int, int, str]:
        """Return how many passes the study has left, of how many, and how long they take without starting runners."""
        work = [state.remaining() for state in self._states.values()]
        asked = sum(config.repeats.measured for config in self._study.experiments)
        return sum(experiment.passes for experiment in work), asked, duration(work)

    def _finish(self) -> None:
        """Close the journal where nothing is left to do.

        Raises:
            StoreError: A result or the journal could not be written.
        """
        folder = self._context.folder
        if error := self._store_error or folder.broken:
            raise error
        if self._unstored:
            self._context.emit(StudyLeftUnfinished(len(self._unstored)))
        else:
            folder.end()

    def _stops(self) -> bool:
        failed = (state for state in self._states.values() if state.failure)
        return bool(self._context.folder.broken) or any(state.config.on_failure == "stop" for state in failed)

    def _fall_back(self) -> None:
        """For each failed experiment with `on_failure: fallback`, measure other settings until some work."""
        for failed in [stored.result for stored in self.results if stored.result.status == FAILED]:
            plan = self._plans.get(failed.experiment_id)
            if not plan or plan.config.on_failure != "fallback" or failed.experiment_id in self._fallen_back:
                continue
            self._fallen_back.add(failed.experiment_id)
            steps = fallback_steps(plan, failed)
            cause = (failed.error and (failed.error.cause or failed.error.kind)) or "failed"
            self._context.emit(FallbacksPlanned(plan.config.label, cause, tuple(step.change for step in steps)))
            for number, step in enumerate(steps, 1):
                if self._context.folder.broken or self._works(plan, number, step):
                    break

    def _works(self, failed: ExecutionPlan, number: int, step: FallbackStep) -> bool:
        """Measure one fallback of a failed experiment, unless that was done before; return whether it worked."""
        experiment_id, folder = step.config.experiment_id, self._context.folder
        if experiment_id in self._plans:
            self._context.emit(FallbackSkipped(step.change, "an experiment of this study, and measured as such"))
            return False
        history = histories(folder.lines).get(experiment_id, History())
        if history.is_done(retry_failed=False):
            stored = self._stored(history, experiment_id)
            if stored.folder not in [result.folder for result in self.results]:
                self._add_result(stored)
            return history.status == OK
        # On the same GPUs, whose leases are held for the whole run.
        plan = replace(failed, config=step.config)
        try:
            state = restore(plan, folder, history, resolve=self._resolve, expected_pass_s=None)
        except (ConfigError, PreflightError) as error:
            # A later resumption may be able to use the records; the other experiments are measured now.
            self._context.emit(FallbackSkipped(step.change, f"left unfinished: {error}"))
            return False
        state.fallback = Fallback(fallback_of=failed.config.experiment_id, step=number, change=step.change)
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
                self._context.emit(Note(str(error)))
                self._store_error = self._store_error or error

    def _store_result(self, state: ExperimentState) -> None:
        folder = self._context.folder
        restarts = state.restarts()
        result = self._analysed(state, [record for record, _ in restarts])
        # A coordinator that was killed may have stored the result without noting it in the journal.
        path = store_result(result, restarts, log=state.log_path, output_dir=self._output_dir)
        self._add_result(StoredResult(path, result))
        folder.note(STORED, experiment=result.experiment_id, status=result.status, folder=path.name)
        if result.status != UNFINISHED and not folder.broken:
            folder.drop(result.experiment_id)
        self._context.emit(ResultStored(state.config.label, result.experiment_id, result.status, path))

    def _analysed(self, state: ExperimentState, restarts: list[RestartRecord]) -> ExperimentResult:
        try:
            result = audited(state.config, restarts)
        except Exception as error:  # noqa: BLE001  (what was measured is still worth storing)
            self._context.emit(UnexpectedError(traceback.format_exc()))
            message = f"a bug in wattdock: {error}; the folders under restarts hold what was measured"
            failure = Failure(kind=type(error).__name__, message=message, stage="analysis", exit_code=int(ExitCode.BUG))
            # An earlier bug may be why the records cannot be analysed.
            failures = (restart.failure for restart in restarts if restart.failure)
            failure = next((earlier for earlier in failures if earlier.exit_code == ExitCode.BUG), failure)
            started_utc = min(restart.started_utc for restart in restarts)
            result = ExperimentResult.bare(state.config, failure, started_utc=started_utc)
        study = StudyFacts(study_id=self._context.folder.study_id, attempt=state.earlier_results + 1)
        return result.model_copy(update={"study": study, "fallback": state.fallback})

    def _add_result(self, stored: StoredResult) -> None:
        """Add a result at its place in the study; fallbacks follow the experiment that they replace."""
        order = list(self._plans)

        def place(stored: StoredResult) -> tuple[int, int]:
            result = stored.result
            if result.fallback:
                return order.index(result.fallback.fallback_of), result.fallback.step
            return order.index(result.experiment_id), 0

        bisect.insort(self.results, stored, key=place)


def _lease_request(plans: Sequence[ExecutionPlan]) -> leases.LeaseRequest:
    """Return all leases that these experiments need, for the whole run."""
    needs_machine = any(plan.config.exclusive == "machine" for plan in plans)
    return leases.LeaseRequest(
        names=tuple(dict.fromkeys(name for plan in plans for name in plan.lease_names)),
        exclusive="machine" if needs_machine else "gpus",
        wait_s=max(plan.config.wait_s for plan in plans),
    )


def _require_free_gpus(plans: Sequence[ExecutionPlan], dependencies: RunDependencies) -> None:
    """Check, once the leases are held, that nobody has taken a GPU since preflight.

    Raises:
        PreflightError: A planned GPU is in use; names by whom.
    """
    planned = {gpu.uuid for plan in plans for gpu in plan.gpus}
    clock = dependencies.clock
    deadline_ns = clock.now_ns() + round(TEARDOWN_S * NS_PER_S)
    while planned:
        inventory = dependencies.inventory()
        gpus = (gpu for gpu in inventory.gpus if gpu.uuid in planned)
        occupied = [f"GPU {gpu.index}: {why}" for gpu in gpus if (why := inventory.why_occupied(gpu))]
        if not occupied:
            return
        if clock.now_ns() > deadline_ns:
            raise PreflightError(f"{'; '.join(occupied)}; choose others with gpus")
        clock.sleep(TEARDOWN_POLL_S)
