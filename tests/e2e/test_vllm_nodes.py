"""vLLM's real engine over two nodes: a worker on each, and the tokens of one node."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from command import Command
from contract.runner_process import VLLM_PYTHON
from nodes.two_nodes import two_nodes
from unprivileged import give_to_user, user_home

pytestmark = [pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")]
LONGEST_S = 400
PROMPTS = [[7, 8, 9] * 24, [3 + i % 90 for i in range(70)], [200 - i for i in range(80)], [5, 4, 3, 6, 7] * 14]
STUDY = """
backend: vllm
model: shape:tiny-llama
accelerator: cpu
launcher: process
repeats: {{passes: 1}}
warmup: {{passes: 0}}
timeouts: {{stop_s: 5, heartbeat_s: 600, stall_s: 600}}
workload: {{prompts: {{source: prompts.jsonl, count: 4}}, batch_size: 2, max_output_tokens: 8, min_requests: 4}}
vllm: {{tensor_parallel_size: {tensor}, pipeline_parallel_size: {pipeline}, kv_cache_memory_bytes: 67108864{more}}}
{nodes}
"""


def tokens(vllm: Command) -> list[list[int]]:
    """Return the ids of every answer in the latest result, in the order of requests."""
    folder = sorted((vllm.folder / "results").glob("*/result.json"))[-1].parent
    [table] = folder.rglob("requests.parquet")
    rows = sorted(pq.read_table(table).to_pylist(), key=lambda row: row["index"])
    return [row["output_ids"] for row in rows]


def with_prompts(wattdock: Command) -> Command:
    """Return the command with vLLM's environment, and the prompts in its folder."""
    (wattdock.folder / "prompts.jsonl").write_text("".join(f'{{"token_ids": {ids}}}\n' for ids in PROMPTS))
    return replace(wattdock, runner_python=VLLM_PYTHON)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What one worker answers."""
    home = user_home(tmp_path_factory.mktemp("alone"))
    (home / "work").mkdir()
    give_to_user(home / "work")
    vllm = with_prompts(Command(home, home / "work"))
    study = vllm.write(STUDY.format(tensor=1, pipeline=1, more="", nodes=""))
    done = vllm("run", study, env={"TORCH_COMPILE_DISABLE": "1"}, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr
    return tokens(vllm)


@pytest.mark.parametrize("split", ["tensor", "pipeline"])
def test_a_model_over_two_nodes_answers_as_on_one(wattdock: Command, split: str, answers: list[list[int]]) -> None:
    """TP=2 and PP=2, each rank in a network and time namespace of its own; no GPU, so no joules."""
    vllm = with_prompts(wattdock)
    # One core for each rank; two of vLLM's functions would be compiled anew in each process, eager or not. Pipelines on
    # a CPU need a compiled model.
    cores, fixed = sorted(os.sched_getaffinity(0)), {"TORCH_COMPILE_DISABLE": "1"} if split == "tensor" else {}
    sizes = {"tensor": 2 if split == "tensor" else 1, "pipeline": 2 if split == "pipeline" else 1}
    more = ", enforce_eager: false" if split == "pipeline" else ""
    binds = {
        "head": {"VLLM_CPU_OMP_THREADS_BIND": str(cores[0])},
        "node": {"VLLM_CPU_OMP_THREADS_BIND": str(cores[-1])},
    }
    envs = {name: bind | fixed for name, bind in binds.items()}
    with two_nodes(vllm, offset_s=100, envs=envs) as nodes:
        over = f"nodes: {{agents: ['{nodes.address}'], pairing: pair.pem}}"
        process = nodes.run(vllm.write(STUDY.format(**sizes, more=more, nodes=over)))
        _, err = process.communicate(timeout=LONGEST_S)
        assert process.returncode == 0, err
    assert tokens(vllm) == answers
    [result] = vllm.results()
    [node] = result["environment"]["nodes"]
    assert node["runner"]["framework"] == "vllm"
    assert [len(ids) for ids in answers] == [8] * 4
    assert vllm.left_after() == []
