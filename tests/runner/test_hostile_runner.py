"""A runner that lies, floods or never ends costs one clear error: neither the coordinator nor what was measured."""

from __future__ import annotations

import itertools
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from refused import raises
from seams.runner import wire
from unprivileged import short_name

from wattdock.config import WorkloadSpec
from wattdock.errors import Cause, LaunchError, RunnerError
from wattdock.inputs import PromptSet
from wattdock.runner import LoadRequest, PassRequest, RunnerClient
from wattdock_proto import PROTOCOL_VERSION
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Serving = Callable[..., RunnerClient]

PROMPTS = PromptSet(means=(1.0, 1.0), items=(array("I", (1,)),), max_output_tokens=(None,), sha256="0" * 64, name="one")
PASS = PassRequest(WorkloadSpec(batch_size=1), PROMPTS, min_requests=1)
SPAN = pb.Span(name="pass", start_ns=1, end_ns=2)


@dataclass
class Liar(runner_pb2_grpc.RunnerServicer):
    """Says what it was told to say."""

    described: pb.DescribeResponse = field(default_factory=pb.DescribeResponse)
    load: Iterable[pb.LoadEvent] = ()
    generate: Iterable[pb.GenerateEvent] = ()

    def Describe(self, request: object, context: object) -> pb.DescribeResponse:  # noqa: N802
        return self.described

    def Load(self, request: object, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        return itertools.takewhile(lambda _: context.is_active(), self.load)

    def Generate(self, request: Iterable[object], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        return itertools.takewhile(lambda _: context.is_active(), self.generate)


@dataclass(frozen=True)
class Alive:
    """A launched runner, as the client knows one, that lives."""

    address: str

    def alive(self) -> bool:
        return True


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Serve what a liar is given, and return a client of it."""
    with ExitStack() as stack:

        def serve(**says: Any) -> RunnerClient:
            server = grpc.server(ThreadPoolExecutor(2))
            runner_pb2_grpc.add_RunnerServicer_to_server(Liar(**says), server)  # type: ignore[no-untyped-call]
            address = f"unix:{short_name(tmp_path)}/r.sock"
            server.add_insecure_port(address)
            server.start()
            stack.callback(server.stop, None)
            return stack.enter_context(RunnerClient(cast("Any", Alive(address))))

        yield serve


def generated(client: RunnerClient) -> None:
    client.generate(PASS, silence_s=60, stall_s=60, heartbeat=lambda beat: True)


def test_a_load_that_tells_of_progress_for_ever_ends_at_its_limit(serving: Serving, tmp_path: Path) -> None:
    """Signs of life do not put it off."""
    client = serving(load=itertools.repeat(pb.LoadEvent(progress=pb.LoadProgress(stage="soon"))))
    with raises(RunnerError, cause=Cause.HANG):
        client.load(LoadRequest(tmp_path), timeout_s=0.5, progress=lambda stage: None)


@pytest.mark.parametrize(
    "event",
    [
        pb.GenerateEvent(requests=pb.RequestChunk(requests=[pb.RequestRecord()] * 10_000)),
        pb.GenerateEvent(tokens=pb.TokenSeries(at_ns=[1] * 100_000)),
        pb.GenerateEvent(heartbeat=pb.Heartbeat(pass_over=True)),
    ],
)
def test_a_record_without_end_is_refused_before_it_fills_the_memory(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, event: pb.GenerateEvent
) -> None:
    """After the last token nothing else ends the wait for it."""
    monkeypatch.setattr(wire, "MAX_PASS_BYTES", 50_000_000)
    with raises(RunnerError, "50,000,000", cause=Cause.MALFORMED):
        generated(serving(generate=itertools.repeat(event)))


REQUEST = pb.RequestRecord(index=0, submitted_ns=1, output_tokens=1)


def events(**summary: Any) -> list[pb.GenerateEvent]:
    whole = pb.PassSummary(**{"span": SPAN, "requests": 1, "output_tokens": 1, **summary})
    return [pb.GenerateEvent(requests=pb.RequestChunk(requests=[REQUEST])), pb.GenerateEvent(summary=whole)]


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (events(requests=2), [2, 1]),
        (events()[:1], ["summary"]),
        ([*events(), *events(output_tokens=5)[1:]], ["a second summary"]),
        ([*events(requests=0)[1:], *events()], ["a second summary"]),
        ([pb.GenerateEvent()], ["event"]),
        (events(span=pb.Span(name="pass", start_ns=2, end_ns=2)), ["span 'pass'"]),
        (events(span=pb.Span(name="pass", start_ns=2, end_ns=1)), ["span 'pass'"]),
        (events(span=pb.Span(end_ns=2**63 - 1)), ["span ''", 2**63 - 1]),
        (events(output_tokens=2**64 - 1), ["output_tokens", 2**64 - 1]),
        (
            [pb.GenerateEvent(tokens=pb.TokenSeries(at_ns=[1, 2])), *events()],
            ["tokens"],
        ),
        ([pb.GenerateEvent(steps=pb.StepSeries(start_ns=[1], end_ns=[1, 2])), *events()], ["steps"]),
        ([pb.GenerateEvent(steps=pb.StepSeries(end_ns=[1])), *events()], ["steps"]),
        ([pb.GenerateEvent(steps=pb.StepSeries(sequences=[2**63])), *events()], []),
        (
            [pb.GenerateEvent(steps=pb.StepSeries(start_ns=[1], sequences=[2**40])), *events()],
            ["sequences", 2**40],
        ),
    ],
)
def test_a_pass_that_cannot_be_is_the_runners_error(
    serving: Serving, said: list[pb.GenerateEvent], values: list[object]
) -> None:
    """Nothing of it could be stored or analysed, and no earlier pass is lost with it."""
    with raises(RunnerError, *values):
        generated(serving(generate=said))


def test_a_sound_pass_of_the_same_runner_is_taken(serving: Serving) -> None:
    """The checks refuse only what cannot be."""
    generated(serving(generate=events()))


def test_a_load_that_ends_before_it_begins_is_the_runners_error(serving: Serving, tmp_path: Path) -> None:
    """Its energy could not be told."""
    client = serving(load=[pb.LoadEvent(loaded=pb.Loaded(span=pb.Span(start_ns=2, end_ns=1)))])
    with raises(RunnerError, "''", cause=Cause.MALFORMED):
        client.load(LoadRequest(tmp_path), timeout_s=60, progress=lambda stage: None)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "1e5", '{"a"', "9" * 5_000])
@pytest.mark.parametrize("part", ["parallelism", "effective_engine_args"])
def test_settings_that_are_no_json_object_are_the_runners_error(
    serving: Serving, tmp_path: Path, part: str, text: str
) -> None:
    """They are text on the wire."""
    environment = pb.RunnerEnvironment(parallelism_json=text if part == "parallelism" else "")
    arguments = text if part != "parallelism" else ""
    loaded = pb.Loaded(environment=environment, effective_engine_args_json=arguments, span=SPAN)
    client = serving(load=[pb.LoadEvent(loaded=loaded)])
    with raises(RunnerError, cause=Cause.MALFORMED):
        client.load(LoadRequest(tmp_path), timeout_s=60, progress=lambda stage: None)


@pytest.mark.parametrize("fields", [{"arrivals": [99]}, {"supported_versions": "x", "framework_version": "1"}])
def test_a_description_that_nobody_understands_is_one_line(serving: Serving, fields: dict[str, Any]) -> None:
    """A kind of arrival without a name, and versions that are no range."""
    client = serving(described=pb.DescribeResponse(protocol_version=PROTOCOL_VERSION, **fields))
    with raises(LaunchError, cause=Cause.MALFORMED) as caught:
        client.wait_ready(60)
    assert "\n" not in str(caught.value)
