"""A model split over worker processes: whose it is, and how a load fails; for what is killed, see tests/e2e."""

from __future__ import annotations

import json
import os
from pathlib import Path

import grpc
import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON, ids_prompt, load_request, running, workload
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock.launch.keeper import descendants
from wattdock_proto.v1 import runner_pb2 as pb

pytestmark = [
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}"),
    pytest.mark.slow,
]


def give_each_worker_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, vLLM wants a NUMA node for each worker."""
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")


def test_a_split_of_random_weights_has_the_tokens_of_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers take their shards of one draw, so greedy tokens of a split can be compared; and they end."""
    folder = write_config(tmp_path, dtype="float32")
    weights = pb.RandomWeights(low=-0.5, high=0.5, seed=3)
    prompts = [ids_prompt(length) for length in (5, 9, 14)]
    answers = []
    for split in ({}, {"tensor_parallel_size": 2}):
        if split:
            give_each_worker_a_core(monkeypatch)
        with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
            loaded, _ = runner.load(folder, engine_args=split, random_weights=weights)
            assert json.loads(loaded.effective_engine_args_json)["random_weights_drawn"] == "whole"
            asked = workload(in_flight=3, max_output_tokens=24, return_token_ids=True)
            done = runner.generate(asked, prompts)
            runner.stub.Unload(pb.UnloadRequest(), timeout=60)
        answers.append([list(request.output_ids.ids) for request in done.requests])
    assert answers[0] == answers[1]
    assert all(len(set(ids)) > 3 for ids in answers[0])


def test_memory_that_a_worker_lacks_is_named_though_vllm_keeps_it_in_the_workers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own exception in the runner says only that some worker did not start; no worker is left."""
    give_each_worker_a_core(monkeypatch)
    folder = write_config(tmp_path, vocab_size=1_000_000_000)
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
        order = load_request(folder, engine_args={"tensor_parallel_size": 2}, random_weights=SMALL_UNIFORM)
        with pytest.raises(grpc.RpcError) as caught:
            list(runner.stub.Load(order))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "can't allocate memory: you tried to allocate 256000000000 bytes" in (caught.value.details() or "")
        left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(runner.process.pid)]
        assert [line for line in left if b"resource_tracker" not in line] == []
