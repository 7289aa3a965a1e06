"""The loop: for restart → for load group → one attempt at a time → merge → store.

With `attempt`, the only place that makes attempts. Every measured pass is durable at once, and a row is stored as soon
as its experiment is finished.
"""

from __future__ import annotations

import traceback
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wattdock import __version__
from wattdock.analysis import Fallback, StudyFacts, analyse, bare_result
from wattdock.checks import ExecutionPlan, audit, preflight, require_still_free
from wattdock.errors import ConfigError, ExitCode, PreflightError, StoreError
from wattdock.execution.attempt import Attempt
from wattdock.execution.breaker import Breaker
from wattdock.execution.eta import Work, duration
from wattdock.execution.fallbacks import circumstances, ladder, stated
from wattdock.execution.history import (
    FAILED,
    OK,
    Past,
    earlier_costs,
    pasts,
    require_same_prompts,
    restore,
    stored_result,
)
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.resume import open_study
from wattdock.execution.schedule import load_groups, schedule
from wattdock.execution.study_folder import GIVEN_UP, STORED
from wattdock.host import folders, leases
from wattdock.launch import NoContainersError, reap
from wattdock.records import Failure
from wattdock.store import RESTARTS, find_stored, store
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from wattdock.analysis import AtRest, ExperimentResult
    from wattdock.config import Study
    from wattdock.execution.fallbacks import Step
    from wattdock.execution.progress import Progress
    from wattdock.execution.row import Row
    from wattdock.execution.study_folder import StudyFolder
    from wattdock.records import RestartRecord


@dataclass(frozen=True)
class Stored:
    """One finished row and the folder that holds it."""

    result: ExperimentResult
    folder: Path


class Run:
    """Measures the experiments of a study and stores a row for each.

    Attributes:
        ready: What was decided about each experiment, in the order given.
        stored: The rows so far, those of a resumed study first; readable at any time, and after any error.
        study_id: Name of the study's folder; None until `measure` has one.
    """

    def __init__(
        self, study: Study, *, output_dir: Path, home: Path, resume: bool = False, retry_failed: bool = False
    ) -> None:
        """Check everything that needs no runner.

        Args:
            study: What to measure.
            output_dir: Where rows go, and the study's journal below it.
            home: WATTDOCK_HOME.
            resume: Go on with this study where it was begun before.
            retry_failed: Then measure what has failed again.

        Raises:
            ConfigError, PreflightError: One of the experiments cannot be, or cannot run here; nothing was started.
            LaunchError: An engine will not remove the container of a coordinator that is gone.
        """
        self._study, self._output_dir, self._home = study, output_dir, home
        self._resume, self._retry_failed = resume, retry_failed
        if study.invalid:
            first, count = study.invalid[0], len(study.invalid)
            raise ConfigError(
                f"{count} of {count + len(study.experiments)} points cannot be experiments; the first, {first.name}: "
                f"{first.reason}; leave them out with `exclude:` (`wattdock plan` shows them all)"
            )
        # They would be found on the GPUs.
        self._reaped = _reaped()
        self.ready: list[ExecutionPlan] = []
        for one in preflight(study.experiments, output_dir=output_dir, home=home):
            if not isinstance(one, ExecutionPlan):
                raise one
            self.ready.append(one)
        self.stored: list[Stored] = []
        self.study_id: str | None = None

    def measure(self, progress: Progress) -> None:
        """Measure until all is done, or one has failed under `on_failure: stop`.

        Raises:
            ConfigError: What is to be resumed has changed.
            PreflightError: The machine has, or others measure on it, or on the GPUs chosen; nothing was started.
            StoreError: A row could not be written; the message says where it is instead. The others are stored.
            KeyboardInterrupt: As soon as everything measured so far is stored.
        """
        decisions = dict.fromkeys(line for one in self.ready for line in (one.decisions, *one.warnings))
        for line in (*self._study.notes, *decisions):
            progress.say(line)
        for name in self._reaped:
            progress.say(f"removed container {name}: the coordinator that started it is gone")
        facts = _machine_facts(self.ready)
        with folders.scratch_folder() as scratch, Interrupts(progress.say) as interrupts, ExitStack() as stack:
            with interrupts.allowed():
                lease_fds = stack.enter_context(leases.held(wanted_leases(self.ready), progress.say))
                require_still_free(self.ready)
            with open_study(self._study, self._output_dir, machine=facts, resume=self._resume) as folder:
                self.study_id = folder.study_id
                where = Surroundings(folder, self._output_dir, self._home, scratch, lease_fds)
                loop = _Loop(self._study, self.ready, self._restore(folder), where, progress, self.stored)
                self._run(loop, folder, progress, interrupts)

    def _run(self, loop: _Loop, folder: StudyFolder, progress: Progress, interrupts: Interrupts) -> None:
        if self._resume:
            begun = f"{folder.study_id}: {pluralize(len(self.stored), 'experiment')} done before"
            new = f"nothing to resume, begun as {folder.study_id}"
            progress.say(f"{begun if folder.resumed else new}; {loop.standing()}")
        try:
            loop.run(interrupts)
        finally:
            place = {one.experiment_id: number for number, one in enumerate(self._study.experiments)}
            self.stored.sort(key=lambda one: _position(one.result, place))

    def _restore(self, folder: StudyFolder) -> dict[int, Row]:
        """Return the rows that are not done, by position; those that are become `stored`."""
        rows = {}
        before = pasts(folder.lines)
        expected = earlier_costs(self._study.experiments, self._output_dir)
        for position, ready in enumerate(self.ready):
            experiment_id = ready.config.experiment_id
            past = before.get(experiment_id, Past())
            if past.is_done(retry_failed=self._retry_failed):
                self.stored.append(Stored(*stored_result(past.folders[-1], self._output_dir)))
            else:
                rows[position] = restore(ready, folder, past, expected=expected.get(experiment_id))
        if rows:
            configs = {one.config.experiment_id: one.config for one in self.ready}
            for done in self.stored:
                sent = done.result.environment.dataset_sha256 if done.result.environment else None
                require_same_prompts(configs[done.result.experiment_id], [sent])
        return rows


@dataclass(frozen=True)
class Surroundings:
    """Where the loop works: the study's folder, the results', WATTDOCK_HOME, a folder of its own, leases it holds."""

    folder: StudyFolder
    output_dir: Path
    home: Path
    scratch: Path
    lease_fds: tuple[int, ...]


class _Loop:
    """Measures what is missing of `rows`, adding each row to `stored` as it is finished."""

    def __init__(
        self,
        study: Study,
        ready: Sequence[ExecutionPlan],
        rows: dict[int, Row],
        where: Surroundings,
        progress: Progress,
        stored: list[Stored],
    ) -> None:
        self._study, self._rows, self._where, self._folder = study, rows, where, where.folder
        self._progress, self._stored = progress, stored
        self._groups = load_groups(study.experiments)
        self._unstored = list(rows.values())
        self._breaker = Breaker(study.stop_after_failures)
        self._given_up: set[str] = set()
        self._store_errors: list[StoreError] = []
        self._number = 0
        self._ready = {one.config.experiment_id: one for one in ready}
        self._fallen: deque[ExperimentResult] = deque()
        self._left_begun = False
        self._first_rest: dict[str, AtRest] = {}
        for one in stored:
            self._note_fallen(one.result)

    def run(self, interrupts: Interrupts) -> None:
        """Measure, store, and close the journal where nothing is left."""
        try:
            self._store(row for row in self._unstored if row.complete)
            self._attempts(interrupts)
        finally:
            self._store(row for row in self._unstored if row.begun)
        if error := next(iter(self._store_errors), self._folder.broken):
            raise error
        if self._unstored:
            self._progress.say(f"not begun: {pluralize(len(self._unstored), 'experiment')}; go on with --resume")
        elif not self._left_begun and all(one.result.status != "interrupted" for one in self._stored):
            self._folder.end()

    def standing(self) -> str:
        """Return how much is left, in words."""
        rows, experiments = self._rows, self._study.experiments
        work = [rows[place].work() if place in rows else Work(one, (), None) for place, one in enumerate(experiments)]
        passes = sum(sum(one.passes_left) for one in work)
        return f"left: {pluralize(passes, 'pass', 'passes')}, {duration(work, self._groups)}"

    def _attempts(self, interrupts: Interrupts) -> None:
        self._fall_back(interrupts)
        for restart in range(max(one.repeats.restarts for one in self._study.experiments)):
            for group in schedule(self._study, self._groups, restart):
                members = [self._rows[one] for one in group if one in self._rows]
                pending = deque(row for row in members if row.wants(restart))
                while pending and not self._gives_up(pending[0].config.backend):
                    self._attempt(pending, restart, interrupts)
                    self._fall_back(interrupts)
                    if self._folder.broken or self._stops():
                        return

    def _attempt(self, pending: deque[Row], restart: int, interrupts: Interrupts) -> None:
        self._number += 1
        rows = tuple(pending)
        before = sum(len(row.measured(restart)) for row in rows)
        attempt = Attempt(
            pending,
            restart,
            home=self._where.home,
            log=self._where.scratch / f"{self._number}.log",
            progress=self._progress,
            standing=self.standing,
            lease_fds=self._where.lease_fds,
            first_rest=self._first_rest,
        )
        attempt.run(interrupts)
        failure = next((row.failure for row in reversed(rows) if row not in pending and row.failure), None)
        measured = sum(len(row.measured(restart)) for row in rows) > before
        if not rows[0].fallback:
            self._breaker.note(rows[0].config.backend, failure, measured=measured)
        self._store(row for row in self._unstored if row.complete)

    def _note_fallen(self, result: ExperimentResult) -> None:
        ready = self._ready.get(result.experiment_id)
        if ready and result.status == FAILED and ready.config.on_failure == "fallback":
            self._fallen.append(result)

    def _fall_back(self, interrupts: Interrupts) -> None:
        """For each that was asked for and failed, measure other settings until some work."""
        while self._fallen and not self._folder.broken:
            asked = self._fallen.popleft()
            ready = self._ready[asked.experiment_id]
            steps = ladder(ready.config, circumstances(ready, asked))
            self._progress.say(stated(ready.config, asked, steps))
            for number, step in enumerate(steps, 1):
                if self._folder.broken or self._works(asked, number, step, interrupts):
                    break

    def _works(self, asked: ExperimentResult, number: int, step: Step, interrupts: Interrupts) -> bool:
        """Measure one step of the ladder, unless it was before; return whether it worked."""
        experiment_id = step.config.experiment_id
        if experiment_id in self._ready:
            self._progress.say(f"fallback {step.change}: this study asks for it, too; it is measured as itself")
            return False
        past = pasts(self._folder.lines).get(experiment_id, Past())
        if past.is_done(retry_failed=False):
            folder = self._where.output_dir / past.folders[-1]
            if folder not in [one.folder for one in self._stored]:
                self._stored.append(Stored(*stored_result(folder.name, self._where.output_dir)))
            return past.status == OK
        # On the same GPUs, which are held for the whole run.
        ready = replace(self._ready[asked.experiment_id], config=step.config)
        try:
            row = restore(ready, self._folder, past, expected=None)
        except (ConfigError, PreflightError) as error:
            # Its record stays, for a resumption that can go on with it; what else was asked for is measured now.
            self._left_begun = True
            self._progress.say(f"fallback {step.change}: left as it was begun: {error}")
            return False
        row.fallback = Fallback(fallback_of=asked.experiment_id, step=number, change=step.change)
        self._unstored.append(row)
        for restart in range(step.config.repeats.restarts):
            if row.wants(restart):
                self._attempt(deque([row]), restart, interrupts)
        return row.failure is None

    def _gives_up(self, backend: str) -> bool:
        reason = self._breaker.reason(backend)
        if reason and backend not in self._given_up:
            self._given_up.add(backend)
            self._progress.say(reason)
            self._folder.note(GIVEN_UP, backend=backend, reason=reason)
        return bool(reason)

    def _stops(self) -> bool:
        return any(row.failure and row.config.on_failure == "stop" for row in self._rows.values())

    def _store(self, rows: Iterable[Row]) -> None:
        """Merge and store every row, even where one of them cannot be stored."""
        for row in tuple(rows):
            self._unstored.remove(row)
            try:
                self._store_one(row)
            except StoreError as error:
                self._progress.say(str(error))
                self._store_errors.append(error)

    def _store_one(self, row: Row) -> None:
        parts = row.restarts(stopped="the study ended before this experiment was complete; go on with --resume")
        result = self._analysed(row, [record for record, _ in parts])
        # A coordinator that was killed may have stored it and not come to say so.
        stored = find_stored(result, self._where.output_dir)
        folder = stored or store(result, parts, log=row.log_path, output_dir=self._where.output_dir)
        self._stored.append(Stored(result, folder))
        self._note_fallen(result)
        self._folder.note(STORED, experiment=result.experiment_id, status=result.status, folder=folder.name)
        if result.status != "interrupted" and not self._folder.broken:
            self._folder.drop(result.experiment_id)
        self._progress.say(f"{row.config.label}: {result.status}, stored in {folder}")

    def _analysed(self, row: Row, restarts: list[RestartRecord]) -> ExperimentResult:
        facts = StudyFacts(study_id=self._folder.study_id, attempt=row.earlier_rows + 1)
        try:
            result = analyse(row.config, restarts)
            result = result.model_copy(update={"audit": audit(result)})
        except Exception as error:  # noqa: BLE001  (what was measured is still worth storing)
            self._progress.say(traceback.format_exc())
            message = f"a bug in wattdock: {error}; the folders under {RESTARTS} hold what was measured"
            failure = Failure(kind=type(error).__name__, message=message, stage="analysis", exit_code=int(ExitCode.BUG))
            result = bare_result(row.config, failure, started_utc=min(restart.started_utc for restart in restarts))
        return result.model_copy(update={"study": facts, "fallback": row.fallback})


def _position(result: ExperimentResult, place: dict[str, int]) -> tuple[int, int]:
    """Where a row stands among all: a fallback behind what was asked for."""
    if result.fallback:
        return place[result.fallback.fallback_of], result.fallback.step
    return place[result.experiment_id], 0


def _reaped() -> tuple[str, ...]:
    """Remove what dead coordinators left, where an engine answers; return the containers' names."""
    with suppress(NoContainersError):
        return reap().removed
    return ()


def wanted_leases(ready: Sequence[ExecutionPlan]) -> leases.Wanted:
    """Return what these experiments need for themselves, all of it for the whole run."""
    alone = any(one.config.exclusive == "machine" for one in ready)
    more = f" and {len(ready) - 1} more" if len(ready) > 1 else ""
    return leases.Wanted(
        names=tuple(dict.fromkeys(name for one in ready for name in one.lease_names)),
        exclusive="machine" if alone else "gpus",
        experiment=ready[0].config.label + more,
        wait_s=max(one.config.wait_s for one in ready),
    )


def _machine_facts(ready: Sequence[ExecutionPlan]) -> dict[str, Any]:
    """Return what must not change within a study, or its figures would not be of one thing."""
    gpus = ready[0].inventory.gpus
    images = {f"{one.config.backend}'s image": one.launch.containers.image.id for one in ready if one.launch.containers}
    # Equal bits under another name: passes before would be called by a digest that nobody had held them against.
    pins = {f"{one.config.backend}'s locked digest": one.launch.pin.repo_digest for one in ready if one.launch.pin}
    return {
        **images,
        **pins,
        "variables": {name: value for one in ready for name, value in one.variables.items()},
        "wattdock_version": __version__,
        "cpu_model": ready[0].machine.cpu_model,
        "gpu_uuids": [gpu.uuid for gpu in gpus],
        "driver_version": gpus[0].driver_version if gpus else None,
    }
