"""Translate between the messages of runner.proto and the plain values of `backend`; pure."""

from __future__ import annotations

import json
import platform
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_proto import PROTOCOL_VERSION
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner import values
from wattdock_runner.arguments import check_engine_args, takeable
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.process import package_version, package_versions
from wattdock_runner.recorder import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from google.protobuf.message import Message

    from wattdock_runner.arguments import Argument
    from wattdock_runner.backend import Backend
    from wattdock_runner.clock import Span
    from wattdock_runner.recorder import PassRecorder

    M = TypeVar("M", bound=Message)

CHUNK_BYTES = 1 << 20
# One point of a packed series takes at most 9 bytes for an instant, and 6 for any count below 2**42.
SERIES_POINTS_PER_CHUNK = CHUNK_BYTES // 16
STEPS_PER_CHUNK = CHUNK_BYTES // 42
_ARRIVALS: dict[Any, values.Arrival] = {
    pb.Arrival.Value(f"ARRIVAL_{arrival.name}"): arrival for arrival in values.Arrival
}
# Fields that have the same name in runner.proto and in a plain value.
_WORKLOAD_FIELDS = ("max_output_tokens", "ignore_eos", "seed", "chat_template", "return_text", "return_token_ids")
_REQUEST_FIELDS: set[str] = {*pb.RequestRecord.DESCRIPTOR.fields_by_name} - {"output_ids", "token_gaps_ns"}
_LOADED_FIELDS = (
    *("visible_gpu_uuids", "used_gpu_uuids", "parameter_count", "weight_bytes", "warnings"),
    *("cuda_version", "nccl_version"),
)
# Files that Python's pickle reads.
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_order_from(
    request: pb.LoadRequest, declared: Mapping[str, Argument], engine: str, *, needs_folder: bool = True
) -> values.LoadOrder:
    """Return what a backend must load.

    Args:
        declared: The backend's engine arguments.
        engine: As for `check_engine_args`.

    Raises:
        InvalidRequest: No model folder at that path, pickled weights, unknown dtype, bad engine arguments or an
            empty distribution.
    """
    path, gguf = Path(request.model_path), ""
    if path.suffix == ".gguf" and path.is_file():
        path, gguf = path.parent, path.name
    if needs_folder and not (path / "config.json").is_file():
        raise InvalidRequest(f"no model at {request.model_path!r}: that folder holds no config.json")
    weights: pb.RandomWeights | None = _optional(request, "random_weights")
    pickled = [file.name for kind in PICKLED for file in sorted(path.glob(kind)) if needs_folder]
    if weights is None and pickled and not any(file.suffix in (".safetensors", ".gguf") for file in path.iterdir()):
        raise InvalidRequest(f"the weights in {pickled[0]} would run code when they are read; give *.safetensors")
    if request.dtype and request.dtype not in DTYPES:
        raise InvalidRequest(f"unknown dtype {request.dtype!r}; valid: {', '.join(DTYPES)}")
    engine_args: dict[str, Any] = json.loads(request.engine_args_json or "{}")
    check_engine_args(engine_args, declared, engine)
    place: pb.NodePlace | None = _optional(request, "place")
    return values.LoadOrder(
        model_path=path,
        dtype=request.dtype or "auto",
        replicas=engine_args.pop(values.REPLICAS, 1),
        engine_args=engine_args,
        random_weights=None if weights is None else values.RandomWeights(weights.low, weights.high, weights.seed),
        trust_remote_code=request.trust_remote_code,
        gpu_uuids=tuple(request.gpu_uuids),
        gguf=gguf,
        place=None if place is None else values.NodePlace(place.nodes, place.rank, place.head_address, place.head_port),
    )


def workload_from(message: pb.Workload) -> values.Workload:
    """Return the workload; the coordinator has checked its figures.

    Raises:
        InvalidRequest: The kind of arrival is unknown, or a stop string is empty.
    """
    valid = ", ".join(arrival.value for arrival in values.Arrival)
    _require(message.arrival in _ARRIVALS, f"arrival {message.arrival} is unknown; valid: {valid}")
    arrival = _ARRIVALS[message.arrival]
    _require(all(message.stop), "a stop string is empty, and would end every answer at once; leave it out")
    sampling = message.sampling
    top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
    return values.Workload(
        arrival=arrival,
        in_flight=1 if arrival is values.Arrival.SINGLE else message.in_flight,
        arrival_ns=tuple(message.arrival_ns),
        min_duration_s=_optional(message, "min_duration_s"),
        min_requests=_optional(message, "min_requests"),
        sampling=values.Sampling(sampling.temperature, top_p, sampling.top_k),
        settle_s=max(0.0, message.settle_s),
        first_output_tokens=tuple(message.first_output_tokens),
        chat_template_kwargs=json.loads(message.chat_template_kwargs_json or "{}"),
        template_time_s=_optional(message, "template_time_s"),
        stop=tuple(message.stop),
        **{name: getattr(message, name) for name in _WORKLOAD_FIELDS},
    )


def _optional(message: Message, name: str) -> Any:
    """Return an optional field, None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequest(message)


def pass_from(requests: Iterable[pb.GenerateRequest]) -> tuple[values.Workload, list[values.Prompt]]:
    """Read a whole pass, workload first, until as many prompts have come as it announces.

    Raises:
        InvalidRequest: The workload is missing, repeated or wrong, or prompts are none, unusable, too few or too many.
    """
    stream = iter(requests)
    first = next(stream, pb.GenerateRequest())
    _require(first.WhichOneof("part") == "workload", "the first request of a pass must hold its workload")
    workload = workload_from(first.workload)
    announced = first.workload.prompts
    _require(announced > 0, "a pass needs at least one prompt")
    prompts: list[values.Prompt] = []
    while len(prompts) < announced and (request := next(stream, None)):
        _require(request.WhichOneof("part") == "prompts", "a pass holds one workload, then prompts only")
        prompts.extend(_prompt_from(prompt, i) for i, prompt in enumerate(request.prompts.prompts, len(prompts)))
    _require(len(prompts) == announced, f"the workload announced {announced} prompts, and {len(prompts)} came")
    return workload, prompts


def _prompt_from(message: pb.Prompt, position: int) -> values.Prompt:
    kind = message.WhichOneof("content")
    limit = _optional(message, "max_output_tokens")
    if kind == "text":
        return values.Prompt(message.text, limit)
    if kind == "messages_json":
        text, name = message.messages_json, f"messages_json of prompt {position}"
        try:
            chat = values.Chat(tuple((item["role"], item["content"]) for item in json.loads(text)))
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidRequest(f"{name} is no JSON list of messages ({error!r})") from error
        texts = all(isinstance(part, str) for item in chat.messages for part in item)
        _require(chat.messages != () and texts, f"{name} must hold messages, each a role and a text: {text[:80]}")
        return values.Prompt(chat, limit)
    ids = array("I")
    _require(len(message.token_ids) % ids.itemsize == 0, f"token ids of prompt {position} are no whole uint32s")
    ids.frombytes(message.token_ids)
    return values.Prompt(ids, limit)


def describe_message(backend: Backend, clock: pb.ClockReading) -> pb.DescribeResponse:
    """Return the runner's description, from package metadata alone."""
    return pb.DescribeResponse(
        protocol_version=PROTOCOL_VERSION,
        backend=backend.name,
        framework=backend.framework,
        framework_version=package_version(backend.framework_package),
        package_versions=package_versions(backend.packages),
        python_version=platform.python_version(),
        arrivals=[number for number, arrival in _ARRIVALS.items() if arrival in backend.arrivals],
        engine_arguments=takeable(backend.engine_arguments or {}),
        clock=clock,
        supported_versions=backend.supported_versions,
    )


def loaded_message(backend: Backend, loaded: values.LoadedModel, span: Span) -> pb.Loaded:
    """Return the last event of a load."""
    runner_environment = pb.RunnerEnvironment(
        framework=loaded.framework or backend.framework,
        framework_version=loaded.framework_version if loaded.framework else package_version(backend.framework_package),
        python_version=platform.python_version(),
        package_versions=package_versions(backend.packages),
        parallelism_json=json.dumps(loaded.parallelism),
        **{name: getattr(loaded, name) for name in _LOADED_FIELDS},
    )
    return pb.Loaded(
        environment=runner_environment,
        effective_engine_args_json=json.dumps(loaded.effective_engine_args),
        span=pb.Span(**vars(span)),
    )


def pass_events(recorder: PassRecorder, prompts: int) -> Iterator[pb.GenerateEvent]:
    """Yield the events of a finished pass: requests, token series and steps in chunks, then the summary.

    Args:
        prompts: Number of prompts that the client sent.
    """
    requests = recorder.requests
    request_messages = [
        pb.RequestRecord(
            output_ids=pb.TokenIds(ids=request.output_ids) if request.output_ids else None,
            # A step of speculative decoding gives a request any number of tokens.
            token_gaps_ns=[] if recorder.steps and recorder.drafted_tokens is None else request.token_gaps_ns,
            **{name: getattr(request, name) for name in _REQUEST_FIELDS},
        )
        for request in requests
    ]
    for chunk in chunked(request_messages):
        yield pb.GenerateEvent(requests=pb.RequestChunk(requests=chunk))
    instants, counts = recorder.token_series()
    for first in range(0, len(instants), SERIES_POINTS_PER_CHUNK):
        part = slice(first, first + SERIES_POINTS_PER_CHUNK)
        yield pb.GenerateEvent(tokens=pb.TokenSeries(at_ns=instants[part], output_tokens=counts[part]))
    every = dict(zip(Step._fields, zip(*recorder.steps, strict=True), strict=bool(recorder.steps)))
    columns = {name: column for name, column in every.items() if None not in column}
    for first in range(0, len(recorder.steps), STEPS_PER_CHUNK):
        part = slice(first, first + STEPS_PER_CHUNK)
        yield pb.GenerateEvent(steps=pb.StepSeries(**{name: column[part] for name, column in columns.items()}))
    summary = pb.PassSummary(
        span=pb.Span(**vars(recorder.span)),
        requests=len(requests),
        prompt_tokens=_sum_if_all_known([request.prompt_tokens for request in requests]),
        cached_prompt_tokens=_sum_if_all_known([request.cached_prompt_tokens for request in requests]),
        output_tokens=sum(request.output_tokens for request in requests),
        prompt_repeats=max(0, len(requests) - 1) // prompts,
        serving=None if recorder.serving is None else pb.Serving(**recorder.serving._asdict()),
        rendered_sha256=recorder.rendered_sha256,
        template_asked_time=recorder.template_asked_time,
        drafted_tokens=recorder.drafted_tokens,
        accepted_tokens=recorder.accepted_tokens,
    )
    yield pb.GenerateEvent(summary=summary)


def _sum_if_all_known(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


def chunked(messages: Iterable[M], limit_bytes: int = CHUNK_BYTES) -> Iterator[list[M]]:
    """Yield the messages in order, in lists whose encoded size stays within `limit_bytes`.

    A single message above the limit travels alone.
    """
    chunk: list[M] = []
    size = 0
    for message in messages:
        # A field tag and a length prefix stand before each message of a repeated field.
        message_size = message.ByteSize() + 6
        if chunk and size + message_size > limit_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += message_size
    if chunk:
        yield chunk
