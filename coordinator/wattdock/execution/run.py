"""What a study has left to measure, in which order, and what of it is stored."""

from __future__ import annotations

import bisect
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wattdock.analysis import Fallback, StudyFacts
from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, PreflightError, StoreError
from wattdock.execution.context import RunContext
from wattdock.execution.failures import fallback_steps
from wattdock.execution.restore import require_same_model, require_same_prompts, restore
from wattdock.execution.schedule import CircuitBreaker, schedule
from wattdock.host import folders, leases
from wattdock.inputs import resolve_model
from wattdock.planning import eta
from wattdock.store import StoredResult, store_result
from wattdock.study import events, open_study, study_to_resume
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.config import ModelSpec, Study
    from wattdock.execution.context import MachineAccess
    from wattdock.execution.experiment import ExperimentState, Restart
    from wattdock.execution.failures import FallbackStep
    from wattdock.execution.interrupts import Interrupts
    from wattdock.execution.session import Session
    from wattdock.inputs import ModelFolder
    from wattdock.planning import ExecutionPlan
    from wattdock.records import snapshot
    from wattdock.study import EarlierStudy

# A runner that has just ended may still be on its GPU for a moment.
TEARDOWN_S, TEARDOWN_POLL_S = 5.0, 0.5
# What one session is to serve: experiments of one load group, and the number of their restart, from 0.
Served = tuple[deque["ExperimentState"], int]


@dataclass
class Measurement:
    """What a run has stored so far.

    Attributes:
        study_id: Name of the study's folder; None before it was opened.
        results: In the study's order, earlier runs' results included.
    """

    study_id: str | None = None
    results: list[StoredResult] = field(default_factory=list)


@dataclass(frozen=True)
class RunOptions:
    """What a run is told besides its study.

    Attributes:
        output_dir: Where results go, and the study's journal below it.
        home: WATTDOCK_HOME.
        resume: Continue this study, or the latest equal study that was begun before, if there is one.
        retry_failed: When resuming, measure failed experiments again.
        lock: Lock file of images; None is the one in use.
        task: The task of a larger study on a cluster that the study is; instead of `resume`.
    """

    output_dir: Path
    home: Path
    resume: bool | EarlierStudy = False
    retry_failed: bool = False
    lock: Path | None = None
    task: NodeTask | None = None

    def earlier(self, study: Study) -> EarlierStudy | None:
        """Return the study that is continued.

        Raises:
            ConfigError: It has changed, or is not the caller's.
        """
        if self.task:
            return None
        return study_to_resume(study, self.output_dir, resume=self.resume, retry_failed=self.retry_failed)

    def planned(
        self, plan: Callable[..., list[ExecutionPlan]], study: Study, say: Callable[[str], None]
    ) -> list[ExecutionPlan]:
        """Return how each experiment is run, see `planning.plan_study`."""
        plans = plan(study, output_dir=self.output_dir, home=self.home, say=say, lock=self.lock)
        return self.task.planned(plans) if self.task else plans


@dataclass(frozen=True)
class NodeTask:
    """A task of a study on a cluster, measured on this node.

    Attributes:
        path: The task's folder.
        gpus: How many GPUs the scheduler was asked for.
        job: What the scheduler tells of the job, where one runs the task.
    """

    path: Path
    gpus: int
    job: snapshot.Job | None

    def planned(self, plans: Sequence[ExecutionPlan]) -> list[ExecutionPlan]:
        """Return the plans as the job's.

        Raises:
            PreflightError: The node gives fewer GPUs.
        """
        if self.gpus and (few := [plan for plan in plans if len(plan.gpus) < self.gpus]):
            had, asked = pluralize(len(few[0].gpus), "GPU"), pluralize(self.gpus, "GPU")
            raise PreflightError(
                f"{few[0].config.label} needs {asked}, and this node gives it {had}", cause=Cause.NO_GPU
            )
        return [replace(plan, job=self.job) for plan in plans]


class Run:
    """One run of a study: the experiments that earlier runs left, and the fallbacks of those that fail.

    Args:
        plans: What was decided about each experiment, in their order.
        measurement: Receives results.
    """

    context: RunContext

    def __init__(
        self, study: Study, plans: Sequence[ExecutionPlan], options: RunOptions, measurement: Measurement
    ) -> None:
        self._study, self._options, self._measurement = study, options, measurement
        self._plans = {plan.config.experiment_id: plan for plan in plans}
        # The study's experiments that earlier runs did not complete, by position; and all, fallbacks included, that
        # have no result from this run yet.
        self._states: dict[int, ExperimentState] = {}
        self._unstored: list[ExperimentState] = []
        self._breaker = CircuitBreaker(study.stop_after_failures)
        self._fallen_back: set[str] = set()
        self._models: dict[ModelSpec, ModelFolder] = {}
        self._store_error: StoreError | None = None

    @contextmanager
    def opened(
        self, machine: MachineAccess, interrupts: Interrupts, emit: events.Emit, earlier: EarlierStudy | None
    ) -> Iterator[None]:
        """Take the leases, check that the GPUs are free, open the study's folder, and see what it holds already.

        Args:
            earlier: The study that is continued.

        Raises:
            PreflightError: The machine has changed, or others use it or its GPUs.
            StoreError: A result or the journal could not be written; raised in the end.
        """
        plans = list(self._plans.values())
        decisions = dict.fromkeys(line for plan in plans for line in (plan.decisions, *plan.warnings))
        for line in (*self._study.notes, *decisions):
            emit(events.Note(line))
        with folders.scratch_folder() as scratch, ExitStack() as stack:
            with interrupts.allowed():
                held = stack.enter_context(leases.hold(_lease_request(plans), events.notes(emit)))
                _require_free_gpus(plans, machine)
            task, output_dir = self._options.task, self._options.output_dir
            path = task.path if task else None
            folder = open_study(self._study, plans, output_dir, earlier=earlier, task=path, emit=emit)
            log = stack.enter_context(stack.enter_context(folder).event_log(emit))
            self.context = RunContext(
                machine, folder, self._options.home, scratch, held, log, interrupts, self._remaining
            )
            self._measurement.study_id = folder.study_id
            self._restore()
            resumed = folder.resumed or (False if self._options.resume else None)
            log(events.StudyStarted(folder.study_id, resumed, len(self._measurement.results), *self._remaining()))
            yield
            self._finish()

    def sessions(self) -> Iterator[Served]:
        """Yield what each session is to serve, restarts interleaved, until nothing is left to measure.

        A session takes from the queue what it served; the rest needs a fresh runner, and comes again.
        """
        yield from self._fallbacks()
        for restart in range(max(experiment.repeats.restarts for experiment in self._study.experiments)):
            for group in schedule(self._study, restart):
                states = (self._states[position] for position in group if position in self._states)
                pending = deque(state for state in states if state.wants(restart))
                while pending and not self._breaker.reason(pending[0].config.backend):
                    yield pending, restart
                    yield from self._fallbacks()
                    if self._stops():
                        return

    def note_failures(self, session: Session) -> None:
        """Count how a session ended, and give up its backend after too many failures in a row."""
        if not session.is_fallback:
            backend = session.backend
            self._breaker.note(backend, session.failure, measured=session.measured)
            if reason := self._breaker.reason(backend):
                self.context.emit(events.BackendGivenUp(backend, reason))

    def complete(self) -> list[ExperimentState]:
        """Return the experiments that have no result yet and nothing left to measure."""
        return [state for state in self._unstored if state.complete]

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
        result = result.model_copy(update={"study": facts, "fallback": state.fallback})
        # A coordinator that was killed may have stored the result without noting it in the journal.
        path = store_result(result, restarts, log=state.log_path, output_dir=folder.output_dir)
        stored = StoredResult(path, result)
        self._add_result(stored)
        folder.note_stored(stored)
        self.context.emit(events.ResultStored(state.config.label, result.experiment_id, result.status, path))

    def _restore(self) -> None:
        """Find out what earlier runs have stored and measured."""
        folder = self.context.folder
        expected_s = eta.earlier_pass_s(self._study.experiments, folder.output_dir)
        for position, (experiment_id, plan) in enumerate(self._plans.items()):
            if folder.history(experiment_id).is_done(retry_failed=self._options.retry_failed):
                self._measurement.results.append(self._stored(experiment_id))
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
                require_same_model(config, self._resolve(config.model), [environment])

    def _resolve(self, spec: ModelSpec) -> ModelFolder:
        """Return a model's folder as it was when this run first looked at it."""
        if spec not in self._models:
            with self.context.interrupts.allowed():
                say = events.notes(self.context.emit)
                self._models[spec] = resolve_model(spec, home=self.context.home, progress=say)
        return self._models[spec]

    def _stored(self, experiment_id: str) -> StoredResult:
        """Return the result of an experiment that is done, and remove its records if a killed coordinator left them."""
        stored = self.context.folder.result(experiment_id)
        self.context.folder.drop(experiment_id)
        return stored

    def _remaining(self) -> tuple[int, int, str]:
        """Return how many passes the study has left, of how many, and how long they take without starting runners."""
        work = [state.remaining() for state in self._states.values()]
        asked = sum(config.repeats.measured for config in self._study.experiments)
        return sum(experiment.passes for experiment in work), asked, eta.duration(work)

    def _finish(self) -> None:
        """Close the journal where nothing is left to do.

        Raises:
            StoreError: A result or the journal could not be written.
        """
        folder = self.context.folder
        if error := self._store_error or folder.broken:
            raise error
        if self._unstored:
            self.context.emit(events.StudyLeftUnfinished(len(self._unstored)))
        else:
            folder.end()

    def _stops(self) -> bool:
        failed = (state for state in self._states.values() if state.failure)
        return bool(self.context.folder.broken) or any(state.config.on_failure == "stop" for state in failed)

    def _fallbacks(self) -> Iterator[Served]:
        """For each failed experiment with `on_failure: fallback`, yield other settings until some work."""
        for failed in [stored.result for stored in self._measurement.results if stored.result.status == "failed"]:
            plan = self._plans.get(failed.experiment_id)
            if not plan or plan.config.on_failure != "fallback" or failed.experiment_id in self._fallen_back:
                continue
            self._fallen_back.add(failed.experiment_id)
            steps = fallback_steps(plan, failed)
            cause = (failed.error and (failed.error.cause or failed.error.kind)) or "failed"
            changes = tuple(step.change for step in steps)
            self.context.emit(events.FallbacksPlanned(plan.config.label, cause, changes))
            yield from self._serve_fallbacks(plan, steps)

    def _serve_fallbacks(self, failed: ExecutionPlan, steps: Sequence[FallbackStep]) -> Iterator[Served]:
        """Yield one fallback after the other until one works."""
        folder = self.context.folder
        for number, step in enumerate(steps, 1):
            if folder.broken:
                return
            experiment_id = step.config.experiment_id
            if experiment_id in self._plans:
                skipped = "an experiment of this study, and measured as such"
                self.context.emit(events.FallbackSkipped(step.change, skipped))
            elif (earlier := folder.history(experiment_id)).is_done(retry_failed=False):
                stored = self._stored(experiment_id)
                if stored.folder not in [result.folder for result in self._measurement.results]:
                    self._add_result(stored)
                if earlier.works:
                    return
            elif state := self._begin_fallback(failed, number, step):
                for restart in range(step.config.repeats.restarts):
                    if state.wants(restart):
                        yield deque([state]), restart
                if state.failure is None:
                    return

    def _begin_fallback(self, failed: ExecutionPlan, number: int, step: FallbackStep) -> ExperimentState | None:
        """Return the state of a fallback of a failed experiment; None where it cannot be measured."""
        # On the same GPUs, whose leases are held for the whole run.
        plan, folder = replace(failed, config=step.config), self.context.folder
        try:
            state = restore(plan, folder, resolve=self._resolve, expected_pass_s=None)
        except (ConfigError, PreflightError) as error:
            # A later resumption may be able to use the records; the other experiments are measured now.
            self.context.emit(events.FallbackSkipped(step.change, f"left unfinished: {error}"))
            return None
        state.fallback = Fallback(fallback_of=failed.config.experiment_id, step=number, change=step.change)
        self._unstored.append(state)
        return state

    def _add_result(self, stored: StoredResult) -> None:
        """Add a result at its place in the study; fallbacks follow the experiment that they replace."""
        order = list(self._plans)

        def place(stored: StoredResult) -> tuple[int, int]:
            result = stored.result
            if result.fallback:
                return order.index(result.fallback.fallback_of), result.fallback.step
            return order.index(result.experiment_id), 0

        bisect.insort(self._measurement.results, stored, key=place)


def _lease_request(plans: Sequence[ExecutionPlan]) -> leases.LeaseRequest:
    """Return all leases that these experiments need, for the whole run."""
    needs_machine = any(plan.config.exclusive == "machine" for plan in plans)
    return leases.LeaseRequest(
        names=tuple(dict.fromkeys(name for plan in plans for name in plan.lease_names)),
        exclusive="machine" if needs_machine else "gpus",
        wait_s=max(plan.config.wait_s for plan in plans),
    )


def _require_free_gpus(plans: Sequence[ExecutionPlan], machine: MachineAccess) -> None:
    """Check, once the leases are held, that nobody has taken a GPU since preflight.

    Raises:
        PreflightError: A planned GPU is in use; names by whom.
    """
    planned, clock = {gpu.uuid for plan in plans for gpu in plan.gpus}, machine.clock
    deadline_ns = clock.now_ns() + round(TEARDOWN_S * NS_PER_S)
    while planned:
        inventory = machine.inventory()
        gpus = (gpu for gpu in inventory.gpus if gpu.uuid in planned)
        occupied = [f"GPU {gpu.index}: {why}" for gpu in gpus if (why := inventory.why_occupied(gpu))]
        if not occupied:
            return
        if clock.now_ns() > deadline_ns:
            raise PreflightError("; ".join(occupied), "choose others with gpus", cause=Cause.GPU_BUSY)
        clock.sleep(TEARDOWN_POLL_S)
