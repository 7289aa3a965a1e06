"""A study in tasks, each measured by a coordinator of its own: task n is load group n, in all its restarts.

In: a `Study`, or one that `find_study` found. Out: its folder, made; a `Task` for each load group, as its own journal
tells; `collect` adds to the study's journal what its tasks have stored. A task itself is a `StudyRun` with `task`.
Must not know: what queues and starts tasks.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.checks import require_inputs
from wattdock.errors import Cause, PreflightError, StoreError
from wattdock.execution.begun import BegunStudy, begun_before
from wattdock.execution.events import notes
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.resume import stored_result
from wattdock.execution.schedule import load_groups
from wattdock.execution.study_folder import FAILED, STORED, History, StudyFolder, histories, read_journal
from wattdock.execution.study_run import StudyRun, plan_study
from wattdock.files import JOURNAL
from wattdock.host import folders
from wattdock.inputs import resolve_model
from wattdock.launch import LauncherChoice, find_runner
from wattdock.text import json_text, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.events import Emit
    from wattdock.records import snapshot
    from wattdock.store import StoredResult

__all__ = [
    "TASKS",
    "StudyFolder",
    "Task",
    "begin_tasks",
    "begun_before",
    "collect",
    "measure",
    "prepare",
    "require_tasks",
    "tasks_of",
]

# In a study's folder: a folder per task, of this name and the task's number, and their logs.
TASKS = "tasks"


@dataclass(frozen=True)
class Task:
    """One load group of a study, as far as it is measured.

    Attributes:
        number: Of the load group, from 0.
        study: Its experiments, under the study's name and settings.
        path: Its folder, which it makes itself.
    """

    number: int
    study: Study
    path: Path

    @cached_property
    def _read(self) -> tuple[BegunStudy, str]:
        file = self.path / JOURNAL
        try:
            return BegunStudy(self.path, read_journal(self.path)[0] if os.path.lexists(file) else []), ""
        except StoreError as error:
            return BegunStudy(self.path, []), str(error)

    @property
    def begun(self) -> BegunStudy:
        """Its journal, read once; without lines before it was begun, and where it cannot be read."""
        return self._read[0]

    @property
    def problem(self) -> str:
        """Why the journal cannot be read; empty where it can."""
        return self._read[1]

    @cached_property
    def histories(self) -> dict[str, History]:
        """What became of each experiment, by id."""
        return self.begun.histories(self.study)

    @property
    def failed(self) -> int:
        """How many experiments have failed."""
        return sum(history.status == FAILED for history in self.histories.values())

    def done(self, *, retry_failed: bool = False) -> int:
        """Return how many experiments have nothing left to measure."""
        return sum(history.is_done(retry_failed=retry_failed) for history in self.histories.values())

    def is_done(self, *, retry_failed: bool = False) -> bool:
        """Whether nothing is left to measure."""
        return self.done(retry_failed=retry_failed) == len(self.study.experiments)

    def results(self) -> list[StoredResult]:
        """Return the last result of each experiment, fallbacks included.

        Raises:
            StoreError: One is gone.
        """
        return [
            stored_result(history, experiment_id, self.path.parents[3])
            for experiment_id, history in histories(self.begun.lines).items()
            if history.folders
        ]


def require_tasks(study: Study, path: Path) -> list[Task]:
    """Return every task of a study that is to begin at `path`, once what its experiments name is found.

    Raises:
        ConfigError, PreflightError: Something is not.
    """
    for config in study.experiments:
        require_inputs(config)
    return tasks_of(study, path)


def begin_tasks(study: Study, output_dir: Path) -> Path:
    """Make the folder of a study that its tasks will measure, and return it.

    Raises:
        StoreError: The folder cannot be made.
    """
    fleet = study.fleet.model_dump(mode="json", exclude_defaults=True)
    with StudyFolder.create(study, output_dir, machine={}, fleet=fleet) as folder:
        (folder.path / TASKS).mkdir(0o755)
    return folder.path


def tasks_of(study: Study, path: Path) -> list[Task]:
    """Return every task of the study whose folder is `path`."""
    groups = load_groups(study.experiments)
    parts = (dataclasses.replace(study, experiments=tuple(study.experiments[at] for at in group)) for group in groups)
    return [Task(number, part, path / TASKS / str(number)) for number, part in enumerate(parts)]


def prepare(study: Study, emit: Emit) -> None:
    """Make once what the study's tasks need: models, and environments of backends whose runners are processes.

    Raises:
        ConfigError, PreflightError, LaunchError: A model cannot be fetched, or an environment cannot be made.
    """
    home, say = folders.wattdock_home(), notes(emit)
    processes = [
        config
        for config in study.experiments
        if not (config.runner_python or config.container.locked or config.launcher == "docker")
    ]
    with Interrupts(emit) as interrupts, interrupts.allowed():
        for model in {json_text(config.model): config.model for config in study.experiments}.values():
            resolve_model(model, home=home, progress=say)
        for backend, on_gpu in dict.fromkeys((config.backend, config.accelerator != "cpu") for config in processes):
            launch = LauncherChoice("process", "asked for", runner_dir=find_runner(backend))
            with launch.launcher(on_gpu=on_gpu, say=say):
                say(f"{backend}: its environment is ready")


def measure(task: Task, *, gpus: int, job: snapshot.Job | None, retry_failed: bool, emit: Emit) -> list[StoredResult]:
    """Measure on this machine what a task has left, and return all its results.

    Args:
        gpus: How many the scheduler was asked for.
        job: What it tells of the job, where one runs the task.

    Raises:
        ConfigError, PreflightError, LaunchError, StoreError: As `plan_study` and `StudyRun.run`.
        KeyboardInterrupt: It was told to end; everything measured so far is stored.
    """
    output_dir, home = task.path.parents[3], folders.wattdock_home()
    with Interrupts(emit) as interrupts, interrupts.allowed():
        plans = [
            dataclasses.replace(plan, job=job)
            for plan in plan_study(task.study, output_dir=output_dir, home=home, emit=emit)
        ]
    if gpus and (few := [plan for plan in plans if len(plan.gpus) < gpus]):
        had = pluralize(len(few[0].gpus), "GPU")
        raise PreflightError(
            f"{few[0].config.label} needs {pluralize(gpus, 'GPU')}, and this node gives it {had}", cause=Cause.NO_GPU
        )
    run = StudyRun(task.study, plans, output_dir=output_dir, home=home, task=task.path, retry_failed=retry_failed)
    run.run(emit)
    return run.results


def collect(folder: StudyFolder, tasks: Sequence[Task]) -> None:
    """Add to the study's journal each result that its tasks have stored, once; end it where all is done.

    Raises:
        StoreError: There is no room.
    """
    known = {line["folder"] for line in folder.lines if line["event"] == STORED}
    for line in (line for task in tasks for line in task.begun.lines):
        if line["event"] == STORED and line["folder"] not in known:
            folder.note(STORED, **{key: line[key] for key in ("experiment", "status", "folder")})
    if all(task.is_done() for task in tasks) and not folder.ended:
        folder.end()
    if folder.broken:
        raise folder.broken
