"""From a study to the scripts of its job arrays: one array for tasks of equally many GPUs. Pure."""

from __future__ import annotations

import itertools
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.study.tasks import TASKS
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.study.tasks import Task

# How many tasks a job array may have unless a cluster raises that (MaxArraySize).
MOST_TASKS = 1_000
# The command that runs this wattdock on a node; files in the current folder are no modules.
COMMAND = (sys.executable, "-P", "-m", "wattdock")
SCRIPT = """\
#!/bin/bash
# Made by `wattdock run --on slurm`: a task is a load group of {study_id}, measured by a coordinator on its node.
{options}

# A task reads what is left to do from its own journal, so it may be ended and started at any time.
export WATTDOCK_JOB="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
# The submitter's login may have ended, and its temporary folder with it.
export TMPDIR=${{SLURM_TMPDIR:-/tmp}}
unset XDG_RUNTIME_DIR
{offline}{setup}# Before a time limit: a signal that comes while Python starts would kill it.
trap '' USR1
exec {command} fleet task {folder} "$SLURM_ARRAY_TASK_ID"{flags}
"""
# Whether models were fetched before: then no task asks a hub for them.
OFFLINE = "export HF_HUB_OFFLINE=1\n"


@dataclass(frozen=True)
class Job:
    """A job array.

    Attributes:
        file_name: Name of its script.
        nodes: Nodes of each task.
        gpus: GPUs of each node of a task.
        tasks: Numbers of its tasks.
        script: The script that is submitted.
    """

    file_name: str
    nodes: int
    gpus: int
    tasks: tuple[int, ...]
    script: str

    @property
    def description(self) -> str:
        """Its tasks and their GPUs."""
        where = f"{self.nodes} nodes with " if self.nodes > 1 else ""
        return f"{pluralize(len(self.tasks), 'task')} of {where}{pluralize(self.gpus, 'GPU')}"


def jobs_of(study: Study, tasks: Sequence[Task], *, path: Path, retry_failed: bool = False) -> list[Job]:
    """Return a job array for each number of nodes and GPUs that tasks need.

    Args:
        path: The study's folder, whose name is the jobs' name.
        retry_failed: Whether the tasks measure failed experiments again.

    Raises:
        PreflightError: An experiment names GPUs of one machine, the folder's name is not printable, or there are too
            many tasks.
    """
    if not str(path).isprintable():
        # Quotes keep a word together in shell, but not the line of an option, which is a comment to it.
        raise PreflightError(f"{str(path)!r} would not stay one line of a job's script", "name another --output-dir")
    if tasks and tasks[-1].number >= MOST_TASKS:
        raise PreflightError(
            f"{tasks[-1].number + 1} load groups are more than the {MOST_TASKS} of an array", "split the study"
        )
    arrays: dict[tuple[int, int], list[Task]] = {}
    for task in tasks:
        # All experiments of a load group are spread alike.
        arrays.setdefault((task.study.experiments[0].node_count, gpus_of(task)), []).append(task)
    jobs = []
    for (nodes, gpus), of_array in sorted(arrays.items()):
        script = SCRIPT.format(
            study_id=path.name,
            options="\n".join(f"#SBATCH {option}" for option in _options(study, path, nodes, gpus, of_array)),
            offline=OFFLINE if study.fleet.prepare == "here" else "",
            setup="".join(f"{line}\n" for line in study.fleet.setup),
            command=shlex.join(COMMAND),
            folder=shlex.quote(str(path)),
            flags=" --retry-failed" if retry_failed else "",
        )
        name = f"nodes-{nodes}-gpus-{gpus}.sh" if nodes > 1 else f"gpus-{gpus}.sh"
        jobs.append(Job(name, nodes, gpus, tuple(task.number for task in of_array), script))
    return jobs


def gpus_of(task: Task) -> int:
    """Return how many GPUs a task needs of each of its nodes.

    Raises:
        PreflightError: An experiment names GPUs of one machine, or agents.
    """
    for config in task.study.experiments:
        if config.nodes and config.nodes.agents:
            raise PreflightError(
                f"{config.label}: nodes.agents names machines, and Slurm chooses", f"write nodes: {config.node_count}"
            )
        if isinstance(config.gpus, list):
            names = ",".join(map(str, config.gpus))
            raise PreflightError(
                f"{config.label}: gpus: [{names}] names GPUs of one machine, and Slurm chooses",
                f"write gpus: {{count: {len(config.gpus)}}} (--gpus count:{len(config.gpus)})",
            )
    return max(0 if config.accelerator == "cpu" else config.gpus_asked for config in task.study.experiments)


def _options(study: Study, path: Path, nodes: int, gpus: int, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield the options of an array; ours come last, and so win over a study's."""
    fleet = study.fleet
    yield from fleet.more
    for name in ("partition", "account", "time", "constraint"):
        if value := getattr(fleet, name):
            yield f"--{name}={value}"
    # The log of task 12 is tasks/0012.log.
    log = shlex.quote(str(path / TASKS).replace("%", "%%") + "/%4a.log")
    yield from (f"--job-name={path.name}", f"--output={log}", "--open-mode=append", "--requeue")
    is_alone = any(config.exclusive == "machine" for task in tasks for config in task.study.experiments)
    if is_alone if fleet.exclusive is None else fleet.exclusive:
        yield "--exclusive"
    if nodes > 1:
        yield from (f"--nodes={nodes}", "--ntasks-per-node=1")
    if gpus:
        yield f"--gres=gpu:{gpus}"
    # Consecutive numbers, whose distance to their position is equal, are a range: 0, 1, 2, 3, 7 is "0-3,7".
    by_distance = itertools.groupby(enumerate(task.number for task in tasks), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in by_distance]
    ranges = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    at_once = f"%{fleet.tasks_at_once}" if fleet.tasks_at_once else ""
    yield f"--array={ranges}{at_once}"
    yield f"--signal=B:USR1@{fleet.end_before_s}"
