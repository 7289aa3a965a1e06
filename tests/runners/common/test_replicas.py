"""Several equal engines behind one runner: one queue, one start, one record, and nothing left when one dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import zlib
from array import array
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import FAKE_FOLDER, ids_prompt, refusal, running, workload
from launch.standins import exists, wait_until

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Runner

TWO = {"data_parallel_size": 2, "step_s": 0.005}
GPUS = ("GPU-a", "GPU-b")


@pytest.fixture(scope="module")
def process() -> Iterator[Runner]:
    """Return a fake runner on two GPUs."""
    with running("fake", FAKE_FOLDER, gpus="0,1") as runner:
        yield runner


@pytest.fixture
def fake(process: Runner, model_path: Path) -> Runner:
    """Return a fake runner with two replicas loaded; a test leaves them as they are, or unloads."""
    if process.model is None:
        process.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    return process


@pytest.fixture
def bare(process: Runner) -> Runner:
    """Return the same runner with nothing loaded."""
    process.unload()
    return process


def replicas_of(runner: Runner) -> list[int]:
    """Return the processes that hold a copy each, in order."""
    return runner.children("wattdock_runner.worker")


def test_each_replica_has_a_gpu_of_its_own_and_the_whole_is_what_is_reported(bare: Runner, model_path: Path) -> None:
    """Two processes, two GPUs, one model and its size."""
    loaded, progress = bare.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    environment = loaded.environment
    assert list(environment.visible_gpu_uuids) == list(environment.used_gpu_uuids) == list(GPUS)
    split = json.loads(environment.parallelism_json)
    assert split == {"kind": "data", "data_parallel_size": 2, "devices": {"GPU-a": 1, "GPU-b": 1}}
    assert (environment.parameter_count, environment.weight_bytes) == (1_000, 4_000)
    assert json.loads(loaded.effective_engine_args_json)["data_parallel_size"] == 2
    assert [record.stage for record in progress] == ["pretending to load", "loaded"]
    first, second = (Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in replicas_of(bare))
    assert b"CUDA_VISIBLE_DEVICES=0" in first
    assert b"CUDA_VISIBLE_DEVICES=1" in second


def test_a_replica_that_is_free_takes_the_next_request(fake: Runner) -> None:
    """One gets a long request of 2 s first and serves few; every request is served once, and all tokens are counted."""
    limits = [400] + [5] * 12
    prompts = [ids_prompt(3 + i, max_output_tokens=limit) for i, limit in enumerate(limits)]
    closed = workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2, return_token_ids=True)
    done = fake.generate(closed, prompts)
    assert [record.index for record in done.requests] == list(range(13))
    assert sum(done.steps.prompt_tokens) == done.summary.prompt_tokens
    assert sum(done.steps.decoded_tokens) == done.summary.output_tokens - 13
    assert list(done.steps.start_ns) == sorted(done.steps.start_ns)
    assert [record.output_tokens for record in done.requests] == limits
    assert [record.prompt_tokens for record in done.requests] == [3 + i for i in range(13)]
    served = Counter(record.replica for record in done.requests)
    assert sorted(served) == [0, 1]
    assert served[done.requests[0].replica] < 4
    assert max(served.values()) > 9
    assert done.output_tokens[-1] == done.summary.output_tokens == sum(limits)
    assert done.output_tokens == sorted(done.output_tokens)


def test_what_texts_were_rendered_to_is_known_with_replicas_too(fake: Runner) -> None:
    """It is what one process says of the same texts; ids alone have none."""
    texts = [pb.Prompt(text="a b"), pb.Prompt(text="c")]
    a, b, c = (zlib.crc32(word) % 32_000 for word in (b"a", b"b", b"c"))
    packed = array("I", [2, a, b, 1, c]).tobytes()
    for prompts in (texts, [*texts, ids_prompt(5)]):
        summary = fake.generate(workload(), prompts).summary
        assert summary.rendered_sha256 == hashlib.sha256(packed).hexdigest()
        assert not summary.template_asked_time
    assert not fake.generate(workload(), [ids_prompt(5)]).summary.HasField("rendered_sha256")


def test_the_pass_of_replicas_lasts_until_the_last_of_them_is_done(fake: Runner) -> None:
    """Each request tells which replica served it; the one without work waits for the other."""
    prompts = [ids_prompt(3, max_output_tokens=400), ids_prompt(3, max_output_tokens=5)]
    done = fake.generate(workload(in_flight=2), prompts)
    long, short = done.requests
    assert {long.replica, short.replica} == {0, 1}
    assert (short.output_tokens, long.output_tokens) == (5, 400)
    assert done.summary.span.start_ns <= short.submitted_ns < short.finished_ns < long.finished_ns
    assert long.finished_ns <= done.summary.span.end_ns


def test_minima_are_the_whole_pass_es_and_the_loaded_replicas_serve_again(fake: Runner) -> None:
    """Seven requests are seven, not seven for each; and the queue begins anew."""
    for _ in range(2):
        done = fake.generate(workload(in_flight=2, min_requests=7), [ids_prompt(3)] * 2)
        assert done.summary.requests == 7
        assert [record.index for record in done.requests] == list(range(7))
        assert done.heartbeats


def test_an_open_loop_over_replicas_has_a_single_schedule(fake: Runner) -> None:
    """Arrivals are the pass's, not each replica's: no request comes before its intended instant."""
    open_loop = workload(
        arrival=pb.ARRIVAL_OPEN, in_flight=4, arrival_ns=range(0, 400_000_000, 20_000_000), min_requests=20
    )
    done = fake.generate(open_loop, [ids_prompt(3)] * 2)
    assert [record.index for record in done.requests] == list(range(20))
    intended = [record.intended_ns for record in done.requests]
    assert intended == sorted(intended)
    assert all(record.submitted_ns >= record.intended_ns for record in done.requests)


@pytest.mark.parametrize("arrival", [pb.ARRIVAL_BATCH, pb.ARRIVAL_CLOSED, pb.ARRIVAL_OPEN])
def test_replicas_go_on_until_the_client_lets_the_pass_end(fake: Runner, arrival: pb.Arrival) -> None:
    """All of them, and the counts on the way are those of all; requests beyond the minimum come from both."""
    schedule = range(0, 60_000_000_000, 20_000_000) if arrival == pb.ARRIVAL_OPEN else ()
    asked = workload(arrival=arrival, in_flight=4, min_duration_s=0.5, arrival_ns=schedule)
    done, might_end_ns = fake.hold(asked, [ids_prompt(3), ids_prompt(4)], 1.9)
    span = done.summary.span
    assert span.end_ns > might_end_ns
    assert done.summary.requests < 2_900
    assert [record.index for record in done.requests] == list(range(done.summary.requests))
    late = {record.replica for record in done.requests if record.submitted_ns > span.start_ns + 1_000_000_000}
    assert late == {0, 1}
    for beat in done.heartbeats:
        assert 0 <= beat.requests_submitted - beat.requests_finished <= 4
    last = done.heartbeats[-1]
    assert (last.output_tokens, last.requests_submitted) == (done.summary.output_tokens, done.summary.requests)


def test_replicas_that_cannot_be_are_refused(bare: Runner, model_path: Path) -> None:
    """Before any process is started; the next load works."""
    code, detail = bare.refused_load(model_path, engine_args=TWO, gpu_uuids=("GPU-a",))
    assert (code, "there are 1 GPUs; each replica takes one" in detail) == ("INVALID_ARGUMENT", True), detail
    assert replicas_of(bare) == []
    bare.load(model_path)
    bare.unload()


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [("oom", "RESOURCE_EXHAUSTED", "the fake engine has no room"), ("refuse", "INTERNAL", "the fake engine refuses")],
)
def test_a_fault_in_one_replica_ends_the_pass_with_its_status_and_reason_and_the_next_one_runs(
    fake: Runner, fault: str, status: str, reason: str
) -> None:
    """Whatever class the backend raised; the other is told to stop, and both still hold their copy."""
    before = replicas_of(fake)
    prompts = [ids_prompt(3, max_output_tokens=2000), pb.Prompt(text=f"fault:{fault}")]
    code, detail = fake.refused_pass(workload(in_flight=2), prompts)
    assert (code, "replica " in detail, reason in detail) == (status, True, True), detail
    assert fake.generate(workload(in_flight=2), [ids_prompt(3)] * 2).summary.requests == 2
    assert replicas_of(fake) == before


def test_a_replica_killed_mid_pass_is_named_and_no_process_is_left(fake: Runner, model_path: Path) -> None:
    """The runner survives, says what to do, and can load again."""
    call = fake.start_long()
    victim = replicas_of(fake)[1]
    os.kill(victim, signal.SIGKILL)
    code, detail = refusal(call)
    assert code == "ABORTED"
    assert all(words in detail for words in (f"(pid {victim})", "SIGKILL"))
    assert replicas_of(fake) == []
    assert "Unload" in fake.refused_pass(workload(), [ids_prompt(3)])[1]
    fake.unload()
    fake.load(model_path, engine_args=TWO, gpu_uuids=GPUS)
    assert len(replicas_of(fake)) == 2


def test_a_cancelled_pass_leaves_replicas_that_serve_the_next(fake: Runner) -> None:
    """Nobody is killed for a client that went away."""
    before = replicas_of(fake)
    fake.start_long().cancel()
    assert fake.generate(workload(in_flight=2), [ids_prompt(3)] * 2).summary.requests == 2
    assert replicas_of(fake) == before


def test_replicas_end_with_their_runner(fake: Runner) -> None:
    """Even one that is stopped, and by a signal that gives the runner no time; the last test, which ends the runner."""
    pids = replicas_of(fake)
    os.kill(pids[0], signal.SIGSTOP)
    fake.process.kill()
    fake.process.wait()
    wait_until(lambda: not any(exists("pid", str(pid)) for pid in pids))
