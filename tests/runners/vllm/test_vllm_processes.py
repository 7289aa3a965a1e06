"""A model split over worker processes whose workers fail while they load; for what is killed, see tests/e2e."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON, load_request, running
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock.launch.keeper import descendants

pytestmark = [
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}"),
    pytest.mark.slow,
]


def test_memory_that_a_worker_lacks_is_named_though_vllm_keeps_it_in_the_workers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own exception in the runner says only that some worker did not start; no worker is left."""
    # One core each; left to itself, vLLM wants a NUMA node for each worker.
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    folder = write_config(tmp_path, vocab_size=1_000_000_000)
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
        order = load_request(folder, engine_args={"tensor_parallel_size": 2}, random_weights=SMALL_UNIFORM)
        with pytest.raises(grpc.RpcError) as caught:
            list(runner.stub.Load(order))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "can't allocate memory: you tried to allocate 256000000000 bytes" in (caught.value.details() or "")
        left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(runner.process.pid)]
        assert [line for line in left if b"resource_tracker" not in line] == []
