"""Start a real runner process and speak gRPC to it over its Unix socket; for tests."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from seams.launch import descendants, end_group
from seams.runner import CAUSE_KEY

from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).parents[2]
FAKE_FOLDER = ROOT / "tests/runners/fake"
PYTORCH_FOLDER = ROOT / "runners/pytorch"
LLAMACPP_FOLDER = ROOT / "runners/llamacpp"
LLAMACPP_PYTHON = LLAMACPP_FOLDER / ".venv/bin/python"
PYTORCH_PYTHON = PYTORCH_FOLDER / ".venv/bin/python"
VLLM_FOLDER = ROOT / "runners/vllm"
VLLM_PYTHON = VLLM_FOLDER / ".venv/bin/python"
TENSORRT_FOLDER = ROOT / "runners/tensorrt"
SGLANG_FOLDER = ROOT / "runners/sglang"
SEND_CHUNK = 1 << 20
# How long to wait for what has to come; a test that passes waits no longer than it takes.
PATIENCE_S = 120
# Ends a load or a pass that hangs.
LONGEST_S = 600


@dataclass
class Pass:
    """Everything that one Generate call returned."""

    summary: pb.PassSummary
    requests: list[pb.RequestRecord]
    at_ns: list[int]
    output_tokens: list[int]
    steps: pb.StepSeries
    heartbeats: list[pb.Heartbeat]
    chunk_bytes: list[int]


@dataclass
class Runner:
    """One running runner and a client for it.

    Attributes:
        model: The order of the load that `load` made last and what came of it; None once unloaded.
    """

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path
    stub: Any
    model: tuple[pb.LoadRequest, pb.Loaded] | None = None
    lacked_memory: bool = False

    @property
    def address(self) -> str:
        """As the coordinator's client asks for it, and the two below."""
        return f"unix:{self.socket}"

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def exit_reason(self) -> str:
        """Return how the process ended."""
        return f"ended with {self.process.poll()}"

    def load(self, model_path: Path, **fields: Any) -> tuple[pb.Loaded, list[pb.LoadProgress]]:
        """Load and return what the runner says it loaded, and its progress before."""
        order = load_request(model_path, **fields)
        events = list(self.stub.Load(order, timeout=LONGEST_S))
        assert events[-1].WhichOneof("event") == "loaded"
        self.model = order, events[-1].loaded
        return events[-1].loaded, [event.progress for event in events[:-1]]

    def start(self, workload: pb.Workload, prompts: Sequence[pb.Prompt], may_end: threading.Event | None = None) -> Any:
        """Start a pass and return its call; without an event, the pass may end at once."""
        requests = generate_requests(workload, prompts)
        held = iter(may_end.wait, True) if may_end else ()
        return self.stub.Generate(itertools.chain(requests, held), timeout=LONGEST_S)

    def start_long(self) -> Any:
        """Start a pass of ten minutes and return its call once there are tokens."""
        endless = workload(min_duration_s=600.0, max_output_tokens=40)
        call = self.start(endless, [ids_prompt(9)] * 2)
        next(event for event in call if event.heartbeat.output_tokens)
        return call

    def generate(self, workload: pb.Workload, prompts: Sequence[pb.Prompt]) -> Pass:
        """Run a pass and return all of it."""
        return collect(self.start(workload, prompts))

    def hold(self, workload: pb.Workload, prompts: Sequence[pb.Prompt], seconds: float) -> tuple[Pass, int]:
        """Run a pass that may end after so long; return all of it, and the instant (ns) from which it might end."""
        may_end, events, instants = threading.Event(), list[pb.GenerateEvent](), list[int]()
        for event in self.start(workload, prompts, may_end):
            events.append(event)
            if event.HasField("heartbeat") and event.heartbeat.at_ns - events[0].heartbeat.at_ns >= seconds * 1e9:
                instants.append(time.monotonic_ns())
                may_end.set()
        return collect(events), instants[0]

    def unload(self) -> None:
        """Unload the model."""
        self.model = None
        self.stub.Unload(pb.UnloadRequest(), timeout=PATIENCE_S)

    def refused_load(self, model_path: Path, **fields: Any) -> Refusal:
        """Return status and detail of a load that must fail."""
        return refusal(self.stub.Load(load_request(model_path, **fields), timeout=LONGEST_S))

    def refused_pass(self, workload: pb.Workload, prompts: Sequence[pb.Prompt]) -> Refusal:
        """Return status and detail of a pass that must fail."""
        return refusal(self.start(workload, prompts))

    def children(self, words: str) -> list[int]:
        """Return the pids of all processes below the runner whose command holds `words`."""
        return sorted(pid for pid in descendants(self.process.pid) if words in command_of(pid))


def collect(events: Iterable[pb.GenerateEvent]) -> Pass:
    """Put the events of a pass together; the summary must come last."""
    result = Pass(pb.PassSummary(), [], [], [], pb.StepSeries(), [], [])
    kind = None
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "heartbeat":
            result.heartbeats.append(event.heartbeat)
        elif kind == "requests":
            result.requests.extend(event.requests.requests)
            result.chunk_bytes.append(event.ByteSize())
        elif kind == "tokens":
            result.at_ns.extend(event.tokens.at_ns)
            result.output_tokens.extend(event.tokens.output_tokens)
            result.chunk_bytes.append(event.ByteSize())
        elif kind == "steps":
            result.steps.MergeFrom(event.steps)
            result.chunk_bytes.append(event.ByteSize())
        else:
            result.summary = event.summary
    assert kind == "summary"
    return result


def load_request(model_path: Path, *, engine_args: dict[str, object] | None = None, **fields: Any) -> pb.LoadRequest:
    """Return a request to load `model_path`."""
    return pb.LoadRequest(model_path=str(model_path), engine_args_json=_json(engine_args), **fields)


def _json(engine_args: dict[str, object] | None) -> str:
    # Equal loads are equal requests, whoever wrote them.
    return json.dumps(engine_args or {}, sort_keys=True)


def generate_requests(workload: pb.Workload, prompts: Sequence[pb.Prompt]) -> Iterator[pb.GenerateRequest]:
    """Yield the workload, then the prompts in chunks of at most about 1 MiB."""
    first = pb.GenerateRequest(workload=workload)
    first.workload.prompts = len(prompts)
    yield first
    chunk: list[pb.Prompt] = []
    for prompt in prompts:
        chunk.append(prompt)
        if sum(item.ByteSize() for item in chunk) > SEND_CHUNK - 300_000:
            yield pb.GenerateRequest(prompts=pb.PromptChunk(prompts=chunk))
            chunk = []
    if chunk:
        yield pb.GenerateRequest(prompts=pb.PromptChunk(prompts=chunk))


def workload(**fields: Any) -> pb.Workload:
    """Return a small static-batch workload, with `fields` in place of its own."""
    small: dict[str, Any] = {"arrival": pb.ARRIVAL_BATCH, "in_flight": 2, "max_output_tokens": 5, "ignore_eos": True}
    return pb.Workload(**{**small, **fields})


def token_bytes(ids: Iterable[int]) -> bytes:
    """Return token ids as the wire has them."""
    return array("I", ids).tobytes()


def ids_prompt(length: int, **fields: Any) -> pb.Prompt:
    """Return a prompt of `length` token ids."""
    return pb.Prompt(token_ids=token_bytes([3 + i % 200 for i in range(length)]), **fields)


def runner_environment(folder: Path, gpus: str, stand_in: Path | None = None) -> dict[str, str]:
    """Return the environment that a launcher gives a runner; `stand_in` holds packages and takes caches."""
    path = os.pathsep.join(map(str, filter(None, (ROOT / "proto", ROOT / "runners/common", folder, stand_in))))
    devices = {"CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    caches = {"XDG_CACHE_HOME": str(stand_in / "cache")} if stand_in else {}
    return {**os.environ, **devices, **caches, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def printed_by(script: Path, *arguments: str, python: Path, folder: Path, stdin: str | None = None) -> str:
    """Return what a script prints in a backend's environment; `stdin` is its input."""
    command = [str(python), str(script), *arguments]
    environment = runner_environment(folder, "")
    return subprocess.run(command, env=environment, input=stdin, stdout=subprocess.PIPE, text=True, check=True).stdout


def pytorch_reference(*arguments: str) -> str:
    """Return what plain transformers and torch say; see tests/runners/pytorch/reference.py."""
    script = ROOT / "tests/runners/pytorch/reference.py"
    return printed_by(script, *arguments, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER)


@contextmanager
def running(
    backend: str,
    folder: Path,
    python: Path = Path(sys.executable),
    *,
    gpus: str = "",
    stand_in: Path | None = None,
    program: Sequence[str] = ("-m", "wattdock_runner"),
    **variables: str,
) -> Iterator[Runner]:
    """Start `python -m wattdock_runner` on the GPUs of those indices, wait for Describe, and end it and its workers.

    Args:
        stand_in: A folder with a package in place of an engine's.
        program: What Python runs instead.
        variables: More of the runner's environment.
    """
    home = Path(tempfile.mkdtemp(prefix="wdr"))
    socket, log = home / "r.sock", home / "log"
    command = [str(python), *program, "--backend", backend, "--socket", str(socket)]
    env = runner_environment(folder, gpus, stand_in) | variables
    with log.open("wb") as out:
        # A group of its own, so that its end takes along what it started: here is no keeper that would.
        # It works in a folder that goes away, as a launched one does: engines leave sockets there.
        options: dict[str, Any] = {"cwd": home, "process_group": 0}
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, **options)
    # A channel that finds no socket at first waits a second before it tries again.
    channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.initial_reconnect_backoff_ms", 50)])
    stub = runner_pb2_grpc.RunnerStub(channel)  # type: ignore[no-untyped-call]
    try:
        wait_until_ready(stub, process, log)
        yield Runner(process, socket, log, stub)
    finally:
        channel.close()
        with suppress(ProcessLookupError):
            end_group(process.pid)
        process.wait()
        shutil.rmtree(home)


def wait_until_ready(stub: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once Describe answers; fail with the log if the process ends or none comes."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            stub.Describe(pb.DescribeRequest(), wait_for_ready=True, timeout=5)
        except grpc.RpcError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
        else:
            return


def output_ids(result: Pass) -> list[list[int]]:
    """Return the ids of each request."""
    return [list(record.output_ids.ids) for record in result.requests]


class Refusal(tuple[str, str]):
    """Name of the status and detail of a failed call; `cause` is what its runner sent, or None."""

    cause: str | None = None


def refusal(call: Any) -> Refusal:
    """Return how a call failed that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    refused = Refusal((caught.value.code().name, caught.value.details() or ""))
    refused.cause = {item.key: str(item.value) for item in caught.value.trailing_metadata()}.get(CAUSE_KEY)
    return refused


def command_of(pid: int) -> str:
    """Return the command of a process; empty for one that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""
