"""The job of a cluster's scheduler that this process is in, and the one place that starts Slurm's commands."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wattdock.errors import LaunchError, PreflightError

# Longest wait for a command, in seconds: a busy controller answers late.
LONGEST_ANSWER_S = 120
# Words of Slurm 22.05 where no cluster is known or its controller does not answer, and what to do then.
UNANSWERED = ("contact slurm controller", "Socket timed out", "Zero Bytes", "configuration source", "process config")
LOOK = "see whether `sinfo` answers here, as it does on a cluster's login node, and try again"
# Beginnings of variables with a user's own defaults, which would win over a script's options, and hide jobs.
USERS_DEFAULTS = ("SBATCH_", "SQUEUE_", "SCANCEL_", "SCONTROL_")
# The number of GPUs in a node's "Gres=gpu:a100:4(S:0-1),shard:8", or in a job's "GRES=gpu:a100:2(IDX:0-1)".
GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")
# What a job has of nodes of which it has the same.
GIVEN = re.compile(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)")

__all__ = ["Job", "ask_slurm", "job_here", "start_step"]


@dataclass(frozen=True)
class Job:
    """The job of a cluster's scheduler in which a coordinator measures, as the scheduler tells.

    Attributes:
        id: As its commands take it: 12_3 is task 3 of array 12.
        node: Its name of the machine.
        exclusive: Whether it lets no other job onto the node: the job asked for that (`--exclusive`), or has all of the
            node's CPUs; null where it does not answer.
        node_gpus: How many GPUs the node has, those of other jobs included; null where it does not say.
        gpus: How many of them it gave to this job; null where it does not say.
    """

    id: str
    node: str
    exclusive: bool | None
    node_gpus: int | None
    gpus: int | None = None

    @property
    def alone_with(self) -> str:
        """What of the node no other job can get, in words: the node, or all of its GPUs; empty for neither."""
        if self.exclusive:
            return self.node
        return f"all {self.gpus} GPUs of {self.node}" if self.gpus and self.gpus == self.node_gpus else ""


def job_here() -> Job | None:
    """Return the job whose node this process runs on; None outside of any.

    Source: Slurm 22.05, sbatch(1) (output environment) and scontrol(1): `show job --details` has CPU_IDs and GRES of
        each node; OverSubscribe is NO where --exclusive, or the partition, keeps other jobs away, and YES where even
        the CPUs of one job may be another's.
    """
    # A shell of `salloc` is in a job, and not on its node.
    node = os.environ.get("SLURMD_NODENAME")
    # Of a job array's last task SLURM_JOB_ID would mean the whole array.
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
    if not job or not node:
        return None
    alone, of_node, gpus = None, None, None
    # A job that has its GPUs goes on, whether or not the controller answers.
    with suppress(LaunchError, PreflightError):
        shown = ask_slurm("scontrol", "--oneliner", "--details", "show", "job", job)
        node_shown = ask_slurm("scontrol", "--oneliner", "show", "node", node)
        shared, total = _word("OverSubscribe", shown), _word("CPUTot", node_shown)
        given = next((part for part in GIVEN.findall(shown) if node in _nodes(part[0])), None)
        has_cpus = bool(given) and shared != "YES" and total == str(_count(given[1] if given else ""))
        alone, gpus = shared == "NO" or has_cpus, _gpus(given[2]) if given else None
        of_node = _gpus(gres) if (gres := _word("Gres", node_shown)) else None
    return Job(job, node, alone, of_node, gpus)


def _word(name: str, shown: str) -> str | None:
    """Return the value of NAME=VALUE in what scontrol shows."""
    found = re.search(rf"(?:^|\s){name}=(\S+)", shown)
    return found[1] if found else None


def _nodes(shown: str) -> list[str]:
    """Return the nodes that "n[1-2,7]" names."""
    return ask_slurm("scontrol", "show", "hostnames", shown).split() if "[" in shown else [shown]


def _gpus(gres: str) -> int:
    return sum(map(int, GPUS.findall(gres)))


def _count(ids: str) -> int:
    """Return how many numbers "0-3,8" names."""
    ends = [part.split("-") for part in ids.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def ask_slurm(*words: str) -> str:
    """Return what a command of Slurm's prints.

    Raises:
        PreflightError: The command is not here, or no controller answers.
        LaunchError: Slurm refuses; says why.
    """
    env = _own_environment()
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LONGEST_ANSWER_S, check=False)
    except FileNotFoundError as error:
        raise _no_command(words[0]) from error
    except subprocess.TimeoutExpired as error:
        raise PreflightError(f"{words[0]}: no answer in {LONGEST_ANSWER_S} s", LOOK) from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        said = [line.removeprefix(f"{words[0]}: ").removeprefix("error: ").removeprefix("fatal: ") for line in lines]
        if any(silence in said[-1] for silence in UNANSWERED):
            raise PreflightError(f"{words[0]}: {said[-1]}", LOOK)
        raise LaunchError(f"{words[0]}: {'; '.join(said)}")
    return done.stdout


def start_step(*words: str) -> subprocess.Popen[bytes]:
    """Start a step of this job with srun, whose standard input and output are pipes.

    Raises:
        PreflightError: The command is not here.
    """
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    try:
        # A terminal's Ctrl-C is not the step's to act on.
        return subprocess.Popen(("srun", *words), env=_own_environment(), start_new_session=True, **pipes)
    except FileNotFoundError as error:
        raise _no_command("srun") from error


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(USERS_DEFAULTS)}


def _no_command(name: str) -> PreflightError:
    return PreflightError(f"{name}: no such command here", "Slurm's are needed, as a cluster's login node has them")
