"""`wattdock run --backend vllm` from outside: a real engine on the CPU, a tiny model with real files."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import Command
from contract.runner_process import PYTORCH_PYTHON, VLLM_PYTHON, pytorch_reference
from contract.subjects import write_config, write_tokenizer
from unprivileged import give_to_user, user_home

from wattdock.clock import NS_PER_S
from wattdock.launch.keeper import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG, RUNNER = 2, 5
BLOCK_TOKENS = 32
PROMPTS = [[7, 8, 9] * 24, [3 + i % 90 for i in range(70)], [200 - i for i in range(80)], [5, 4, 3, 6, 7] * 14]

pytestmark = [
    pytest.mark.skipif(
        not (VLLM_PYTHON.exists() and PYTORCH_PYTHON.exists()),
        reason=f"no vLLM environment at {VLLM_PYTHON}, or no PyTorch environment beside it",
    ),
    pytest.mark.slow,
]

# Two engines: one for all kinds of arrival, one with a prefix cache that has room for few requests.
EXPERIMENTS = """
defaults:
  backend: vllm
  model: ./model
  repeats: {passes: 1}
  workload: {prompts: {source: prompts.jsonl, count: 4}, batch_size: 4, max_output_tokens: 8, ignore_eos: true}
experiments:
- {name: batch, repeats: {passes: 2}}
- {name: closed, workload: {arrival: closed, batch_size: 2, min_requests: 8}}
- {name: slow, warmup: {passes: 0}, workload: {arrival: poisson, rate_per_s: 0.2, min_requests: 4}}
- {name: flood, workload: {arrival: poisson, rate_per_s: 100000, min_requests: 40, batch_size: 2}}
- {name: cached, vllm: &small {enable_prefix_caching: true, block_size: 32, kv_cache_memory_bytes: 600000}}
- {name: crowded, vllm: *small, workload: {max_output_tokens: 120}}
"""
ENDLESS = ("--backend", "vllm", "--model", "shape:tiny-llama", "--min-duration-s", "600", "--batch-size", "2")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Run EXPERIMENTS with vLLM and the first of them with PyTorch; return each stored row by its name."""
    home = user_home(tmp_path_factory.mktemp("vllm"))
    folder = home / "work"
    write_checkpoint(folder / "model")
    (folder / "prompts.jsonl").write_text("".join(f'{{"token_ids": {ids}}}\n' for ids in PROMPTS))
    (folder / "vllm.yaml").write_text(EXPERIMENTS)
    (folder / "pytorch.yaml").write_text(EXPERIMENTS.partition("- {name: closed")[0].replace("vllm", "pytorch"))
    give_to_user(folder)
    pytorch = Command(home, folder, PYTORCH_PYTHON)("run", "pytorch.yaml", "--output-dir", "pytorch", timeout=300)
    assert pytorch.returncode == 0, pytorch.stderr
    vllm = Command(home, folder, VLLM_PYTHON)("run", "vllm.yaml", timeout=240)
    assert vllm.returncode == RUNNER, vllm.stderr
    rows = {row.result["config"]["name"]: row for row in map(Row, (folder / "results").glob("2*"))}
    [row] = (folder / "pytorch").glob("2*")
    return {**rows, "pytorch": Row(row)}


class Row:
    """One stored row: its result and its requests."""

    def __init__(self, folder: Path) -> None:
        self.result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        requests = folder / "restarts/0/requests.parquet"
        self.requests: list[dict[str, Any]] = pq.read_table(requests).to_pylist() if requests.exists() else []

    def check(self, name: str) -> dict[str, str]:
        """Return one check of its audit."""
        [found] = [one for one in self.result["audit"]["checks"] if one["name"] == name]
        return dict(found)


def write_checkpoint(folder: Path) -> None:
    """Write a tiny model with float32 weights and a tokenizer."""
    write_config(folder, dtype="float32")
    pytorch_reference("make", str(folder))
    write_tokenizer(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def waits_s(row: Row, until: str) -> list[float]:
    """Return the seconds from each request's intended arrival to one of its instants."""
    return [(one[until] - one["intended_ns"]) / NS_PER_S for one in row.requests]


def test_both_backends_give_the_same_greedy_tokens(measured: dict[str, Row]) -> None:
    """Two engines, one float32 model, one file but for the backend's name."""
    ids = {name: [one["output_ids"] for one in measured[name].requests] for name in ("batch", "pytorch")}
    assert ids["batch"] == ids["pytorch"]
    assert len(ids["batch"]) == 2 * len(PROMPTS)
    assert {len(one) for one in ids["batch"]} == {8}


def test_one_loaded_engine_serves_every_kind_of_arrival(measured: dict[str, Row]) -> None:
    """Four experiments, one load; a closed loop never has more in flight than asked."""
    rows = [measured[name].result for name in ("batch", "closed", "slow", "flood")]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert len({span["start_ns"] for row in rows for span in row["spans"] if span["name"] == "load"}) == 1
    requests = measured["closed"].requests
    assert len(requests) == 8
    starts = [one["submitted_ns"] for one in requests]
    in_flight = [sum(one["submitted_ns"] <= at <= one["finished_ns"] for one in requests) for at in starts]
    assert max(in_flight) == 2


def test_an_open_loop_below_capacity_keeps_up(measured: dict[str, Row]) -> None:
    """Offered and achieved rate stand side by side, and the check passes."""
    row = measured["slow"]
    done = row.result["performance"]
    assert done["offered_rate_per_s"] == 0.2
    assert done["requests_per_s"] == pytest.approx(4 / done["duration_s"])
    assert row.check("arrivals kept up with")["status"] == "pass"
    assert min(waits_s(row, "submitted_ns")) >= 0


def test_an_open_loop_above_capacity_is_flagged_and_its_waiting_counts(measured: dict[str, Row]) -> None:
    """No machine serves 100,000 requests/s two at a time; latency runs from the intended arrival."""
    row = measured["flood"]
    done = row.result["performance"]
    assert done["requests_per_s"] < done["offered_rate_per_s"] / 2
    check = row.check("arrivals kept up with")
    assert check["status"] == "fail"
    assert "100000 requests/s offered" in check["figure"]
    assert "only 40 of about " in check["figure"]
    assert any(reason.startswith("arrivals kept up with") for reason in row.result["audit"]["reasons"])
    assert done["ttft"]["p50_s"] == pytest.approx(np.median(waits_s(row, "first_token_ns")))
    assert done["e2e"]["max_s"] == pytest.approx(max(waits_s(row, "finished_ns")))
    served_s = [(one["first_token_ns"] - one["submitted_ns"]) / NS_PER_S for one in row.requests]
    assert done["ttft"]["p50_s"] > 2 * np.median(served_s)


def test_every_prompt_token_is_computed_unless_a_prefix_cache_is_asked_for(measured: dict[str, Row]) -> None:
    """The same four prompts in warm-up and passes: computed each time, or served by whole blocks where it was set."""
    off, on = measured["batch"], measured["cached"]
    prompt_tokens = sum(map(len, PROMPTS))
    assert off.result["performance"]["prompt_tokens"] == 2 * prompt_tokens
    assert off.result["performance"]["cached_prompt_tokens"] == 0
    assert off.result["environment"]["runner"]["engine_args"]["enable_prefix_caching"] is False
    assert off.check("cached prompt tokens declared")["status"] == "pass"
    whole_blocks = [len(ids) // BLOCK_TOKENS * BLOCK_TOKENS for ids in PROMPTS]
    assert [one["cached_prompt_tokens"] for one in on.requests] == whole_blocks
    assert on.result["performance"]["cached_prompt_tokens"] == sum(whole_blocks)
    assert on.result["environment"]["runner"]["engine_args"]["enable_prefix_caching"] is True
    check = on.check("cached prompt tokens declared")
    assert check["status"] == "info"
    assert check["figure"] == f"{sum(whole_blocks):,} prompt tokens from a cache"


def test_more_in_flight_than_the_kv_cache_holds_is_a_row_that_says_so(measured: dict[str, Row]) -> None:
    """Both figures and what to change; its neighbour on the same engine is measured."""
    assert measured["cached"].result["status"] == "ok"
    result = measured["crowded"].result
    assert result["status"] == "failed"
    assert result["error"]["exit_code"] == RUNNER
    assert "4 requests in flight need" in result["error"]["message"]
    assert "lower batch_size" in result["error"]["message"]


def test_an_argument_that_vllm_does_not_have_is_refused_with_the_nearest_name(wattdock: Command) -> None:
    """In one line, before vLLM is imported."""
    vllm = replace(wattdock, runner_python=VLLM_PYTHON)
    done = vllm("run", *ENDLESS, "--set", "vllm.enable_prefix_cachin=true")
    assert done.returncode == CONFIG
    assert "did you mean 'enable_prefix_caching'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert vllm.left_after(5) == []


@pytest.fixture
def split(wattdock: Command) -> Iterator[tuple[Command, subprocess.Popen[str], list[int]]]:
    """Return a command that is about to run a pass, and the pids of its runner and of all below it."""
    vllm = replace(wattdock, runner_python=VLLM_PYTHON)
    # One core each; left to itself, vLLM wants a NUMA node for each worker.
    cores = sorted(os.sched_getaffinity(0))
    env = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    options = ("--set", "vllm.tensor_parallel_size=2", "--set", "timeouts.stop_s=5", "--set", "warmup.passes=0")
    with vllm.start("run", *ENDLESS, *options, env=env, stderr=subprocess.PIPE) as running:
        try:
            assert running.stderr is not None
            said = list(itertools.takewhile(lambda line: "restart 1" not in line, running.stderr))
            keepers = [pid for pid, line in vllm.processes().items() if "keeper.py" in line]
            assert len(keepers) == 1, said
            yield vllm, running, descendants(keepers[0])
        finally:
            vllm.interrupt(signal.SIGKILL)
            assert vllm.left_after(60) == []


def workers(pids: list[int]) -> list[int]:
    """Return those that vLLM names as its workers."""
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::Worker")]


def segments(pids: list[int]) -> set[Path]:
    """Return the files of shared memory that the processes have mapped, by name."""
    maps = (line.split(maxsplit=5) for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    named = {Path(words[5]) for words in maps if len(words) == 6 and words[5].startswith("/dev/shm/")}
    return {path for path in named if path.exists()}


def gone_within(seconds: float, pids: list[int]) -> bool:
    """Return whether none of the processes exists, at the latest after some seconds."""
    deadline_s = time.monotonic() + seconds
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline_s:
            print(alive)
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("victim", "words"),
    [("worker", "a process of vLLM's engine died during the pass"), ("runner", "killed by SIGKILL (out of memory?)")],
)
def test_an_engine_killed_mid_pass_is_a_named_row_and_nothing_is_left(
    split: tuple[Command, subprocess.Popen[str], list[int]], victim: str, words: str
) -> None:
    """Which process died, the exit code, the last log lines; then no process of the run and no shared memory."""
    vllm, running, pids = split
    assert len(workers(pids)) == 2
    shared = segments(pids)
    assert shared
    os.kill(pids[0] if victim == "runner" else workers(pids)[0], signal.SIGKILL)
    _, err = running.communicate(timeout=240)
    assert running.returncode == RUNNER, err
    assert words in err
    assert "Traceback" not in err
    [row] = vllm.results()
    assert row["status"] == "failed"
    assert row["error"]["stage"] == "pass 1/2"
    assert words in row["error"]["message"]
    assert row["error"]["log_tail"]
    assert row["environment"]["runner"]["parallelism"] == {"kind": "tensor", "tensor_parallel_size": 2, "devices": {}}
    assert gone_within(10, pids)
    assert {path for path in shared if path.exists()} == set()


@pytest.mark.parametrize("nobody_is_left", [False, True])
def test_nothing_is_left_of_an_engine_whose_coordinator_was_killed(
    split: tuple[Command, subprocess.Popen[str], list[int]], nobody_is_left: bool
) -> None:
    """Not even a stopped worker, which hears no signal; nor if keeper and runner were killed, too."""
    vllm, running, pids = split
    [keeper] = [pid for pid, line in vllm.processes().items() if "keeper.py" in line]
    shared = segments(pids)
    assert shared
    os.kill(workers(pids)[0], signal.SIGSTOP)
    vllm.interrupt(signal.SIGKILL)
    if nobody_is_left:
        os.kill(keeper, signal.SIGKILL)
        os.kill(pids[0], signal.SIGKILL)
    running.wait(10)
    assert gone_within(8 if nobody_is_left else 60, pids)
    assert {path for path in shared if path.exists()} == set()
