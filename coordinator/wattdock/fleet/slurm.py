"""What a study asks of Slurm: queue, list and requeue its tasks.

Needs no accounting: what is queued or running is asked for by the jobs' name, which is the study's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError
from wattdock.host.jobs import ask_slurm

if TYPE_CHECKING:
    from pathlib import Path

# squeue's fields: job, index in the array, state, reason, node, script; no name of ours holds the separator.
FORMAT = "%F_%K|%K|%T|%r|%N|%o"
COMPLETING = "COMPLETING"
AVAILABLE = (
    "correct `fleet:` or `gpus:`; `sinfo --format='%P %l %N %G %c %m %f'` shows what partitions and nodes have, "
    "`sacctmgr show associations` accounts"
)


@dataclass(frozen=True)
class QueuedTask:
    """A task that Slurm knows of, waiting or running.

    Attributes:
        number: Number of the task in its study.
        job: As Slurm's commands take it: 12_3.
        state: Slurm's word for it, such as PENDING or RUNNING.
        reason: Why it waits, in Slurm's words.
        node: Where it runs; empty before.
    """

    number: int
    job: str
    state: str
    reason: str
    node: str


def submit(script: Path) -> str:
    """Queue a job array and return its id.

    Raises:
        PreflightError: Slurm's commands are not here, or no controller answers.
        LaunchError: Slurm refuses the array; says why.
    """
    try:
        return ask_slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
    except LaunchError as error:
        raise LaunchError(error.what, AVAILABLE) from error


def queued(path: Path) -> list[QueuedTask]:
    """Return the tasks of this user that have not ended and whose scripts lie in a study's folder.

    Raises:
        PreflightError, LaunchError: As `submit`.
    """
    tasks = []
    words = ("squeue", f"--name={path.name}", "--me", "--noheader", "--array", f"--format={FORMAT}")
    for line in ask_slurm(*words).splitlines():
        job, index, state, reason, node, script = line.split("|", maxsplit=5)
        # Another folder of results may hold a study of the same name and second.
        if script.startswith(f"{path}/"):
            tasks.append(QueuedTask(int(index), job, state, reason, node))
    return tasks


def requeue(job: str) -> bool:
    """Queue a running or timed-out task again, which ends it; return whether that was done.

    A task that a user cancels, or that Slurm has queued again itself, is left alone.

    Raises:
        PreflightError, LaunchError: As `submit`.
    """
    state, _, reason = ask_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").strip().partition(" ")
    if state != "RUNNING" and reason != "TimeLimit":
        return False
    ask_slurm("scontrol", "requeue", job)
    return True
