"""A study on a cluster: queue what is left of it, see what its tasks do, gather what they have stored."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from wattdock.execution import Interrupts
from wattdock.files import STUDIES, whole_file
from wattdock.fleet import slurm
from wattdock.fleet.script import jobs_of
from wattdock.fleet.states import states_of
from wattdock.fleet.task import Ending
from wattdock.host import folders
from wattdock.host.jobs import ask_slurm
from wattdock.inputs import resolve_model
from wattdock.launch import choose_launcher
from wattdock.launch.images import read_lock
from wattdock.study import StudyFolder, events
from wattdock.study.tasks import TASKS, begin_tasks, collect, require_tasks, tasks_of
from wattdock.text import json_text

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.fleet.states import TaskState
    from wattdock.launch import LauncherChoice
    from wattdock.store import StoredResult

# Longest wait, in seconds, for tasks that Slurm is ending and for its epilogs.
LONGEST_END_S = 120.0
# The mode of scripts, whatever the umask: a user who can change a script has it run as its owner.
SCRIPT_MODE = 0o644


class Fleet:
    """A study whose folder is made, and its tasks; `retry_failed` counts failed experiments as left to measure."""

    def __init__(self, study: Study, path: Path, *, retry_failed: bool = False) -> None:
        self._study, self.path, self._retry_failed = study, path.resolve(), retry_failed

    @classmethod
    def begin(cls, study: Study, output_dir: Path) -> Fleet:
        """Make the folder of a study that begins now.

        Raises:
            ConfigError, PreflightError: An experiment names what is not, or GPUs of one machine; Slurm's commands are
                not here; or nothing can be written to the folder of results.
            StoreError: The folder cannot be made.
        """
        # Refuses where Slurm's commands are missing.
        ask_slurm("sbatch", "--version")
        folders.require_writable(output_dir / STUDIES, setting="--output-dir")
        jobs_of(study, require_tasks(study, output_dir), path=output_dir)
        return cls(study, begin_tasks(study, output_dir))

    def submit(self, emit: events.Emit) -> None:
        """Queue every task that is neither done nor queued, and emit a note for each job.

        Raises:
            PreflightError, LaunchError: Slurm is not here, or refuses; what it took before stays queued.
                Or what the tasks need cannot be made here, where that was asked.
            StoreError: Another process submits this study, or a script cannot be written.
        """
        with StudyFolder.at(self.path):
            queued, end_s = slurm.queued(self.path), time.monotonic() + LONGEST_END_S
            # Slurm cleans up after tasks that it ends.
            while any(task.state == slurm.COMPLETING for task in queued) and time.monotonic() < end_s:
                time.sleep(1)
                queued = slurm.queued(self.path)
            waiting = {task.number for task in queued}
            tasks = [task for task in tasks_of(self._study, self.path) if task.number not in waiting]
            left = [task for task in tasks if not task.is_done(retry_failed=self._retry_failed)]
            if left and self._study.fleet.prepare == "here":
                prepare(self._study, emit)
            for job in jobs_of(self._study, left, path=self.path, retry_failed=self._retry_failed):
                script = self.path / job.file_name
                with whole_file(script) as file:
                    os.fchmod(file.fileno(), SCRIPT_MODE)
                    file.write(job.script.encode())
                emit(events.Note(f"job {slurm.submit(script)}: {job.description}, {script}"))

    def states(self) -> list[TaskState]:
        """Return what each task does.

        Raises:
            PreflightError, LaunchError: Slurm is not here, or does not answer.
        """
        # The queue first: a task that ends between the two reads counts as done.
        queued, tasks = slurm.queued(self.path), tasks_of(self._study, self.path)
        return states_of(tasks, queued, [Ending.read(task.path) for task in tasks])

    def collect(self) -> list[StoredResult]:
        """Note in the study's journal what its tasks have stored; return the study's results, in its order.

        Raises:
            StoreError: Another process works on the study, or there is no room.
        """
        tasks = tasks_of(self._study, self.path)
        with StudyFolder.at(self.path) as folder:
            collect(folder, tasks)
        found = [stored for task in tasks for stored in task.results()]
        order = {config.experiment_id: position for position, config in enumerate(self._study.experiments)}
        return sorted(found, key=lambda stored: order[stored.result.experiment_id])

    def log(self, task: int) -> Path:
        """Return where the output of a task is."""
        return self.path / TASKS / f"{task:04}.log"

    def cancel(self) -> bool:
        """End every task, waiting and running, and return whether there were any; `submit` goes on from there.

        Raises:
            PreflightError, LaunchError: Slurm is not here, or refuses.
        """
        if jobs := {task.job.partition("_")[0] for task in slurm.queued(self.path)}:
            ask_slurm("scancel", *sorted(jobs))
        return bool(jobs)


def process_choices(study: Study) -> dict[tuple[str, bool], LauncherChoice]:
    """Return how runners that are processes would start, by backend and whether on a GPU.

    Raises:
        PreflightError: A lock of packages cannot be read, or is not for the nodes' GPUs.
    """
    processes = {
        (config.backend, config.accelerator != "cpu"): config.model_copy(update={"launcher": "process"})
        for config in study.experiments
        if not config.runner_python
        and config.launcher in (("process",) if config.container.locked else ("auto", "process"))
    }
    home = folders.wattdock_home()
    return {key: choose_launcher(config, on_gpu=key[1], home=home, lock=read_lock) for key, config in processes.items()}


def prepare(study: Study, emit: events.Emit) -> None:
    """Make once what the study's tasks need: models, and environments of backends whose runners are processes.

    Raises:
        ConfigError, PreflightError, LaunchError: A model cannot be fetched, or an environment cannot be made.
    """
    home, say, choices = folders.wattdock_home(), events.notes(emit), process_choices(study)
    with Interrupts(emit) as interrupts, interrupts.interruptible():
        models = [model for config in study.experiments for model in (config.model, config.draft) if model]
        for model in {json_text(model): model for model in models}.values():
            resolve_model(model, home=home, progress=say)
        for (backend, on_gpu), choice in choices.items():
            with choice.launcher(on_gpu=on_gpu, say=say):
                say(f"{backend}: its environment is ready")
