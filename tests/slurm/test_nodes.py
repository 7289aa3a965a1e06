"""A model over the two nodes of one Slurm job, whose head starts the other node's agent."""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from contract.runner_process import VLLM_PYTHON
from e2e.test_vllm_nodes import PROMPTS, tokens
from slurm.cluster import missing
from slurm.test_slurm import (
    DEFAULTS_OF_ALL,
    INTERRUPTED,
    LONGEST_S,
    SETUP,
    call,
    coordinator,
    in_pass,
    start,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from command import Command
    from slurm.cluster import Cluster

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SPREAD = f"""{DEFAULTS_OF_ALL}
  repeats: {{passes: 3}}
  nodes: 2
  gpus: {{count: 1}}
experiments:
  - {{fake: {{step_s: 0.4}}}}
fleet:
  # What a node's set-up says is no address, and it gets nothing of the pairing.
  setup: ['{SETUP}', 'echo loaded a module', 'cat >&2']
"""
# n2 has one CPU only.
ONE_CPU = f"[ $SLURMD_NODENAME = n1 ] || taskset --cpu-list --pid {min(os.sched_getaffinity(0))} $$"


def test_a_model_over_two_nodes_of_a_job_is_one_row(wattdock: Command, slurm: Cluster) -> None:
    """One job with both nodes to itself; the pairing is on no command line, in no variable and in no file."""
    whole = SPREAD.replace("exclusive: gpus", "exclusive: machine").replace("cat >&2", ONE_CPU)
    running = start(wattdock, slurm, "run", wattdock.write(whole), "--on", "slurm")
    wait_until(lambda: in_pass(wattdock, 0) or running.poll() is not None)
    assert running.poll() is None, running.communicate()[1]
    assert "NumNodes=2 " in slurm("scontrol", "--details", "show", "job", "1")
    [agent] = [pid for pid, line in wattdock.processes().items() if " agent - " in line and "srun" not in line]
    seen = b"".join(Path(f"/proc/{agent}/{name}").read_bytes() for name in ("cmdline", "environ"))
    assert b"PRIVATE" not in seen
    assert list(wattdock.home.rglob("*.pem")) == []
    _, err = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 0, err
    [result] = wattdock.results()
    environment = result["environment"]
    [node] = environment["nodes"]
    assert (environment["job"]["node"], node["job"]["node"], node["job"]["id"]) == ("n1", "n2", "1_0")
    for job in (environment["job"], node["job"]):
        assert (job["exclusive"], job["node_gpus"], job["gpus"]) == (True, 2, 2)
    cpus, here = (environment["cpu_count"], node["cpu_count"]), len(os.sched_getaffinity(0))
    assert cpus == (here, 1)
    warning = f"node {node['name']} runs on 1 CPU, the head on {here}"
    assert environment["runner"]["warnings"] == [warning] * (here > 1)
    [alone] = [check for check in result["audit"]["checks"] if check["name"] == "other measurements"]
    assert alone["status"] == "pass", alone
    assert environment["gpu_uuids"] == [fake_nvml.uuid_of(1), fake_nvml.uuid_of(3)]
    assert result["energy"]["total_j"] == pytest.approx(sum(result["energy"]["per_gpu_j"].values()))


def of_wattdock(wattdock: Command) -> list[str]:
    """Return the command lines of what runs beside Slurm itself."""
    return [line for line in wattdock.running() if "wattdock" in line or "srun " in line]


def cancel(wattdock: Command, slurm: Cluster) -> None:
    assert call(wattdock, slurm, "fleet", "cancel", "x")[0] == 0


def kill_head(wattdock: Command, slurm: Cluster) -> None:
    os.kill(coordinator(wattdock, 0) or 0, signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "statuses"), [(cancel, ["interrupted", "ok"]), (kill_head, ["ok"])], ids=["cancelled", "head killed"]
)
def test_a_job_over_two_nodes_that_ends_leaves_nothing_running_and_goes_on(
    wattdock: Command, slurm: Cluster, end: Callable[[Command, Cluster], None], statuses: list[str]
) -> None:
    """Agents die with the job, the head is told a moment later: an interruption, not a lost node."""
    running = start(wattdock, slurm, "run", wattdock.write(SPREAD), "--on", "slurm")
    wait_until(lambda: in_pass(wattdock, 0))
    end(wattdock, slurm)
    wait_until(lambda: not [line for line in of_wattdock(wattdock) if " run " not in line])
    _, err = running.communicate(timeout=LONGEST_S)
    assert running.returncode == INTERRUPTED, err
    code, _, err = call(wattdock, slurm, "run", "--on", "slurm", "--resume", "x")
    assert code == 0, err
    assert sorted(result["status"] for result in wattdock.results()) == statuses
    [log] = [file.read_text() for file in wattdock.folder.glob("results/studies/*/tasks/0000.log")]
    assert "pass 1/3" not in log.rpartition("listening on port")[2]


def test_an_agent_that_dies_in_its_job_is_a_failed_row(wattdock: Command, slurm: Cluster) -> None:
    """In a job of the user's own, whose head is any command in it."""
    job = f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:1 --output=own.log
{SETUP}
exec {shlex.join(map(str, wattdock.words("run", wattdock.write(SPREAD))))}
"""
    (wattdock.folder / "own.sh").write_text(job)
    slurm("sbatch", f"--chdir={wattdock.folder}", str(wattdock.folder / "own.sh"))
    wait_until(lambda: any((wattdock.folder / "results").glob("studies/*/records/[!.]*/record.json")))
    [agent] = [pid for pid, line in wattdock.processes().items() if " agent - " in line and "srun" not in line]
    os.kill(agent, signal.SIGKILL)
    [result] = wait_until(wattdock.results)
    wait_until(lambda: not of_wattdock(wattdock))
    # Slurm's own process of the job ends after it has told the controller.
    wait_until(lambda: not slurm("squeue", "--noheader").split())
    assert (result["status"], result["error"]["cause"]) == ("failed", "node lost")


VLLM = """
defaults:
  backend: vllm
  model: shape:tiny-llama
  accelerator: cpu
  launcher: process
  exclusive: gpus
  repeats: {passes: 1}
  warmup: {passes: 0}
  timeouts: {stop_s: 5, heartbeat_s: 600, stall_s: 600}
  workload: {prompts: {source: prompts.jsonl, count: 4}, batch_size: 2, max_output_tokens: 8, min_requests: 4}
  vllm: {tensor_parallel_size: 2, kv_cache_memory_bytes: 67108864}
experiments: [{NODES}]
fleet:
  setup: ['export TORCH_COMPILE_DISABLE=1 WATTDOCK_LEASES=$HOME/leases-$SLURMD_NODENAME', 'BIND']
"""


@pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")
def test_vllm_over_two_nodes_of_a_job_answers_as_on_one(wattdock: Command, slurm: Cluster) -> None:
    """TP=2 of the real engine, a rank on each node, and one worker outside; no GPU, so no joules."""
    vllm, cores = replace(wattdock, runner_python=VLLM_PYTHON), sorted(os.sched_getaffinity(0))
    (vllm.folder / "prompts.jsonl").write_text("".join(f'{{"token_ids": {ids}}}\n' for ids in PROMPTS))
    bind = f"$([ $SLURMD_NODENAME = n1 ] && echo {cores[0]} || echo {cores[-1]})"
    spread = VLLM.replace("NODES", "nodes: 2").replace("BIND", f"export VLLM_CPU_OMP_THREADS_BIND={bind}")
    code, _, err = call(vllm, slurm, "run", vllm.write(spread), "--on", "slurm")
    assert code == 0, err
    over_two = tokens(vllm)
    alone = VLLM.replace("NODES", "").replace("tensor_parallel_size: 2", "tensor_parallel_size: 1")
    done = vllm("run", vllm.write(alone), env={"TORCH_COMPILE_DISABLE": "1"}, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr
    assert over_two == tokens(vllm)
    first, _ = sorted(vllm.results(), key=lambda result: len(result["environment"]["nodes"]), reverse=True)
    [node] = first["environment"]["nodes"]
    assert (node["job"]["node"], node["runner"]["framework"]) == ("n2", "vllm")
