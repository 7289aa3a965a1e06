"""What ends a pass early and what does not, with the client and a real runner."""

from __future__ import annotations

import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import grpc
import pytest
from contract.runner_process import FAKE_FOLDER, load_request, running
from contract.subjects import write_config
from refused import raises
from unprivileged import short_name

from wattdock.config import WorkloadSpec
from wattdock.errors import Cause, LaunchError, RunnerError
from wattdock.inputs import PromptSet
from wattdock.runner import Heartbeat, LoadRequest, PassRequest, RunnerClient
from wattdock_proto import PROTOCOL_VERSION
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from contract.runner_process import Runner

    from wattdock.launch import LaunchedRunner

PROMPTS = PromptSet(
    items=(array("I", (1, 2)), array("I", (3, 4))),
    max_output_tokens=(None, None),
    sha256="0" * 64,
    name="two",
    means=(2.0, 64.0),
)


def launched(runner: object) -> LaunchedRunner:
    """Return it as the client takes one, which asks no more of it."""
    return cast("LaunchedRunner", runner)


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Runner]:
    """Return a fake runner that has loaded its model."""
    with running("fake", FAKE_FOLDER) as runner:
        list(runner.stub.Load(load_request(write_config(tmp_path / "model"))))
        yield runner


def generate(client: RunnerClient, heartbeat: Callable[[Heartbeat], bool]) -> int:
    spec = WorkloadSpec(batch_size=2, max_output_tokens=5)
    drained = PassRequest(spec, PROMPTS, min_requests=2, settle_s=1.5, ignore_eos=True)
    done = client.generate(drained, silence_s=60, stall_s=60, heartbeat=heartbeat)
    return done.output_tokens


def test_a_status_alone_tells_a_lack_of_memory(tmp_path: Path) -> None:
    """Engines say it in words that nobody foresaw; their runner has recognised it."""
    order = LoadRequest(write_config(tmp_path / "model"), engine_args={"load_fault": "oom"})
    with (
        running("fake", FAKE_FOLDER) as runner,
        RunnerClient(launched(runner)) as client,
        raises(RunnerError, cause=Cause.MEMORY),
    ):
        client.load(order, timeout_s=60, progress=lambda stage: None)


@pytest.mark.parametrize(
    ("fault", "load_s", "silence_s", "named"),
    [
        ({"load_fault": "hang"}, 1, 60, "loading"),
        ({"pass_fault": "hang"}, 60, 1, "a pass"),
        ({"step_s": 1000}, 60, 60, "timeouts.stall_s"),
    ],
)
def test_a_runner_that_hangs_is_told_from_one_whose_engine_does(
    tmp_path: Path, fault: dict[str, object], load_s: float, silence_s: float, named: str
) -> None:
    """A stopped process answers nothing; an engine that hangs still sends heartbeats."""
    order = LoadRequest(write_config(tmp_path / "model"), engine_args=fault)
    request = PassRequest(WorkloadSpec(batch_size=2), PROMPTS, min_requests=2)

    waited = list[None]()

    def serve(client: RunnerClient) -> None:
        client.load(order, timeout_s=load_s, progress=lambda stage: None, waiting=lambda: waited.append(None))
        client.generate(request, silence_s=silence_s, stall_s=1, heartbeat=lambda beat: True)

    with (
        running("fake", FAKE_FOLDER) as runner,
        RunnerClient(launched(runner)) as client,
        raises(RunnerError, named, cause=Cause.HANG),
    ):
        serve(client)


class Newer(runner_pb2_grpc.RunnerServicer):
    """A runner of a later protocol, with a kind of arrival that nobody has heard of."""

    def Describe(self, request: pb.DescribeRequest, context: object) -> pb.DescribeResponse:  # noqa: N802
        return pb.DescribeResponse(protocol_version=PROTOCOL_VERSION + 1, arrivals=[99])  # type: ignore[list-item]


def test_a_runner_of_another_protocol_is_refused_by_its_version(tmp_path: Path) -> None:
    """Before what only its own version can name is read."""
    server = grpc.server(ThreadPoolExecutor(1))
    runner_pb2_grpc.add_RunnerServicer_to_server(Newer(), server)  # type: ignore[no-untyped-call]
    runner = SimpleNamespace(address=f"unix:{short_name(tmp_path)}/r.sock")
    server.add_insecure_port(runner.address)
    server.start()
    try:
        with RunnerClient(launched(runner)) as client, raises(LaunchError, cause=Cause.VERSION):
            client.wait_ready(60)
    finally:
        server.stop(None)


def test_an_interruption_while_a_finished_pass_is_drained_does_not_cost_it(loaded: Runner) -> None:
    """The second Ctrl-C comes after the last token and before the record: it waits; one before the end does not."""
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    def once_over(beat: Heartbeat) -> bool:
        if beat.pass_over:
            interrupted.set()
        return True

    with RunnerClient(launched(loaded), check=check) as client:
        assert generate(client, once_over) == 2 * 5
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            generate(client, once_over)
