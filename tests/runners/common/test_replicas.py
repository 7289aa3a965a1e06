"""Several equal engines behind one runner: one queue, one start, one record, and nothing left when one dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from contract.runner_process import (
    FAKE_FOLDER,
    PATIENCE_S,
    collect,
    generate_requests,
    ids_prompt,
    load_request,
    running,
    workload,
)
from contract.subjects import write_config

from wattdock.launch.keeper import descendants
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Runner

TWO = {"data_parallel_size": 2, "step_s": 0.005}
GPUS = ("GPU-a", "GPU-b")


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return write_config(tmp_path / "model")


@pytest.fixture
def fake() -> Iterator[Runner]:
    """Return a fake runner that has loaded nothing."""
    with running("fake", FAKE_FOLDER, gpus="0,1") as runner:
        yield runner


def workers(runner: Runner) -> list[int]:
    """Return the processes that hold a copy each, in order."""
    return sorted(pid for pid in descendants(runner.process.pid) if b"wattdock_runner.worker" in _command(pid))


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_each_replica_has_a_gpu_of_its_own_and_the_whole_is_what_is_reported(fake: Runner, model_path: Path) -> None:
    """Two processes, two GPUs, one model and its size."""
    loaded, progress = fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    environment = loaded.environment
    assert [gpu.uuid for gpu in environment.visible_gpus] == list(environment.used_gpu_uuids) == list(GPUS)
    split = json.loads(environment.parallelism_json)
    assert split == {"kind": "data", "data_parallel_size": 2, "devices": {"GPU-a": 1, "GPU-b": 1}}
    assert (environment.parameter_count, environment.weight_bytes) == (1_000, 4_000)
    assert json.loads(loaded.effective_engine_args_json)["data_parallel_size"] == 2
    assert [record.stage for record in progress] == ["pretending to load", "loaded"]
    seen = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in workers(fake)]
    assert [b"CUDA_VISIBLE_DEVICES=0" in seen[0], b"CUDA_VISIBLE_DEVICES=1" in seen[1]] == [True, True]


def test_a_replica_that_is_free_takes_the_next_request(fake: Runner, model_path: Path) -> None:
    """One gets a long request first and serves few; every request is served once, and all tokens are counted."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    limits = [100] + [5] * 12
    prompts = [ids_prompt(3 + i, max_output_tokens=limit) for i, limit in enumerate(limits)]
    closed = workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2, return_token_ids=True)
    done = fake.generate(closed, prompts)
    assert [record.index for record in done.requests] == list(range(13))
    assert [record.output_tokens for record in done.requests] == limits
    assert [record.prompt_tokens for record in done.requests] == [3 + i for i in range(13)]
    served = Counter(record.replica for record in done.requests)
    assert sorted(served) == [0, 1]
    assert served[done.requests[0].replica] < 4 < 9 < max(served.values())
    assert done.output_tokens[-1] == done.summary.output_tokens == sum(limits)
    assert done.output_tokens == sorted(done.output_tokens)


def test_replicas_start_together_and_the_one_without_work_waits_for_the_other(fake: Runner, model_path: Path) -> None:
    """The common start, each one's last token, and the pass's end: what tail energy is made of."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    prompts = [ids_prompt(3, max_output_tokens=80), ids_prompt(3, max_output_tokens=5)]
    done = fake.generate(workload(in_flight=2), prompts)
    span, replicas = done.summary.span, done.summary.replicas
    assert span.drained
    assert [list(record.gpu_uuids) for record in replicas] == [["GPU-a"], ["GPU-b"]]
    assert {record.span.start_ns for record in replicas} == {span.start_ns}
    assert max(record.span.end_ns for record in replicas) == span.end_ns
    assert sum(record.output_tokens for record in replicas) == 85
    tails_s = sorted((span.end_ns - record.last_token_ns) / 1e9 for record in replicas)
    assert tails_s[0] < 0.1 < 0.3 < tails_s[1]
    assert max(record.submitted_ns for record in done.requests) - span.start_ns < 0.1e9


def test_minima_are_the_whole_pass_es_and_the_loaded_replicas_serve_again(fake: Runner, model_path: Path) -> None:
    """Seven requests are seven, not seven for each; and the queue begins anew."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    for _ in range(2):
        done = fake.generate(workload(in_flight=2, min_requests=7), [ids_prompt(3)] * 2)
        assert done.summary.requests == 7
        assert [record.index for record in done.requests] == list(range(7))
        assert done.heartbeats


@pytest.mark.parametrize(
    ("fields", "words"), [({"in_flight": 3}, "3 request(s)"), ({"arrival": pb.ARRIVAL_SINGLE}, "1 request(s)")]
)
def test_requests_in_flight_that_cannot_be_shared_out_are_refused(
    fake: Runner, model_path: Path, fields: dict[str, object], words: str
) -> None:
    """Unequal replicas would measure the sharing out."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    with pytest.raises(grpc.RpcError) as caught:
        fake.generate(workload(**fields), [ids_prompt(3)])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (caught.value.details() or "")
    assert fake.generate(workload(in_flight=2), [ids_prompt(3)] * 2).summary.requests == 2


@pytest.mark.parametrize(
    ("arguments", "gpus", "words"),
    [({"data_parallel_size": 0}, (), "at least 1"), (TWO, ("GPU-a",), "there are 1 GPUs; each replica takes one")],
)
def test_replicas_that_cannot_be_are_refused(
    fake: Runner, model_path: Path, arguments: dict[str, object], gpus: tuple[str, ...], words: str
) -> None:
    """Before any process is started; the next load works."""
    with pytest.raises(grpc.RpcError) as caught:
        list(fake.stub.Load(load_request(model_path, engine_args=arguments, gpu_uuids=gpus)))
    assert words in (caught.value.details() or "")
    assert workers(fake) == []
    fake.load(model_path)


def test_running_out_of_memory_in_one_replica_ends_the_pass_by_name_and_the_next_one_runs(
    fake: Runner, model_path: Path
) -> None:
    """The other is told to stop, and both still hold their copy."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    before = workers(fake)
    prompts = [ids_prompt(3, max_output_tokens=2000), pb.Prompt(text="fault:oom")]
    with pytest.raises(grpc.RpcError) as caught:
        fake.generate(workload(in_flight=2), prompts)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "replica " in (caught.value.details() or "")
    assert fake.generate(workload(in_flight=2), [ids_prompt(3)] * 2).summary.requests == 2
    assert workers(fake) == before


def test_a_replica_killed_mid_pass_is_named_and_no_process_is_left(fake: Runner, model_path: Path) -> None:
    """The runner survives, says what to do, and can load again."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    call = fake.stub.Generate(iter(generate_requests(workload(min_duration_s=600.0), [ids_prompt(3)])))
    next(call)
    time.sleep(0.3)
    before = workers(fake)
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert f"replica 1 of 2 (pid {before[1]}) died: it was killed by SIGKILL" in (caught.value.details() or "")
    assert workers(fake) == []
    with pytest.raises(grpc.RpcError, match="Unload, then Load again"):
        fake.generate(workload(), [ids_prompt(3)])
    fake.stub.Unload(pb.UnloadRequest())
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    assert len(workers(fake)) == 2


def test_a_cancelled_pass_leaves_replicas_that_serve_the_next(fake: Runner, model_path: Path) -> None:
    """Nobody is killed for a client that went away."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    before = workers(fake)
    call = fake.stub.Generate(iter(generate_requests(workload(min_duration_s=600.0), [ids_prompt(3)])))
    threading.Timer(0.5, call.cancel).start()
    with pytest.raises(grpc.RpcError):
        collect(call)
    assert fake.generate(workload(in_flight=2), [ids_prompt(3)] * 2).summary.requests == 2
    assert workers(fake) == before


def test_replicas_end_with_their_runner(fake: Runner, model_path: Path) -> None:
    """Even one that is stopped, and by a signal that gives the runner no time."""
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    pids = workers(fake)
    os.kill(pids[0], signal.SIGSTOP)
    fake.process.kill()
    fake.process.wait()
    deadline_s = time.monotonic() + PATIENCE_S
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
