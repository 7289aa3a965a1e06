"""A study in tasks, each measured by a coordinator of its own: task n is load group n, in all its restarts.

In: a `Study`, or one that `find_study` found. Out: its folder, made; a `Task` for each load group, as its own journal
tells; `collect` adds to the study's journal what its tasks have stored.
Must not know: what queues and starts tasks.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.errors import StoreError
from wattdock.files import JOURNAL, STORED
from wattdock.planning import load_groups, require_inputs
from wattdock.study.find import EarlierStudy
from wattdock.study.folder import StudyFolder, results_of
from wattdock.study.journal import FAILED, History, read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.store import StoredResult

__all__ = ["TASKS", "Task", "begin_tasks", "collect", "require_tasks", "results_of", "tasks_of"]

# In a study's folder: a folder per task, of this name and the task's number, and their logs.
TASKS = "tasks"


@dataclass(frozen=True)
class Task:
    """One load group of a study, by its number from 0, as far as it is measured, and the folder that it makes."""

    number: int
    study: Study
    path: Path

    @cached_property
    def begun(self) -> EarlierStudy:
        """Its journal, read once; without lines before it was begun, and where it cannot be read."""
        try:
            lines = read_journal(self.path)[0] if os.path.lexists(self.path / JOURNAL) else []
        except StoreError as error:
            return EarlierStudy(self.path, [], problem=str(error))
        return EarlierStudy(self.path, lines)

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
        """Return the last result of each experiment.

        Raises:
            StoreError: One is gone.
        """
        return [
            history.result(experiment_id, results_of(self.path))
            for experiment_id, history in self.histories.items()
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
