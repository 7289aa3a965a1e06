"""The coordinator decides how long a pass goes on, over gRPC and in virtual time alike; whatever ends it frees both."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from contract.runner_process import (
    FAKE_FOLDER,
    Runner,
    ids_prompt,
    load_request,
    runner_environment,
    running,
    workload,
)
from contract.subjects import write_config
from launch.standins import wait_until
from make.machine import VirtualRunner
from make.virtual_meter import VirtualClock
from refused import raises

from wattdock.clock import NS_PER_S
from wattdock.config import WorkloadSpec
from wattdock.errors import Cause, RunnerError
from wattdock.inputs import PromptSet
from wattdock.runner import Heartbeat, PassRequest, RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.records import PassRecord

STEP_S, MIN_S, HELD_S, PERIOD_S = 0.02, 1.0, 3.0, 0.11
CLOSED = WorkloadSpec(batch_size=2, max_output_tokens=7, arrival="closed")
BATCH = WorkloadSpec(batch_size=2, max_output_tokens=7)
OPEN = WorkloadSpec(batch_size=4, max_output_tokens=7, arrival="poisson", rate_per_s=1 / PERIOD_S)
LENGTHS = (3, 5, 4)
# A runner that writes the stacks of its threads to its log when it is asked to, while none of them runs Python: what
# faulthandler registers itself reads stacks as they change, and can crash.
DUMPING = """
import faulthandler, signal, sys
from wattdock_runner import __main__ as runner
signal.signal(signal.SIGUSR1, lambda *_: faulthandler.dump_traceback())
sys.exit(runner.main())
"""
# A client that never lets its pass end, and tells of its progress.
HOLDING = """
import sys, threading
import grpc
from wattdock_proto.v1 import runner_pb2 as pb, runner_pb2_grpc

def requests():
    work = pb.Workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2, max_output_tokens=5, min_duration_s=0.1, prompts=1)
    yield pb.GenerateRequest(workload=work)
    yield pb.GenerateRequest(prompts=pb.PromptChunk(prompts=[pb.Prompt(token_ids=bytes(4))]))
    threading.Event().wait()

for event in runner_pb2_grpc.RunnerStub(grpc.insecure_channel(sys.argv[1])).Generate(requests()):
    print(event.heartbeat.output_tokens, flush=True)
"""


def requested(work: WorkloadSpec, min_duration_s: float | None = MIN_S, *, arrivals: int = 0) -> PassRequest:
    """Return a pass of three prompts, in an open loop with so many arrivals."""
    prompts = PromptSet(
        items=tuple(array("I", range(length)) for length in LENGTHS),
        max_output_tokens=(None,) * 3,
        sha256="0" * 64,
        name="three",
        means=(4.0, 7.0),
        arrivals_ns=tuple(round(i * PERIOD_S * NS_PER_S) for i in range(arrivals)),
    )
    return PassRequest(work, prompts, min_requests=3, min_duration_s=min_duration_s, ignore_eos=True)


@dataclass
class Decision:
    """Lets a pass end once it has gone on for some time; keeps all heartbeats."""

    after_s: float
    beats: list[Heartbeat] = field(default_factory=list)

    def __call__(self, beat: Heartbeat) -> bool:
        """Note a heartbeat."""
        self.beats.append(beat)
        return beat.at_ns - self.beats[0].at_ns >= self.after_s * NS_PER_S


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Return a fake runner that has loaded its model."""
    folder = tmp_path_factory.mktemp("model")
    with running("fake", FAKE_FOLDER) as runner:
        list(runner.stub.Load(load_request(write_config(folder), engine_args={"step_s": STEP_S})))
        yield runner


@pytest.fixture
def client(loaded: Runner) -> Iterator[RunnerClient]:
    """Return a client of it; no thread of a test's passes may be left."""
    with RunnerClient(cast("Any", loaded)) as connected:
        yield connected
    wait_until(lambda: not waiting_streams())


def waiting_streams() -> list[str]:
    """Return the functions of the client in which threads hold a stream open."""
    found = []
    for frame in sys._current_frames().values():
        at: Any = frame
        while at:
            if at.f_code.co_filename.endswith("wattdock/runner/client.py") and at.f_code.co_name == "requests":
                found.append(at.f_code.co_name)
            at = at.f_back
    return found


@pytest.fixture(params=["grpc", "virtual"])
def generate(request: pytest.FixtureRequest) -> Callable[[PassRequest, Callable[[Heartbeat], bool]], PassRecord]:
    """Return what runs a pass, on a real runner or in virtual time."""
    runner: Any = (
        VirtualRunner(VirtualClock(), args={"step_s": STEP_S})
        if request.param == "virtual"
        else request.getfixturevalue("client")
    )
    return lambda asked, heard: runner.generate(asked, silence_s=60, stall_s=60, heartbeat=heard)


@pytest.mark.parametrize("work", [CLOSED, BATCH, OPEN], ids=["closed", "batch", "open"])
def test_a_pass_goes_on_until_the_coordinator_lets_it_end(generate: Any, work: WorkloadSpec) -> None:
    """Three times its minimum, prompts in order; then nothing enters, and what is in the engine finishes."""
    held = Decision(HELD_S)
    done = generate(requested(work, arrivals=1_000 * (work.loop == "open")), held)
    last = next(beat for beat in held.beats if beat.at_ns - held.beats[0].at_ns >= HELD_S * NS_PER_S)
    assert done.span.start_ns < held.beats[0].at_ns + NS_PER_S
    assert done.span.end_ns >= last.at_ns
    assert [sent.prompt_tokens for sent in done.requests] == [LENGTHS[i % 3] for i in range(len(done.requests))]
    assert {sent.output_tokens for sent in done.requests} == {7}
    # Still served long after the minimum was met, and no thousand arrivals later.
    assert max(sent.submitted_ns for sent in done.requests) > done.span.start_ns + (HELD_S - 1) * NS_PER_S
    assert len(done.requests) < 900
    counts = [(beat.at_ns, beat.output_tokens, beat.requests_submitted) for beat in held.beats]
    assert counts == sorted(counts)
    inside = [beat.requests_submitted - beat.requests_finished for beat in held.beats]
    assert all(0 <= number <= work.batch_size for number in inside)
    assert max(inside) > 0
    assert last.requests_submitted <= len(done.requests)
    assert (held.beats[0].output_tokens, held.beats[-1].output_tokens) == (0, done.output_tokens)
    assert [beat.pass_over for beat in held.beats].index(True) == len(held.beats) - 1


def test_a_pass_that_may_end_at_once_ends_at_its_minimum(generate: Any) -> None:
    """Nothing enters after it: who decides nothing gets what the workload asks for."""
    done = generate(requested(CLOSED), Decision(0.0))
    submitted_s = [(sent.submitted_ns - done.span.start_ns) / NS_PER_S for sent in done.requests]
    assert MIN_S - 8 * STEP_S < max(submitted_s) < MIN_S + 1
    assert done.span.duration_s >= MIN_S


@pytest.mark.parametrize(
    ("asked", "requests"),
    [(requested(CLOSED, None), 3), (requested(BATCH, None), 3), (requested(OPEN, arrivals=5), 5)],
    ids=["closed", "batch", "arrivals used up"],
)
def test_a_pass_of_a_known_number_of_requests_waits_for_nobody(
    generate: Any, asked: PassRequest, requests: int
) -> None:
    """Its client never lets it end, and it ends: an open loop at its minimum duration."""
    done = generate(asked, lambda _: False)
    assert len(done.requests) == requests
    assert done.span.duration_s >= (asked.min_duration_s or 0)


def test_what_the_callback_raises_ends_the_pass_and_frees_the_runner(client: RunnerClient) -> None:
    """The next pass is served."""

    def fail(beat: Heartbeat) -> bool:
        if beat.output_tokens:
            assert waiting_streams()
            raise KeyError("put in by a test")
        return False

    with pytest.raises(KeyError, match="put in by a test"):
        client.generate(requested(CLOSED), silence_s=60, stall_s=60, heartbeat=fail)
    wait_until(lambda: not waiting_streams())
    done = client.generate(requested(CLOSED, None), silence_s=60, stall_s=60, heartbeat=lambda _: False)
    assert done.output_tokens == 21


def test_a_client_that_dies_while_the_stream_is_open_frees_the_runner(tmp_path: Path) -> None:
    """The next pass is served, and no thread waits for the dead client."""

    def stacks(runner: Runner) -> str:
        before = len(runner.log.read_text())
        runner.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "in main" in runner.log.read_text()[before:])
        return runner.log.read_text()[before:]

    command, environment = [sys.executable, "-c", HOLDING], runner_environment(FAKE_FOLDER, "")
    with running("fake", FAKE_FOLDER, program=("-c", DUMPING)) as runner:
        runner.load(write_config(tmp_path / "model"))
        with subprocess.Popen([*command, runner.address], env=environment, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout
            assert any(int(line) > 0 for line in dying.stdout)
            assert "in _await_end" in stacks(runner)
            dying.kill()
        assert runner.generate(workload(), [ids_prompt(3)]).summary.output_tokens == 5
        wait_until(lambda: "in _await_end" not in stacks(runner))


def test_a_runner_that_dies_while_the_stream_is_open_ends_the_pass(client: RunnerClient, loaded: Runner) -> None:
    """The last test: it ends the runner."""

    def kill(beat: Heartbeat) -> bool:
        if beat.output_tokens:
            threading.Timer(0.1, loaded.process.kill).start()
        return False

    began_s = time.monotonic()
    with raises(RunnerError, "died during a pass", cause=Cause.RUNNER):
        client.generate(requested(CLOSED), silence_s=300, stall_s=300, heartbeat=kill)
    assert time.monotonic() - began_s < 120
