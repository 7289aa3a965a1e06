"""vLLM over worker processes: splits and replicas, and how they fail; for what is killed, see tests/e2e."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import output_ids, refusal
from contract.subjects import HANG_LIMIT_S, SMALL_UNIFORM, WIDE_UNIFORM, write_config
from launch.standins import wait_until
from runners.checkpoints import NEW_TOKENS, PROMPTS, run

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass, Runner
    from contract.shared_runners import SharedRunners

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}


@pytest.fixture
def split(runners: SharedRunners, model_path: Path) -> tuple[Runner, pb.Loaded]:
    """Return a runner with a model that two workers share."""
    engine_args = {**SMALL, "tensor_parallel_size": 2}
    return runners.loaded("vllm", model_path, engine_args=engine_args, random_weights=WIDE_UNIFORM)


def test_a_split_of_random_weights_has_the_tokens_of_one_worker(
    split: tuple[Runner, pb.Loaded], drawn_pass: Pass
) -> None:
    """Two workers take their shards of one draw, so greedy tokens of a split can be compared."""
    runner, loaded = split
    effective = json.loads(loaded.effective_engine_args_json)
    assert (effective["random_weights_drawn"], effective["attention_backend"]) == ("whole", "CPU_ATTN")
    assert output_ids(run(runner)) == output_ids(drawn_pass)


def test_a_worker_that_hangs_is_a_hang_when_vllm_gives_up(split: tuple[Runner, pb.Loaded]) -> None:
    """It does so by itself, and before the coordinator would: five minutes after the step began unless set."""
    runner, _ = split
    call = runner.start_long()
    workers = runner.children("Worker")
    assert len(workers) == 2
    os.kill(max(workers), signal.SIGSTOP)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("INTERNAL", Cause.HANG)
    assert f"{HANG_LIMIT_S} s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)" in refused[1]
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    runner.unload()


def test_memory_that_a_worker_lacks_is_named_though_vllm_keeps_it_in_the_workers_log(
    runners: SharedRunners, tmp_path: Path
) -> None:
    """vLLM's own exception in the runner says only that some worker did not start; no worker is left."""
    runner = runners.bare("vllm")
    folder = write_config(tmp_path, vocab_size=1_000_000_000)
    code, detail = runner.refused_load(
        folder, engine_args={"distributed_executor_backend": "mp"}, random_weights=SMALL_UNIFORM
    )
    assert code == "RESOURCE_EXHAUSTED"
    assert "512000000000 bytes" in detail
    wait_until(lambda: set(runner.children("")) == set(runner.children("resource_tracker")))


def test_two_engines_with_a_common_queue_give_a_single_engines_greedy_tokens(
    runners: SharedRunners, model_path: Path, drawn_pass: Pass
) -> None:
    """Continuous batching in each; a closed loop of two keeps one request at each, and both serve."""
    engine_args = {**SMALL, "data_parallel_size": 2}
    runner, loaded = runners.loaded("vllm", model_path, engine_args=engine_args, random_weights=WIDE_UNIFORM)
    done = run(runner, arrival=pb.ARRIVAL_CLOSED, in_flight=2)
    assert output_ids(done) == output_ids(drawn_pass)
    parallelism = json.loads(loaded.environment.parallelism_json)
    assert parallelism == {"kind": "data", "data_parallel_size": 2, "devices": {}}
    assert {record.replica for record in done.requests} == {0, 1}
    assert done.summary.output_tokens == len(PROMPTS) * NEW_TOKENS
