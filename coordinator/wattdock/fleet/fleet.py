"""A study on a cluster: queue what is left of it, see what its tasks do, gather what they have stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.execution.tasks import TASKS, StudyFolder, begin_tasks, collect, prepare, tasks_of
from wattdock.files import write_whole
from wattdock.fleet import slurm
from wattdock.fleet.script import gpus_of, jobs_of
from wattdock.fleet.states import states_of
from wattdock.fleet.task import Ending
from wattdock.store import find_results

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution import events
    from wattdock.fleet.states import TaskState
    from wattdock.store import StoredResult


class Fleet:
    """A study whose folder is made, and its tasks.

    Args:
        path: The study's folder.
        retry_failed: Whether failed experiments count as left to measure.
    """

    def __init__(self, study: Study, path: Path, *, retry_failed: bool = False) -> None:
        self._study, self.path, self._retry_failed = study, path.resolve(), retry_failed

    @classmethod
    def begin(cls, study: Study, output_dir: Path) -> Fleet:
        """Make the folder of a study that begins now.

        Raises:
            PreflightError: An experiment names GPUs of one machine, or Slurm's commands are not here.
            StoreError: The folder cannot be made.
        """
        slurm.check()
        for task in tasks_of(study, output_dir):
            gpus_of(task)
        return cls(study, begin_tasks(study, output_dir))

    def submit(self, emit: events.Emit) -> list[str]:
        """Queue every task that is neither done nor queued; return a line for each job.

        Raises:
            ConfigError, PreflightError, LaunchError: Slurm is not here, or refuses; what it took before stays queued.
                Or what the tasks need cannot be made here, where that was asked.
            StoreError: Another process submits this study, or a script cannot be written.
        """
        lines, before = [], None
        with StudyFolder.at(self.path):
            waiting = {task.number for task in slurm.queued(self.path)}
            tasks = tasks_of(self._study, self.path)
            left = [
                task
                for task in tasks
                if task.number not in waiting and not task.is_done(retry_failed=self._retry_failed)
            ]
            if left and self._study.fleet.prepare == "here":
                prepare(self._study, emit)
            for job in jobs_of(self._study, left, path=self.path, retry_failed=self._retry_failed):
                script = self.path / job.file_name
                write_whole(script, job.script.encode())
                number = slurm.submit(script, after=before)
                before = before if job.tasks else number
                lines.append(f"job {number}: {job.words}, {script}")
        return lines

    def states(self) -> list[TaskState]:
        """Return what each task does.

        Raises:
            PreflightError, LaunchError: Slurm is not here, or does not answer.
            StoreError: A task's journal cannot be read.
        """
        # In this order: a task that ends between the two is done.
        queued = slurm.queued(self.path)
        tasks = tasks_of(self._study, self.path)
        before = Ending.read(self.path / TASKS)
        endings = [Ending.read(task.begun.path) or (None if task.begun.lines else before) for task in tasks]
        return states_of(tasks, queued, endings)

    def collect(self) -> list[StoredResult]:
        """Note in the study's journal what its tasks have stored; return the study's results, in its order.

        Raises:
            StoreError: Another process works on the study, or there is no room.
        """
        tasks = tasks_of(self._study, self.path)
        with StudyFolder.at(self.path) as folder:
            collect(folder, tasks)
        if not any(history.folders for task in tasks for history in task.histories.values()):
            return []
        found = find_results([str(self.path)], self.path.parents[1], lambda bundle: bundle)
        order = {config.experiment_id: place for place, config in enumerate(self._study.experiments)}

        def place(stored: StoredResult) -> int:
            fallback = stored.result.fallback
            return order[fallback.fallback_of if fallback else stored.result.experiment_id]

        return sorted(found, key=place)

    def log(self, task: int) -> Path:
        """Return where the output of a task is."""
        return self.path / TASKS / f"{task:04}.log"

    def cancel(self) -> None:
        """End every task, waiting and running; what was measured stays, and `submit` goes on from there.

        Raises:
            PreflightError, LaunchError: Slurm is not here, or refuses.
        """
        if jobs := {task.job for task in slurm.queued(self.path)}:
            slurm.cancel(sorted(jobs))
