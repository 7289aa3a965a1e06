"""A runner that says what files hold, over real gRPC, to a coordinator in virtual time."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import grpc
import numpy as np
from fuzz.commands import BrokenError, command, run_virtual
from fuzz.messages import MESSAGES, delimited, parted
from google.protobuf.message import DecodeError
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.virtual_meter import VirtualClock
from seams.runner import wire

from wattdock.clock import NS_PER_S
from wattdock.runner import RunnerClient
from wattdock_proto import PROTOCOL_VERSION
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from google.protobuf.message import Message

    Files = dict[str, bytes]

PASS_S, STEP_S, GPU = 2.0, 0.1, "GPU-1"
# Instants in a script count from when it is played, in nanoseconds; others are sent as they are.
NEAR_NS = 10**15
# How a stream ends that does not end as it should.
SOUND_END, ENDS = b'"sound"', ("endless", "silent", "status", "cut")


class QuickClock(VirtualClock):
    """A virtual clock that also runs by itself, much faster than the host's: whoever waits in earnest is soon done."""

    SPEED = 100

    def now_ns(self) -> int:
        return super().now_ns() + (time.monotonic_ns() - _BEGAN_NS) * self.SPEED


_BEGAN_NS = time.monotonic_ns()


def runner_seeds(folder: Path) -> list[Files]:
    """What a sound runner says: of one engine, and of two replicas."""
    reading = pb.ClockReading(boot_id=VirtualClock().identity().boot_id, monotonic_ns=1)
    described = pb.DescribeResponse(
        protocol_version=PROTOCOL_VERSION,
        backend="fake",
        framework="fake",
        framework_version="1.0",
        python_version="3.12",
        arrivals=["ARRIVAL_BATCH", "ARRIVAL_CLOSED"],
        clock=reading,
        supported_versions=">=1",
    )
    environment = pb.RunnerEnvironment(
        visible_gpu_uuids=[GPU],
        used_gpu_uuids=[GPU],
        framework="fake",
        framework_version="1.0",
        python_version="3.12",
        package_versions={"a": "1"},
        parallelism_json='{"kind": "tensor", "tensor_parallel_size": 1, "devices": {"GPU-1": 2}}',
        parameter_count=10**6,
        weight_bytes=2 * 10**6,
        warnings=["w"],
    )
    loaded = pb.Loaded(environment=environment, effective_engine_args_json='{"step_s": 0.1}', span=_span(0, 1.0))
    load = [pb.LoadEvent(progress=pb.LoadProgress(stage="reading")), pb.LoadEvent(loaded=loaded)]
    seeds = []
    for replicas in (0, 2):
        scripts: dict[str, Sequence[Message]] = {
            "describe": [described],
            "load": load,
            "generate": generate_events(replicas),
        }
        seeds.append({f"{name}.pbs": delimited(script) for name, script in scripts.items()} | {"end.json": SOUND_END})
    return seeds


def _span(start_s: float, end_s: float) -> pb.Span:
    # An instant of 0 is no field of the message, and would not be moved.
    return pb.Span(name="pass", start_ns=max(1, round(start_s * NS_PER_S)), end_ns=round(end_s * NS_PER_S))


def generate_events(replicas: int) -> list[pb.GenerateEvent]:
    """Return a pass of two requests of ten tokens."""
    steps = np.arange(10)
    starts = (steps * STEP_S * NS_PER_S).astype(int).tolist()
    ends = ((steps + 1) * STEP_S * NS_PER_S).astype(int).tolist()
    requests = [
        pb.RequestRecord(
            index=index,
            submitted_ns=1,
            first_token_ns=ends[0],
            finished_ns=ends[-1],
            prompt_tokens=8,
            cached_prompt_tokens=0,
            output_tokens=10,
            finish_reason="length",
            text="x",
            output_ids=pb.TokenIds(ids=range(10)),
            replica=index if replicas else None,
        )
        for index in range(2)
    ]
    series = pb.StepSeries(
        start_ns=starts,
        end_ns=ends,
        prompt_tokens=[16] + [0] * 9,
        decoded_tokens=[0] + [2] * 9,
        sequences=[2] * 10,
        context_tokens=[16 + 2 * step for step in range(10)],
    )
    summary = pb.PassSummary(
        span=_span(0, PASS_S), requests=2, prompt_tokens=16, cached_prompt_tokens=0, output_tokens=20
    )
    return [
        pb.GenerateEvent(heartbeat=pb.Heartbeat(at_ns=1, output_tokens=10, requests_finished=1)),
        pb.GenerateEvent(heartbeat=pb.Heartbeat(at_ns=2, output_tokens=20, requests_finished=2, pass_over=True)),
        pb.GenerateEvent(requests=pb.RequestChunk(requests=requests)),
        pb.GenerateEvent(tokens=pb.TokenSeries(at_ns=ends, output_tokens=[2 * step for step in range(1, 11)])),
        pb.GenerateEvent(steps=series),
        pb.GenerateEvent(summary=summary),
    ]


class Scripted(runner_pb2_grpc.RunnerServicer):
    """A runner that says what is in a folder, whatever it is asked."""

    def __init__(self) -> None:
        self.folder, self.clock = Path(), VirtualClock()

    def play(self, name: str) -> Iterator[Any]:
        """Yield the messages of a file, their instants from now on, and end as the script says."""
        file, end = self.folder / f"{name}.pbs", self.folder / "end.json"
        said = end.read_bytes() if end.exists() else b""
        how = "" if said == SOUND_END or name == "describe" else ENDS[zlib.crc32(said) % len(ENDS)]
        began_ns = self.clock.now_ns()
        stream = []
        for part in parted(file.read_bytes() if file.exists() else b""):
            with contextlib.suppress(DecodeError):
                stream.append(MESSAGES[name].FromString(part))
                _move(stream[-1], began_ns)
        yield from stream[: len(stream) // 2] if how == "cut" else stream
        while how == "endless":
            yield from stream[:-1] or [pb.LoadEvent() if name == "load" else pb.GenerateEvent()]
        if how == "silent":
            threading.Event().wait(2)

    def _stream(self, name: str, context: grpc.ServicerContext) -> Iterator[Any]:
        for number, message in enumerate(self.play(name)):
            if not context.is_active():
                return
            # The pass is over before the client hears so, and its meter stops.
            if name == "generate" and not number:
                self.clock.sleep(PASS_S + 1)
            yield message

    def Describe(self, request: object, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return next(self.play("describe"), pb.DescribeResponse())

    def Load(self, request: object, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        return self._stream("load", context)

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        return self._stream("generate", context)

    def Unload(self, request: object, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return pb.UnloadResponse()


def _move(message: Any, by_ns: int) -> None:
    """Add to every instant in a message, in place, unless it is one that a change has put there."""
    for field, inner in message.ListFields():
        if field.name.endswith("_ns"):
            moved = [at + by_ns if abs(at) < NEAR_NS else at for at in (inner if field.is_repeated else [inner])]
            if field.is_repeated:
                inner[:] = moved
            else:
                setattr(message, field.name, moved[0])
        elif field.message_type and not field.message_type.GetOptions().map_entry:
            for each in inner if field.is_repeated else [inner]:
                _move(each, by_ns)


@cache
def served() -> tuple[Scripted, str, grpc.Server]:
    """Return the runner of this process and its address."""
    servicer, server = Scripted(), grpc.server(ThreadPoolExecutor(8))
    runner_pb2_grpc.add_RunnerServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    address = f"unix:{tempfile.mkdtemp(prefix='wd')}/r.sock"
    server.add_insecure_port(address)
    server.start()
    # A server ends when it is forgotten.
    return servicer, address, server


LIMITS = dict.fromkeys(("launch_s", "load_s", "heartbeat_s", "stall_s"), 150)
PASSES = study(experiment("x", repeats={"passes": 1}, warmup={"passes": 0}, idle={"duration_s": 1}, timeouts=LIMITS))


def run_runner(folder: Path) -> None:
    machine = VirtualMachine(folder, power={GPU: lambda _: 300.0}, clock=QuickClock())
    servicer, address, _ = served()
    servicer.folder, servicer.clock = folder, machine.clock
    at_address = replace(machine.access(), connect=lambda _, check, clock: _client(address, check, clock))
    with patch.object(machine, "access", lambda _: at_address), patch.object(wire, "MAX_PASS_BYTES", 400_000_000):
        run_virtual(machine, PASSES)
    if "left out" in command(folder, "results", "list"):
        raise BrokenError("a result was stored that cannot be read")


def _client(address: str, check: Callable[[], None], clock: Any) -> RunnerClient:
    runner = VirtualRunner(clock)
    runner.address = address
    return RunnerClient(cast("Any", runner), check, clock)
