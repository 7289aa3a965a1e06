"""What Slurm tells of the job that this process is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattdock.host.jobs import Job, job_here

if TYPE_CHECKING:
    from pathlib import Path

NODE = "NodeName=n1 CPUAlloc=8 CPUTot=8 Gres=gpu:a100:4(S:0-1) Sockets=1"


@pytest.mark.parametrize(
    ("shared", "cpus", "gres", "gpus", "alone_with"),
    [
        ("NO", "0", "gpu:1(IDX:0)", 1, "n1"),
        ("OK", "0-3,4-7", "", 0, "n1"),
        ("YES", "0-7", "", 0, ""),
        ("OK", "0-3", "gpu:a100:4(IDX:0-3)", 4, "all 4 GPUs of n1"),
        ("OK", "0-3,6", "gpu:a100:3(IDX:0-2)", 3, ""),
    ],
)
@pytest.mark.parametrize("nodes", ["n1", "n[1-2]"])
def test_a_job_is_alone_where_slurm_can_give_the_rest_to_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: str,
    shared: str,
    cpus: str,
    gres: str,
    gpus: int,
    alone_with: str,
) -> None:
    """It asked for that, or has all CPUs, or has all GPUs; CPUs that may be shared are no such sign."""
    mine = f"Nodes={nodes} CPU_IDs={cpus} Mem=0 GRES={gres}"
    shown = f"JobId=7 OverSubscribe={shared} NumNodes=3 Nodes=n9 CPU_IDs=0 Mem=0 GRES= {mine} MinCPUsNode=1"
    program = tmp_path / "scontrol"
    hosts = "*'hostnames n[1-2]') echo n1; echo n2;;"
    program.write_text(
        f"#!/bin/sh\ncase $* in {hosts} *node*) echo '{NODE}';; *'show job 7_2') echo '{shown}';; esac\n"
    )
    program.chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "n1"}
    for name, value in ({"PATH": f"{tmp_path}:/usr/bin:/bin"} | variables).items():
        monkeypatch.setenv(name, value)
    job = job_here()
    assert job == Job("7_2", "n1", exclusive=alone_with == "n1", node_gpus=4, gpus=gpus)
    assert job.alone_with == alone_with
    # A shell of `salloc` runs on the login node.
    monkeypatch.delenv("SLURMD_NODENAME")
    assert job_here() is None
