"""Requests to a runner and its answers, as plain values and as protobuf messages; the only file that knows both."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from packaging.specifiers import SpecifierSet

from wattdock.clock import ClockIdentity
from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError, LaunchError
from wattdock.metering import Span
from wattdock.records import PassRecord, RequestRecord, RunnerEnvironment, passes
from wattdock.text import PART_DEPTH, from_json
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

    from wattdock.config import WorkloadSpec
    from wattdock.inputs import PromptSet

S = TypeVar("S", passes.TokenSeries, passes.Steps)
# gRPC's default limit for one message is 4 MB; stay far below it.
CHUNK_BYTES = 1_000_000
# The most memory that a pass's record may take, and how much each event, each byte on the wire and each request
# takes at most.
MAX_PASS_BYTES = 4_000_000_000
EVENT_BYTES, BYTES_PER_BYTE, REQUEST_BYTES = 100_000, 20, 400
MAX_QUOTED = 80
SCALAR = (bool, bytes, float, int, str)


@dataclass(frozen=True)
class RunnerDescription:
    """A runner's description of itself before it loads a model.

    Attributes:
        arrivals: The kinds of arrival that it can serve, as `WorkloadSpec.loop` names them.
        supported_versions: Versions of the framework that it supports, as a pip version range; empty for any.
    """

    backend: str
    framework: str
    framework_version: str
    python_version: str
    arrivals: tuple[str, ...] = ()
    supported_versions: str = ""

    def require_arrival(self, work: WorkloadSpec) -> None:
        """Refuse a kind of arrival that the runner cannot serve.

        Raises:
            ConfigError: Names the kinds that it can.
        """
        if work.loop not in self.arrivals:
            raise ConfigError(
                f"workload.arrival: {work.arrival} is not among what {self.backend} can serve: "
                f"{', '.join(self.arrivals)}"
            )

    def require_supported(self) -> None:
        """Refuse a version of the framework that the runner does not support.

        Raises:
            LaunchError: Holds the version seen and the versions supported.
        """
        if not self.supported_versions:
            return
        needed = self.supported_versions
        if not self.framework_version:
            raise LaunchError(
                f"the runner's interpreter has no {self.framework}", f"it needs {needed}", cause=Cause.VERSION
            )
        # Local builds ("+cu130") and vendors' pre-releases count as the version they are built from.
        if not SpecifierSet(needed).contains(self.framework_version, prereleases=True):
            raise LaunchError(
                f"the runner's interpreter has {self.framework} {self.framework_version}, and this runner supports "
                f"{needed}",
                "use another interpreter, or leave runner_python out",
                cause=Cause.VERSION,
            )


@dataclass(frozen=True)
class RunnerFinding:
    """A runner's finding about its own environment; `status` is "ok", "warn" or "fail"."""

    name: str
    status: str
    value: str
    advice: str


@dataclass(frozen=True)
class NodePlace:
    """The place of a runner among those that hold a model together, one on each node.

    Attributes:
        rank: 0 is the head's, which is asked for passes.
        head_address, head_port: Where the runners meet.
    """

    nodes: int
    rank: int
    head_address: str
    head_port: int


@dataclass(frozen=True)
class LoadRequest:
    """A model to load.

    Attributes:
        model_path: Its folder as the runner sees it, or the GGUF file there that was chosen.
        weights_seed: Seed of random weights; None to read the weights from the folder.
        gpu_uuids: The GPUs that the engine must see; empty without GPUs.
        place: None for a model on one node.
    """

    model_path: Path
    dtype: str | None = "auto"
    engine_args: Mapping[str, object] = field(default_factory=dict)
    weights_seed: int | None = None
    trust_remote_code: bool = False
    gpu_uuids: Sequence[str] = ()
    place: NodePlace | None = None


@dataclass(frozen=True)
class PassRequest:
    """One pass to generate; its minima may differ from the workload's, which hold for measured passes.

    Attributes:
        min_duration_s: Least duration in seconds; None without a minimum.
        template_time_s: The present for a chat template that asks for it, in seconds since 1970; None is the runner's.
        settle_s: Seconds that the runner stays idle after the pass.
        return_content: Return the requests' text and token ids.
        stop: Texts, none empty, before the first of which an answer's text ends.
    """

    workload: WorkloadSpec
    prompts: PromptSet
    min_requests: int
    min_duration_s: float | None = None
    template_time_s: int | None = None
    settle_s: float = 0.0
    ignore_eos: bool = False
    return_content: bool = True
    stop: Sequence[str] = ()


@dataclass(frozen=True)
class PairScore:
    """How likely a model finds a continuation after its context.

    Attributes:
        log_likelihood: Natural logarithm of the probability of the continuation's tokens.
        is_greedy: Whether greedy decoding would generate these tokens.
        tokens: Of the continuation.
        left_out: Tokens at the context's beginning that the model had no room for.
    """

    log_likelihood: float
    is_greedy: bool
    tokens: int
    left_out: int


@dataclass(frozen=True)
class Heartbeat:
    """Progress within a pass.

    Attributes:
        at_ns: When the figures were read, on the host's clock.
        output_tokens: An upper bound while a static batch runs.
        requests_submitted: Requests that have entered the engine; those that have not finished are in it.
        pass_over: The last token was produced.
    """

    at_ns: int
    output_tokens: int
    requests_submitted: int
    requests_finished: int
    pass_over: bool


def figures(message: Message) -> dict[str, Any]:
    """Return a message's numbers and texts by name: None where a figure was not set, a tuple of a repeated one."""
    found: dict[str, Any] = {}
    for part in message.DESCRIPTOR.fields:
        if part.message_type is None:
            is_unset = part.has_presence and not message.HasField(part.name)
            value = None if is_unset else getattr(message, part.name)
            found[part.name] = value if value is None or isinstance(value, SCALAR) else tuple(value)
    return found


def description(message: pb.DescribeResponse) -> RunnerDescription:
    """Return a runner's description of itself."""
    return RunnerDescription(
        backend=message.backend,
        framework=message.framework,
        framework_version=message.framework_version,
        python_version=message.python_version,
        arrivals=tuple(pb.Arrival.Name(arrival).removeprefix("ARRIVAL_").lower() for arrival in message.arrivals),
        supported_versions=message.supported_versions,
    )


def load_request(request: LoadRequest) -> pb.LoadRequest:
    """Return the message that asks a runner to load a model."""
    low, high = ModelSpec.RANDOM_WEIGHTS
    seed = request.weights_seed
    return pb.LoadRequest(
        model_path=str(request.model_path),
        dtype=request.dtype,
        engine_args_json=json.dumps(dict(request.engine_args)),
        random_weights=None if seed is None else pb.RandomWeights(low=low, high=high, seed=seed),
        trust_remote_code=request.trust_remote_code,
        gpu_uuids=request.gpu_uuids,
        place=None if request.place is None else pb.NodePlace(**vars(request.place)),
    )


def generate_requests(request: PassRequest) -> Iterator[pb.GenerateRequest]:
    """Yield the workload, then the prompts in chunks of about `CHUNK_BYTES`."""
    spec, prompts = request.workload, request.prompts
    workload = pb.Workload(
        arrival=f"ARRIVAL_{spec.loop.upper()}",
        in_flight=spec.batch_size,
        arrival_ns=prompts.arrivals_ns,
        min_duration_s=request.min_duration_s,
        min_requests=request.min_requests,
        max_output_tokens=spec.output_lengths.max,
        ignore_eos=request.ignore_eos,
        sampling=pb.Sampling(temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k),
        seed=prompts.seed,
        chat_template=spec.prompts.chat,
        chat_template_kwargs_json=json.dumps(spec.prompts.chat_template_kwargs),
        template_time_s=request.template_time_s,
        return_text=request.return_content,
        return_token_ids=request.return_content,
        settle_s=request.settle_s,
        first_output_tokens=prompts.first_output_tokens,
        stop=request.stop,
        prompts=len(prompts.items),
    )
    yield pb.GenerateRequest(workload=workload)
    chunk, size = pb.PromptChunk(), 0
    for item, limit in zip(prompts.items, prompts.max_output_tokens, strict=True):
        message = pb.Prompt(max_output_tokens=limit)
        if isinstance(item, str):
            message.text = item
        elif isinstance(item, tuple):
            message.messages_json = json.dumps([{"role": role, "content": text} for role, text in item])
        else:
            message.token_ids = item.tobytes()
        if chunk.prompts and size + message.ByteSize() > CHUNK_BYTES:
            yield pb.GenerateRequest(prompts=chunk)
            chunk, size = pb.PromptChunk(), 0
        chunk.prompts.append(message)
        size += message.ByteSize()
    if chunk.prompts:
        yield pb.GenerateRequest(prompts=chunk)


def heartbeat(message: pb.Heartbeat) -> Heartbeat:
    """Return one sign of life."""
    return Heartbeat(*(getattr(message, part.name) for part in fields(Heartbeat)))


def clock_identity(reading: pb.ClockReading) -> ClockIdentity:
    """Return the identity of the runner's clock."""
    return ClockIdentity(reading.boot_id, figures(reading)["time_namespace"])


def span(message: pb.Span) -> Span:
    """Return one span."""
    return Span(message.name, message.start_ns, message.end_ns)


def loaded(message: pb.Loaded) -> tuple[RunnerEnvironment, Span]:
    """Return the environment of the loaded engine, and the span of the load."""
    reported = message.environment
    known = RunnerEnvironment.model_fields
    environment = RunnerEnvironment(
        **{name: value for name, value in figures(reported).items() if name in known},
        package_versions=dict(reported.package_versions),
        parallelism=_settings(reported.parallelism_json),
        engine_args=_settings(message.effective_engine_args_json),
    )
    return environment, span(message.span)


def _settings(text: str) -> dict[str, Any]:
    """Return settings that a runner tells as a JSON object."""
    settings = from_json(text or "{}", max_depth=PART_DEPTH)
    if not isinstance(settings, dict):
        raise ValueError(f"settings are no JSON object: {text[:MAX_QUOTED]!r}")
    return settings


def request_record(message: pb.RequestRecord) -> RequestRecord:
    """Return one request's record."""
    values = figures(message)
    values["token_gaps_ns"] = values["token_gaps_ns"] or None
    return RequestRecord(**values, output_ids=tuple(message.output_ids.ids) if message.HasField("output_ids") else None)


@dataclass
class PassParts:
    """A pass as it comes in, chunk by chunk, until its summary."""

    requests: pb.RequestChunk = field(default_factory=pb.RequestChunk)
    tokens: pb.TokenSeries = field(default_factory=pb.TokenSeries)
    steps: pb.StepSeries = field(default_factory=pb.StepSeries)
    summary: pb.PassSummary = field(default_factory=pb.PassSummary)
    size_bytes: int = 0

    def add(self, event: pb.GenerateEvent) -> None:
        """Add an event that came after the last token.

        Raises:
            ValueError: It holds nothing known here, a second summary, or more than the record of a pass can be.
        """
        self.size_bytes += (
            EVENT_BYTES + BYTES_PER_BYTE * event.ByteSize() + REQUEST_BYTES * len(event.requests.requests)
        )
        if self.size_bytes > MAX_PASS_BYTES:
            raise ValueError(f"the record of a pass takes more than {MAX_PASS_BYTES:,} bytes; make passes shorter")
        if (kind := event.WhichOneof("event")) is None:
            raise ValueError("an event of a pass is empty")
        if kind == "summary" and self.summary.ByteSize():
            raise ValueError("a pass has a second summary")
        if kind != "heartbeat":
            getattr(self, kind).MergeFrom(getattr(event, kind))

    def record(self) -> PassRecord:
        """Return the pass.

        Raises:
            ValueError: It has no summary, lacks requests, or its figures cannot be.
        """
        summary, requests = self.summary, [request_record(message) for message in self.requests.requests]
        if not summary.HasField("span"):
            raise ValueError("a pass ended without a summary")
        if summary.requests != len(requests):
            raise ValueError(f"a pass was of {summary.requests} requests, {len(requests)} came")
        values = figures(summary) | (figures(summary.serving) if summary.HasField("serving") else {})
        values |= {
            "requests": tuple(sorted(requests, key=lambda request: request.index)),
            "template_asked_time": summary.template_asked_time,
        }
        record = PassRecord(
            **values,
            span=span(summary.span),
            tokens=_columns(passes.TokenSeries, self.tokens),
            steps=_columns(passes.Steps, self.steps),
        )
        record.require_possible()
        return record


def _columns(kind: type[S], series: Message) -> S:
    """Return a series whose columns have the same names."""
    return kind(*(np.fromiter(getattr(series, part.name), dtype=np.int64) for part in fields(kind)))
