"""`wattdock run --backend vllm` from outside: a real engine on the CPU, split over two worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from command import wait_in_pass
from contract.runner_process import VLLM_PYTHON
from seams.launch import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from command import Command

RUNNER = 5
PROMPTS = [[7, 8, 9] * 24, [3 + i % 90 for i in range(70)], [200 - i for i in range(80)], [5, 4, 3, 6, 7] * 14]
# What each of them has in whole blocks of 32.
CACHED_TOKENS = 64

pytestmark = [pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")]

# One engine for both: prompts that come again to a prefix cache, and a pass to be killed in.
STUDY = """
order: written
defaults:
  backend: vllm
  model: shape:tiny-llama
  warmup: {passes: 0}
  timeouts: {stop_s: 5, heartbeat_s: 600, stall_s: 600}
  workload: {prompts: {source: prompts.jsonl, count: 4}, batch_size: 2}
  vllm:
    {tensor_parallel_size: 2, enable_prefix_caching: true, block_size: 32, kv_cache_memory_bytes: 67108864}
experiments:
- {name: closed, repeats: {passes: 1}, workload: {arrival: closed, min_requests: 8, max_output_tokens: 2}}
- {name: endless, repeats: {passes: 2}, workload: {min_duration_s: 600}}
"""

SERVED = """
backend: vllm
model: shape:tiny-llama
warmup: {passes: 0}
repeats: {passes: 2, restarts: 1}
workload: {batch_size: 2, max_output_tokens: 20, min_duration_s: 15}
vllm: {serve: true, kv_cache_memory_bytes: 67108864, distributed_executor_backend: uni}
"""


@pytest.fixture
def split(wattdock: Command) -> Iterator[tuple[Command, subprocess.Popen[str], list[int]]]:
    """Return a command in the endless pass of STUDY, and the pids of its runner and of all below it."""
    vllm = replace(wattdock, runner_python=VLLM_PYTHON)
    (vllm.folder / "prompts.jsonl").write_text("".join(f'{{"token_ids": {ids}}}\n' for ids in PROMPTS))
    # One core each; left to itself, vLLM wants a NUMA node for each worker.
    cores = sorted(os.sched_getaffinity(0))
    # Two of its functions that a split engine calls would be compiled anew in each process, eager or not.
    env = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}", "TORCH_COMPILE_DISABLE": "1"}
    # A worker whose neighbour has died waits for it busily until vLLM ends it.
    env["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] = "1"
    with vllm.start("run", vllm.write(STUDY), "--progress-json", env=env, stderr=subprocess.PIPE) as running:
        try:
            wait_in_pass(running, 1, of=2)
            yield vllm, running, descendants(keeper_of(vllm))
        finally:
            vllm.interrupt(signal.SIGKILL)
            assert vllm.left_after() == []


def keeper_of(vllm: Command) -> int:
    [keeper] = [pid for pid, line in vllm.processes().items() if "keeper.py" in line]
    return keeper


def named(pids: list[int], name: str) -> list[int]:
    """Return those that vLLM has given a name that begins so."""
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode())]


def segments(pids: list[int]) -> set[Path]:
    """Return the files of shared memory that the processes have mapped, by name."""
    maps = (line.split(maxsplit=5) for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    named = {Path(words[5]) for words in maps if len(words) == 6 and words[5].startswith("/dev/shm/")}
    return {path for path in named if path.exists()}


def still_there(pids: list[int], files: set[Path]) -> set[Path]:
    """Return which of the processes and files still exist; those that have a minute to end are waited for."""
    deadline_s, paths = time.monotonic() + 60, files | {Path(f"/proc/{pid}") for pid in pids}
    while (left := {path for path in paths if path.exists()}) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def test_a_worker_killed_mid_pass_is_a_named_result_beside_a_measured_one_and_nothing_is_left(
    split: tuple[Command, subprocess.Popen[str], list[int]],
) -> None:
    """Which process died, the last log lines; before it, a closed loop through a prefix cache, on the same engine."""
    vllm, running, pids = split
    assert len(named(pids, "VLLM::Worker")) == 2
    shared = segments(pids)
    assert shared
    os.kill(named(pids, "VLLM::Worker")[0], signal.SIGKILL)
    _, err = running.communicate(timeout=240)
    assert (running.returncode, "Traceback" in err) == (RUNNER, False), err
    closed, endless = sorted(vllm.results(), key=lambda result: str(result["config"]["name"]))
    assert_served(closed, vllm)
    words = "a process of vLLM's engine died during the pass"
    assert words in err
    assert (endless["error"]["stage"], endless["error"]["cause"]) == ("pass 1/2", "worker died")
    assert words in endless["error"]["message"]
    assert endless["error"]["log_tail"]
    for result in (closed, endless):
        parallelism = result["environment"]["runner"]["parallelism"]
        assert parallelism == {"kind": "tensor", "tensor_parallel_size": 2, "devices": {}}
    assert still_there(pids, shared) == set()


def assert_served(result: dict[str, Any], vllm: Command) -> None:
    """See that never more were in flight than asked, and that prompts that came again were cached and are told."""
    assert result["status"] == "ok"
    [file] = (vllm.folder / "results").glob(f"2*{result['experiment_id'][:8]}/restarts/0/requests.parquet")
    requests = pq.read_table(file).to_pylist()
    starts = [request["submitted_ns"] for request in requests]
    assert (
        max(sum(request["submitted_ns"] <= at <= request["finished_ns"] for request in requests) for at in starts) == 2
    )
    assert [request["cached_prompt_tokens"] for request in requests] == [0] * 4 + [CACHED_TOKENS] * 4
    assert result["performance"]["cached_prompt_tokens"] == 4 * CACHED_TOKENS
    assert result["environment"]["runner"]["engine_args"]["enable_prefix_caching"] is True
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "cached prompts"]
    assert (check["status"], check["figure"]) == (
        "fail",
        "256 prompt tokens from a cache; 4 requests with a prompt that the pass had sent before",
    )


def test_nothing_is_left_of_an_engine_whose_coordinator_keeper_and_runner_were_killed(
    split: tuple[Command, subprocess.Popen[str], list[int]],
) -> None:
    """Not even a stopped worker, which hears no signal."""
    vllm, running, pids = split
    keeper, shared = keeper_of(vllm), segments(pids)
    assert shared
    os.kill(named(pids, "VLLM::Worker")[0], signal.SIGSTOP)
    vllm.interrupt(signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)
    running.wait(60)
    assert still_there(pids, shared) == set()


def test_a_served_engine_killed_mid_pass_ends_the_pass_in_a_line_and_keeps_the_pass_before(wattdock: Command) -> None:
    """Though its server lives on for seconds, which says that the engine is dead and names no cause."""
    vllm = replace(wattdock, runner_python=VLLM_PYTHON)
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"}
    with vllm.start("run", vllm.write(SERVED), "--progress-json", env=env, stderr=subprocess.PIPE) as running:
        wait_in_pass(running, 2, of=2)
        pids = descendants(keeper_of(vllm))
        [engine] = named(pids, "VLLM::EngineCore")
        os.kill(engine, signal.SIGKILL)
        _, err = running.communicate(timeout=240)
    assert (running.returncode, "Traceback" in err) == (RUNNER, False), err
    assert "a process of vLLM's engine died, and reported nothing" in err
    [result] = vllm.results()
    error = result["error"]
    assert (result["status"], error["stage"], error["cause"]) == ("failed", "pass 2/2", "worker died")
    assert [run_pass["output_tokens"] > 0 for run_pass in result["energy"]["passes"]] == [True]
    assert still_there(pids, set()) == set()
