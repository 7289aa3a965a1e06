"""Slurm's commands: the only place that starts them and reads what they print.

Needs no accounting: what is queued or running is asked for by the jobs' name, which is the study's.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError, PreflightError
from wattdock.records import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Longest wait for a command, in seconds: a busy controller answers late.
LONGEST_ANSWER_S = 120
# squeue's fields: job, index in the array, state, reason, node, script; no name of ours holds the separator.
FORMAT = "%F_%K|%K|%T|%r|%N|%o"
USERS_DEFAULTS = ("SBATCH_", "SQUEUE_", "SCANCEL_", "SCONTROL_")
# squeue's word for a job that has its nodes for itself.
EXCLUSIVE = "NO"
# The number of GPUs in a node's "Gres=gpu:a100:4(S:0-1),shard:8".
GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")
COMPLETING = "COMPLETING"


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


def check() -> None:
    """Raise where Slurm's commands are missing.

    Raises:
        PreflightError: They are not here.
    """
    _output_of("sbatch", "--version")


def submit(script: Path) -> str:
    """Queue a job array and return its id.

    Raises:
        PreflightError: Slurm's commands are not here.
        LaunchError: Slurm refuses it; says why.
    """
    return _output_of("sbatch", "--parsable", str(script)).strip().split(";")[0]


def queued(path: Path) -> list[QueuedTask]:
    """Return the tasks of this user that have not ended and whose scripts lie in a study's folder.

    Raises:
        PreflightError, LaunchError: As `submit`.
    """
    tasks = []
    words = ("squeue", f"--name={path.name}", "--me", "--noheader", "--array", f"--format={FORMAT}")
    for line in _output_of(*words).splitlines():
        job, index, state, reason, node, script = line.split("|", maxsplit=5)
        # Another folder of results may hold a study of the same name and second.
        if script.startswith(f"{path}/"):
            tasks.append(QueuedTask(int(index), job, state, reason, node))
    return tasks


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, waiting and running.

    Raises:
        PreflightError, LaunchError: As `submit`.
    """
    _output_of("scancel", *jobs)


def job_here() -> snapshot.Job | None:
    """Return the job that this process is in; None outside of any."""
    # SLURM_JOB_ID of an array's last task means the whole array.
    if not (job := os.environ.get("WATTDOCK_JOB")):
        return None
    node, alone, gpus = os.environ.get("SLURMD_NODENAME", ""), None, None
    # A task that has its GPUs goes on, whether or not the controller answers.
    with suppress(LaunchError, PreflightError):
        shared = _output_of("squeue", "--noheader", f"--jobs={job}", "--format=%h").strip()
        gres = re.search(r" Gres=(\S+)", _output_of("scontrol", "--oneliner", "show", "node", node))
        alone, gpus = shared == EXCLUSIVE, sum(map(int, GPUS.findall(gres[1]))) if gres else None
    return snapshot.Job(id=job, node=node, exclusive=alone, node_gpus=gpus)


def requeue(job: str) -> bool:
    """Queue a running or timed-out task again, which ends it; return whether that was done.

    A task that a user cancels, or that Slurm has queued again itself, is left alone.

    Raises:
        PreflightError, LaunchError: As `submit`.
    """
    state, _, reason = _output_of("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").strip().partition(" ")
    if state != "RUNNING" and reason != "TimeLimit":
        return False
    _output_of("scontrol", "requeue", job)
    return True


def _output_of(*words: str) -> str:
    # A user's own defaults would win over a script's options, and hide jobs.
    env = {name: value for name, value in os.environ.items() if not name.startswith(USERS_DEFAULTS)}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LONGEST_ANSWER_S, check=False)
    except FileNotFoundError as error:
        raise PreflightError(
            f"{words[0]}: no such command here", "--on slurm needs Slurm's, as a cluster's login node has them"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{words[0]}: no answer in {LONGEST_ANSWER_S} s", "see whether `sinfo` answers") from error
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise LaunchError(f"{words[0]}: " + message.replace(f"{words[0]}: ", "").replace("error: ", ""))
    return done.stdout
