"""A model split over two worker processes: named failure when one dies, nothing left when the runner does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from contract.runner_process import (
    VLLM_FOLDER,
    VLLM_PYTHON,
    Runner,
    generate_requests,
    ids_prompt,
    workload,
)
from contract.subjects import SMALL_UNIFORM, write_config

from wattdock.launch.keeper import descendants
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import LaunchSpec
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.launch.process import RunnerProcess

pytestmark = [
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}"),
    pytest.mark.slow,
]


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RunnerProcess, pb.Loaded, object]]:
    """Return a launched runner whose engine has two worker processes, what it loaded, and a running pass."""
    # One core each; left to itself, vLLM wants a NUMA node for each worker.
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    spec = LaunchSpec(backend="vllm", runner_dir=VLLM_FOLDER, log_path=tmp_path / "log")
    with ProcessLauncher(VLLM_PYTHON).launch(spec) as launched, grpc.insecure_channel(launched.address) as channel:
        stub = runner_pb2_grpc.RunnerStub(channel)  # type: ignore[no-untyped-call]
        stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=30)
        runner = Runner(None, Path(), spec.log_path, stub)  # type: ignore[arg-type]
        folder = write_config(tmp_path / "model")
        loaded, _ = runner.load(folder, engine_args={"tensor_parallel_size": 2}, random_weights=SMALL_UNIFORM)
        long_pass = workload(min_duration_s=600, max_output_tokens=40)
        call = stub.Generate(iter(generate_requests(long_pass, [ids_prompt(10)] * 4)))
        while not next(call).heartbeat.output_tokens:
            pass
        yield launched, loaded, call


def workers(runner: RunnerProcess) -> list[int]:
    """Return the pids of vLLM's workers below a runner; vLLM names them."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(runner.pid)}
    return [pid for pid, name in names.items() if name.startswith(b"VLLM::Worker")]


def gone(pids: list[int]) -> bool:
    """Whether none of the processes exists."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_that_dies_mid_pass_is_named_and_the_rest_ends_with_the_runner(
    split: tuple[RunnerProcess, pb.Loaded, object],
) -> None:
    """The pass fails at once, not by a timeout."""
    runner, loaded, call = split
    parallelism = '{"kind": "tensor", "tensor_parallel_size": 2, "devices": {}}'
    assert loaded.environment.parallelism_json == parallelism
    pids = workers(runner)
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    killed_s = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)  # type: ignore[call-overload]
    assert time.monotonic() - killed_s < 30
    assert "a process of vLLM's engine died during the pass" in (caught.value.details() or "")
    runner.stop(grace_s=10)
    assert gone([runner.pid, *pids])


def test_nothing_is_left_of_a_runner_that_was_killed_mid_pass(split: tuple[RunnerProcess, pb.Loaded, object]) -> None:
    """The keeper ends what the runner could not."""
    runner, _, _ = split
    pids = descendants(runner.pid)
    assert len(pids) >= 2
    os.kill(runner.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while runner.alive():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert gone([runner.pid, *pids])
    assert runner.exit_reason() == "killed by SIGKILL (out of memory?)"
