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

# An array may end at 1001, unless a cluster raises that: a task's number is 1000 × its script's thousand + its place.
THOUSAND = 1_000
# The command that runs this wattdock on a node; files in the current folder are no modules.
COMMAND = (sys.executable, "-P", "-m", "wattdock")
SCRIPT = """\
#!/bin/bash
# Made by `wattdock run --on slurm`: a task is a load group of {study_id}, measured by a coordinator on its node.
{options}

# A task reads what is left to do from its own journal, so it may be ended and started at any time.
export WATTDOCK_JOB="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
{node}{offline}{setup}# Before a time limit: a signal that comes while Python starts would kill it.
trap '' USR1
exec {command} fleet task {folder} "$(({first} + SLURM_ARRAY_TASK_ID))"{flags}
"""
PREPARE = """\
#!/bin/bash
# Made by `wattdock run --on slurm`: makes models and environments for the tasks of {study_id}, which wait for it.
{options}

{node}{setup}exec {command} fleet prepare {folder}
"""
# Whoever submitted may be gone, and that login's temporary folder with them.
NODE = "export TMPDIR=${SLURM_TMPDIR:-/tmp}\nunset XDG_RUNTIME_DIR\n"
# Where the models were fetched before, no task asks for them again.
OFFLINE = "export HF_HUB_OFFLINE=1\n"


@dataclass(frozen=True)
class Job:
    """A job array, or the job that makes what its tasks need.

    Attributes:
        file_name: Of its script.
        gpus: GPUs of each task.
        tasks: Their numbers; empty for the job that prepares.
        script: What is submitted.
    """

    file_name: str
    gpus: int
    tasks: tuple[int, ...]
    script: str

    @property
    def description(self) -> str:
        """Its tasks and their GPUs."""
        if not self.tasks:
            return "models and environments, before any task"
        return f"{pluralize(len(self.tasks), 'task')} of {pluralize(self.gpus, 'GPU')}"


def jobs_of(study: Study, tasks: Sequence[Task], *, path: Path, retry_failed: bool = False) -> list[Job]:
    """Return a job array for each number of GPUs, and at most 1000 tasks; before them the job that prepares, if any.

    Args:
        path: The study's folder, whose name is the jobs' name.
        retry_failed: Whether the tasks measure failed experiments again.

    Raises:
        PreflightError: An experiment names GPUs of one machine, or the folder's name holds a line break or its like.
    """
    if not str(path).isprintable():
        # Quotes keep a word together in shell, but not the line of an option, which is a comment to it.
        raise PreflightError(f"{str(path)!r} would not stay one line of a job's script", "name another --output-dir")
    arrays: dict[tuple[int, int], list[Task]] = {}
    for task in tasks:
        arrays.setdefault((gpus_of(task), task.number // THOUSAND), []).append(task)
    jobs, fleet = [], study.fleet
    setup = "".join(f"{line}\n" for line in fleet.setup)
    folder, command = shlex.quote(str(path)), shlex.join(COMMAND)
    words = {"study_id": path.name, "node": NODE, "setup": setup, "command": command, "folder": folder}
    if tasks and fleet.prepare == "job":
        jobs.append(Job("prepare.sh", 0, (), PREPARE.format(options=_options(study, path, "prepare.log"), **words)))
    for (gpus, thousand), of_array in sorted(arrays.items()):
        file_name = f"gpus-{gpus}{f'-thousand-{thousand}' if thousand else ''}.sh"
        flags = " --retry-failed" if retry_failed else ""
        own = {"first": thousand * THOUSAND, "flags": flags, "offline": "" if fleet.prepare == "none" else OFFLINE}
        # Of task 12 tasks/0012.log.
        options = _options(study, path, f"{thousand}%3a.log", *_of_array(study, gpus, thousand, of_array))
        script = SCRIPT.format(options=options, **own, **words)
        jobs.append(Job(file_name, gpus, tuple(task.number for task in of_array), script))
    return jobs


def thousand_of(file_name: str) -> int:
    """Return the number of the thousand that a script of `jobs_of` holds tasks of."""
    return int(file_name.removesuffix(".sh").partition("-thousand-")[2] or 0)


def gpus_of(task: Task) -> int:
    """Return how many GPUs a task needs.

    Raises:
        PreflightError: An experiment names GPUs of one machine.
    """
    for config in task.study.experiments:
        if isinstance(config.gpus, list):
            names = ",".join(map(str, config.gpus))
            raise PreflightError(
                f"{config.label}: gpus: {names} are those of one machine, and Slurm chooses",
                f"write gpus: {{count: {len(config.gpus)}}}",
            )
    return max(0 if config.accelerator == "cpu" else config.gpus_asked for config in task.study.experiments)


def _options(study: Study, path: Path, log: str, *more: str) -> str:
    """Return the lines of a job's options; ours come last, and so win over a study's."""
    settings = {name: getattr(study.fleet, name) for name in ("partition", "account", "time", "constraint")}
    named = (f"--{name}={value}" for name, value in settings.items() if value)
    output = shlex.quote(str(path / TASKS).replace("%", "%%") + f"/{log}")
    own = (f"--job-name={path.name}", f"--output={output}", "--open-mode=append", "--requeue")
    return "\n".join(f"#SBATCH {option}" for option in (*study.fleet.more, *named, *own, *more))


def _of_array(study: Study, gpus: int, thousand: int, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield the options that only an array has."""
    fleet = study.fleet
    is_alone = any(config.exclusive == "machine" for task in tasks for config in task.study.experiments)
    if is_alone if fleet.exclusive is None else fleet.exclusive:
        yield "--exclusive"
    if gpus:
        yield f"--gres=gpu:{gpus}"
    at_once = f"%{fleet.tasks_at_once}" if fleet.tasks_at_once else ""
    yield f"--array={_ranges([task.number - thousand * THOUSAND for task in tasks])}{at_once}"
    yield f"--signal=B:USR1@{fleet.end_before_s}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return "0-3,7" for 0, 1, 2, 3, 7."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
