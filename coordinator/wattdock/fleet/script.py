"""From a study to the scripts of its job arrays: one array for tasks of equally many GPUs. Pure."""

from __future__ import annotations

import itertools
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.execution.tasks import TASKS
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.tasks import Task

# Slurm's own limit of an array's size is 1001 unless it is raised; so a task's number is 1000 × block + place.
BLOCK = 1_000
# What runs here, started on a node; files in the current folder are no modules.
COMMAND = (sys.executable, "-P", "-m", "wattdock")
SCRIPT = """\
#!/bin/bash
# Made by `wattdock run --on slurm`: a task is a load group of {study_id}, measured by a coordinator on its node.
{options}

# A task reads what is left to do from its own journal, so it may be ended and started at any time.
export WATTDOCK_JOB="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
{setup}exec {command} fleet task {folder} "$(({first} + SLURM_ARRAY_TASK_ID))"{more}
"""


@dataclass(frozen=True)
class Job:
    """A job array.

    Attributes:
        file_name: Of its script.
        gpus: GPUs of each task.
        tasks: Their numbers.
        script: What is submitted.
    """

    file_name: str
    gpus: int
    tasks: tuple[int, ...]
    script: str

    @property
    def words(self) -> str:
        """Its tasks and their GPUs, in words."""
        return f"{pluralize(len(self.tasks), 'task')} of {pluralize(self.gpus, 'GPU')}"


def jobs_of(study: Study, tasks: Sequence[Task], *, path: Path, retry_failed: bool = False) -> list[Job]:
    """Return a job array for each number of GPUs, and at most 1000 tasks.

    Args:
        path: The study's folder, whose name is the jobs' name.
        retry_failed: Whether the tasks measure failed experiments again.

    Raises:
        PreflightError: An experiment names GPUs of one machine.
    """
    blocks: dict[tuple[int, int], list[Task]] = {}
    for task in tasks:
        blocks.setdefault((gpus_of(task), task.number // BLOCK), []).append(task)
    jobs = []
    for (gpus, block), of_block in sorted(blocks.items()):
        file_name = f"gpus-{gpus}{f'-block-{block}' if block else ''}.sh"
        options = "\n".join(f"#SBATCH {option}" for option in _options(study, path, gpus, block, of_block))
        setup = "".join(f"{line}\n" for line in study.fleet.setup)
        more = " --retry-failed" if retry_failed else ""
        words = {"command": shlex.join(COMMAND), "folder": shlex.quote(str(path)), "first": block * BLOCK, "more": more}
        script = SCRIPT.format(study_id=path.name, options=options, setup=setup, **words)
        jobs.append(Job(file_name, gpus, tuple(task.number for task in of_block), script))
    return jobs


def block_of(file_name: str) -> int:
    """Return the number of the thousand that a script of `jobs_of` holds tasks of."""
    return int(file_name.removesuffix(".sh").partition("-block-")[2] or 0)


def gpus_of(task: Task) -> int:
    """Return how many GPUs a task needs.

    Raises:
        PreflightError: An experiment names GPUs of one machine.
    """
    for config in task.study.experiments:
        if isinstance(config.gpus, list):
            names = ",".join(map(str, config.gpus))
            raise PreflightError(
                f"{config.label}: gpus: {names} are those of one machine, and Slurm chooses; "
                f"write gpus: {{count: {len(config.gpus)}}}"
            )
    return max(0 if config.accelerator == "cpu" else config.gpus_asked for config in task.study.experiments)


def _options(study: Study, path: Path, gpus: int, block: int, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield the options of sbatch; ours come last, and so win over others."""
    fleet = study.fleet
    yield from fleet.more
    for name in ("partition", "account", "time", "constraint"):
        if value := getattr(fleet, name):
            yield f"--{name}={value}"
    alone = any(config.exclusive == "machine" for task in tasks for config in task.study.experiments)
    if alone if fleet.exclusive is None else fleet.exclusive:
        yield "--exclusive"
    if gpus:
        yield f"--gres=gpu:{gpus}"
    at_once = f"%{fleet.tasks_at_once}" if fleet.tasks_at_once else ""
    yield f"--array={_ranges([task.number - block * BLOCK for task in tasks])}{at_once}"
    yield f"--job-name={path.name}"
    # Of task 12 tasks/0012.log.
    yield f"--output={shlex.quote(f'{path}/{TASKS}/{block}%3a.log')}"
    yield "--open-mode=append"
    yield "--requeue"
    yield f"--signal=B:USR1@{fleet.end_before_s}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return "0-3,7" for 0, 1, 2, 3, 7."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
