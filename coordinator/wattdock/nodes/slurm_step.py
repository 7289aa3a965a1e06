"""Agents on the other nodes of the Slurm job in which the head runs: a job step with a task on each.

The pairing lives for minutes, and goes to the agents through `srun`: it stands on no command line, in no variable and
in no file that stays. Must not know: what agents do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError, PreflightError
from wattdock.host.jobs import start_step
from wattdock.nodes.pairing import Pairing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# How long Slurm may take to start the step; the head connects within the pairing's hours.
START_S, HOURS = 300.0, 0.2
# How long agents may take to end what they started, once their head has gone; then, srun to end a step by force.
END_S, FORCE_S = 30.0, 30.0
# What an agent says on standard output, before its address, where Slurm has started it.
LISTENS = "agent at "
# Its address for the node that launched a task. Source: Slurm 22.05, srun(1), output environment.
LAUNCHED_FROM = "SLURM_LAUNCH_NODE_IPADDR"


@contextmanager
def agents_of_job(others: int, setup: Sequence[str]) -> Iterator[tuple[Pairing, list[str]]]:
    """Yield a pairing, and the addresses of agents of it on other nodes of this job, which end with the block.

    Args:
        others: How many nodes.
        setup: Shell lines before each agent.

    Raises:
        PreflightError: This is no job of so many nodes, or has no srun.
        LaunchError: Slurm did not start every agent.
    """
    here, nodes = os.environ.get("SLURMD_NODENAME"), int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
    if not here or nodes <= others:
        job = "this is none" if not nodes else f"this has {nodes}" if here else "this process is on none of its nodes"
        raise PreflightError(
            f"nodes: {others + 1} takes a Slurm job of that many nodes, and {job}",
            "take `run --on slurm`, or a job script with --nodes, or name nodes.agents and nodes.pairing",
        )
    nodes_of_step = (f"--nodes={others}", f"--ntasks={others}", f"--exclude={here}")
    # All CPUs that the job has of a node, as the head has; --cpus-per-task would imply --exact. Source: srun(1), 22.05.
    options = (*nodes_of_step, "--export=ALL", "--mpi=none", "--cpu-bind=none")
    agent = (sys.executable, "-P", "-m", "wattdock", "agent", "-", "--listen=0.0.0.0:0", "--once")
    # What a set-up reads is not the pairing.
    script = "\n".join(["{ :", *setup, "} < /dev/null", 'exec "$@"'])
    pairing, step = Pairing.new(HOURS), start_step(*options, "bash", "-c", script, "agent", *agent)
    # The last one is done first; where Ctrl-C ends a wait, the others are done all the same.
    with step, ExitStack() as at_the_end:
        at_the_end.callback(_wait, step, FORCE_S)
        at_the_end.callback(step.kill)
        at_the_end.callback(_wait, step, FORCE_S)
        at_the_end.callback(step.terminate)
        at_the_end.callback(_wait, step, END_S)
        yield pairing, _addresses(step, pairing, others)


def _wait(step: subprocess.Popen[bytes], limit_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        step.wait(limit_s)


def _addresses(step: subprocess.Popen[bytes], pairing: Pairing, count: int) -> list[str]:
    """Give the agents their pairing; return their addresses, once all have said them."""
    assert step.stdin
    assert step.stdout
    limit, found = threading.Timer(START_S, step.kill), list[str]()
    limit.start()
    try:
        with suppress(BrokenPipeError), step.stdin as secret:
            secret.write(pairing.pem)
        # A node's set-up may say other lines.
        for line in step.stdout:
            if line.startswith(LISTENS.encode()):
                found.append(line.decode(errors="replace").removeprefix(LISTENS).strip())
            if len(found) == count:
                return found
    finally:
        limit.cancel()
    raise LaunchError(f"Slurm has started {len(found)} of {count} agents", "see srun's lines above")
