"""A model split over worker processes: whose it is, and how a load fails; for what is killed, see tests/e2e."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import (
    VLLM_FOLDER,
    VLLM_PYTHON,
    ids_prompt,
    refusal,
    running,
    workload,
)
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock.execution.failures import HANG, cause_of
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.runner_process import Runner

pytestmark = [
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}"),
]


# Left to itself, vLLM wants a NUMA node for each worker.
CORES = sorted(os.sched_getaffinity(0))
A_CORE_EACH = f"{CORES[0]}|{CORES[-1]}"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """Return a runner whose workers get a core each."""
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON, VLLM_CPU_OMP_THREADS_BIND=A_CORE_EACH) as started:
        yield started


def answers(runner: Runner, folder: Path, split: dict[str, object]) -> list[list[int]]:
    """Return the ids that a model of random weights generates, loaded with this split."""
    weights = pb.RandomWeights(low=-0.5, high=0.5, seed=3)
    loaded, _ = runner.load(folder, engine_args=split, random_weights=weights)
    effective = json.loads(loaded.effective_engine_args_json)
    assert (effective["random_weights_drawn"], effective["attention_backend"]) == ("whole", "CPU_ATTN")
    batch = workload(in_flight=3, max_output_tokens=24, return_token_ids=True)
    done = runner.generate(batch, [ids_prompt(length) for length in (5, 9, 14)])
    runner.unload()
    return [list(request.output_ids.ids) for request in done.requests]


def test_a_split_of_random_weights_has_the_tokens_of_one_worker(runner: Runner, tmp_path: Path) -> None:
    """Two workers take their shards of one draw, so greedy tokens of a split can be compared; and they end."""
    folder = write_config(tmp_path, dtype="float32")
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as alone:
        whole = answers(alone, folder, {})
    assert answers(runner, folder, {"tensor_parallel_size": 2}) == whole
    assert all(len(set(ids)) > 3 for ids in whole)


def test_memory_that_a_worker_lacks_is_named_though_vllm_keeps_it_in_the_workers_log(
    runner: Runner, tmp_path: Path
) -> None:
    """vLLM's own exception in the runner says only that some worker did not start; no worker is left."""
    folder = write_config(tmp_path, vocab_size=1_000_000_000)
    code, detail = runner.refused_load(folder, engine_args={"tensor_parallel_size": 2}, random_weights=SMALL_UNIFORM)
    assert code == "RESOURCE_EXHAUSTED"
    assert "can't allocate memory: you tried to allocate 256000000000 bytes" in detail
    assert set(runner.children("")) == set(runner.children("resource_tracker"))


def test_a_worker_that_hangs_is_a_hang_when_vllm_gives_up(tmp_path: Path) -> None:
    """It does so by itself, and before the coordinator would: five minutes after the step began unless set."""
    limited: Any = {"VLLM_CPU_OMP_THREADS_BIND": A_CORE_EACH, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "8"}
    folder = write_config(tmp_path, dtype="float32")
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON, **limited) as runner:
        runner.load(folder, engine_args={"tensor_parallel_size": 2}, random_weights=SMALL_UNIFORM)
        call = runner.start_long()
        workers = runner.children("Worker")
        assert len(workers) == 2
        os.kill(max(workers), signal.SIGSTOP)
        code, detail = refusal(call)
    assert code == "INTERNAL"
    assert "vLLM's workers did not answer within 8 s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)" in detail
    cause = cause_of(f"a pass failed: {detail}")
    assert cause is not None
    assert cause.name == HANG
