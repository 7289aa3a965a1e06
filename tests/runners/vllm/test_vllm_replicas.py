"""vLLM as equal replicas, for real on the CPU: two engines, one queue, and the tokens of one engine alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import (
    VLLM_FOLDER,
    VLLM_PYTHON,
    ids_prompt,
    output_ids,
    running,
    workload,
)
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Runner

pytestmark = [
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}"),
    pytest.mark.slow,
]

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}
PROMPTS = [ids_prompt(length) for length in (5, 40, 17, 9, 30, 12)]
ASKED = workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2, max_output_tokens=24, return_token_ids=True)


@dataclass(frozen=True)
class Engines:
    """A runner with two engines, what it says of them, and the ids that one engine gave in their place."""

    runner: Runner
    loaded: pb.Loaded
    alone: list[list[int]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Load one engine, then two; the last test kills one of them."""
    shape = write_config(tmp_path_factory.mktemp("shape"), dtype="float32")
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
        runner.load(shape, engine_args=SMALL, random_weights=SMALL_UNIFORM)
        alone = output_ids(runner.generate(ASKED, PROMPTS))
        runner.unload()
        two = {**SMALL, "data_parallel_size": 2}
        yield Engines(runner, runner.load(shape, engine_args=two, random_weights=SMALL_UNIFORM)[0], alone)
        runner.unload()


def test_two_engines_that_take_from_one_queue_give_one_engine_s_greedy_tokens(engines: Engines) -> None:
    """Continuous batching in each; a closed loop of two keeps one request at each."""
    done = engines.runner.generate(ASKED, PROMPTS)
    assert output_ids(done) == engines.alone
    parallelism = json.loads(engines.loaded.environment.parallelism_json)
    assert parallelism == {"kind": "data", "data_parallel_size": 2, "devices": {}}
    assert json.loads(engines.loaded.effective_engine_args_json)["data_parallel_size"] == 2
    assert {record.replica for record in done.requests} == {0, 1}
    assert sum(record.output_tokens for record in done.summary.replicas) == done.summary.output_tokens == 6 * 24


def test_an_open_loop_over_two_engines_keeps_one_schedule(engines: Engines) -> None:
    """Arrivals are the pass's, not each engine's: as many, at the instants that one engine would see."""
    open_loop = workload(arrival=pb.ARRIVAL_POISSON, in_flight=4, rate_per_s=20.0, seed=7, min_requests=20)
    done = engines.runner.generate(open_loop, PROMPTS)
    assert [record.index for record in done.requests] == list(range(20))
    intended = [record.intended_ns for record in done.requests]
    assert intended == sorted(intended)
    assert all(record.submitted_ns >= record.intended_ns for record in done.requests)
    assert {record.replica for record in done.requests} == {0, 1}
