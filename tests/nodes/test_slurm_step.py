"""Agents that the head starts on the other nodes of its job, with a stand-in for `srun` that starts them here."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from refused import raises
from seams import nodes as behind

from wattdock.errors import LaunchError, PreflightError

if TYPE_CHECKING:
    from pathlib import Path

# Takes the options that are given to it, each as one word, and notes them.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$(dirname "$0")/words"
while [[ $1 == --* ]]; do shift; done
export SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
{before}
exec "$@"
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two nodes, whose srun is a stand-in."""
    set_up(tmp_path)
    for name, value in {"SLURMD_NODENAME": "n1", "SLURM_JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    return tmp_path


def set_up(folder: Path, before: str = "") -> None:
    (folder / "srun").write_text(SRUN.format(before=before))
    (folder / "srun").chmod(0o755)


@pytest.mark.slow
def test_an_agent_of_the_job_takes_the_head_and_ends_after_it(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pairing came through standard input, which is not the set-up's; what that says is no address."""
    (job / "python").write_text(f'#!/bin/bash\nenv > "{job}/env"\nexec "{sys.executable}" "$@"\n')
    (job / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(job / "python"))
    setup = ["cat; echo loaded", "module() { export SEEN=$1; }", "module load\n# A comment"]
    with behind.slurm_step.agents_of_job(1, setup) as (pairing, [address]):
        opened = behind.NodeLink(address, pairing)
        opened.check()
        opened.close()
    words = (job / "words").read_text()
    assert {"--nodes=1", "--ntasks=1", "--exclude=n1", "--cpu-bind=none"} <= set(words.split("\n"))
    assert "PRIVATE" not in words
    assert "agent" in words
    assert "SEEN=load" in (job / "env").read_text().splitlines()
    assert list(job.glob("*.pem")) == []


@pytest.mark.slow
def test_each_further_node_has_an_agent_of_the_same_pairing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job of three nodes; srun gives every task what it reads."""
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    set_up(job, 'read -rd "" secret; "$@" <<< "$secret" & "$@" <<< "$secret"; wait; exit')
    with behind.slurm_step.agents_of_job(2, []) as (pairing, addresses):
        links = [behind.NodeLink(address, pairing) for address in addresses]
        assert len(set(addresses)) == 2
        for opened in links:
            opened.check()
            opened.close()
    assert {"--nodes=2", "--ntasks=2"} <= set((job / "words").read_text().split("\n"))


@pytest.mark.parametrize(("before", "said"), [("exit 1", "0 of 1 agents"), ("echo agent; exit 0", "0 of 1 agents")])
def test_a_step_that_ends_early_is_one_line(job: Path, before: str, said: str) -> None:
    """Slurm has refused it, or the node's set-up has failed; srun itself said why."""
    set_up(job, before)
    with raises(LaunchError, said), behind.slurm_step.agents_of_job(1, []):
        pytest.fail("there is no agent")


def test_a_step_that_never_starts_ends_with_its_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a step waits for what another holds."""
    set_up(job, "trap '' TERM; exec sleep 600")
    monkeypatch.setattr(behind.slurm_step, "START_S", 0.3)
    with raises(LaunchError, "0 of 1 agents"), behind.slurm_step.agents_of_job(1, []):
        pytest.fail("there is no agent")


def test_an_interruption_while_the_step_starts_leaves_no_step(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes as the head waits."""
    set_up(job, f"sleep 0.5; kill -INT {os.getpid()}; exec sleep 600")
    monkeypatch.setattr(behind.slurm_step, "END_S", 0.1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), behind.slurm_step.agents_of_job(1, []):
        pytest.fail("there is no agent")


@pytest.mark.parametrize(
    ("then", "end_s", "why"),
    [(":", 0.2, AssertionError), ("(sleep 1; kill -INT {head}) &", 600, KeyboardInterrupt)],
    ids=["by itself", "after Ctrl-C"],
)
def test_a_step_that_does_not_end_is_ended(
    job: Path, then: str, end_s: float, why: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node is dead: srun does not heed SIGTERM, the head waits for a limited time, and the step is gone."""
    begins = f"trap '' TERM; echo $$ > {job}/pid; echo agent at here:1"
    set_up(job, f"{begins}\n{then.format(head=os.getpid())}\nexec sleep 600")
    for name, limit_s in {"END_S": end_s, "FORCE_S": 0.2}.items():
        monkeypatch.setattr(behind.slurm_step, name, limit_s)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(why), behind.slurm_step.agents_of_job(1, []):
        raise AssertionError("what the head measured failed")
    with pytest.raises(ProcessLookupError):
        os.kill(int((job / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "this is none"),
        ({"SLURM_JOB_NUM_NODES": "3"}, "this process is on none of its nodes"),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}, "this has 2"),
        ({"SLURMD_NODENAME": "n1"}, "this is none"),
    ],
)
def test_what_is_no_job_of_so_many_nodes_is_refused(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a job, in a shell of salloc on the login node, in a job of fewer nodes."""
    for name in ("SLURMD_NODENAME", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with raises(PreflightError, "nodes: 3", said, "--on slurm"), behind.slurm_step.agents_of_job(2, []):
        pytest.fail("there is no job")
