"""vLLM as replicas, for real on the CPU: two engines, a common queue, and the tokens of a single engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON, ids_prompt, output_ids, running, workload
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}


@pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")
def test_two_engines_with_a_common_queue_give_a_single_engines_greedy_tokens(tmp_path: Path) -> None:
    """Continuous batching in each; a closed loop of two keeps one request at each, and both arrivals serve all."""
    shape = write_config(tmp_path, dtype="float32")
    prompts = [ids_prompt(length) for length in (5, 40, 17, 9, 30, 12)]
    closed = workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2, max_output_tokens=24, return_token_ids=True)
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
        runner.load(shape, engine_args=SMALL, random_weights=SMALL_UNIFORM)
        alone = output_ids(runner.generate(closed, prompts))
        runner.unload()
        loaded, _ = runner.load(shape, engine_args={**SMALL, "data_parallel_size": 2}, random_weights=SMALL_UNIFORM)
        done = runner.generate(closed, prompts)
    assert output_ids(done) == alone
    parallelism = json.loads(loaded.environment.parallelism_json)
    assert parallelism == {"kind": "data", "data_parallel_size": 2, "devices": {}}
    assert {record.replica for record in done.requests} == {0, 1}
    assert sum(record.output_tokens for record in done.summary.replicas) == done.summary.output_tokens == 6 * 24
