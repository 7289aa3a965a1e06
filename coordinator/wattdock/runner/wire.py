"""Between protobuf and our own types; the only file that knows both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.clock import ClockIdentity
from wattdock.config import ModelSpec
from wattdock.errors import ConfigError
from wattdock.metering import Span
from wattdock.records import (
    PassRecord,
    ReplicaPass,
    RequestRecord,
    RunnerEnvironment,
    RunnerGpu,
    TokenSeries,
)
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

    from wattdock.config import ExperimentConfig, WorkloadSpec
    from wattdock.inputs import PromptSet

# gRPC's default limit for one message is 4 MB; stay far below it.
CHUNK_BYTES = 1_000_000


def optional(message: Message, field: str) -> Any:
    """Return `message.field`, or None where it was not set: unknown is not zero."""
    return getattr(message, field) if message.HasField(field) else None


def check_arrival(spec: WorkloadSpec, described: pb.DescribeResponse) -> None:
    """Refuse a kind of arrival that the runner cannot serve.

    Raises:
        ConfigError: It cannot; names those it can.
    """
    known = [pb.Arrival.Name(arrival).removeprefix("ARRIVAL_").lower() for arrival in described.arrivals]
    if spec.arrival not in known:
        raise ConfigError(
            f"workload.arrival: {spec.arrival} is not among what {described.backend} can serve: {', '.join(known)}"
        )


def load_request(
    config: ExperimentConfig, *, model_path: Path, random_weights: bool, gpu_uuids: Sequence[str]
) -> pb.LoadRequest:
    """Return what the runner is asked to load."""
    low, high = ModelSpec.RANDOM_WEIGHTS
    seed = config.model.weights_seed
    return pb.LoadRequest(
        model_path=str(model_path),
        dtype=config.section.dtype,
        engine_args_json=json.dumps(config.section.engine_args()),
        random_weights=pb.RandomWeights(low=low, high=high, seed=seed) if random_weights else None,
        trust_remote_code=config.model.trust_remote_code,
        gpu_uuids=gpu_uuids,
    )


def pass_workload(
    spec: WorkloadSpec, *, ignore_eos: bool, min_requests: int, min_duration_s: float | None, seed: int, settle_s: float
) -> pb.Workload:
    """Return one pass's workload; its minima may differ from the measured passes' (warm-up)."""
    return pb.Workload(
        arrival=f"ARRIVAL_{spec.arrival.upper()}",
        in_flight=spec.batch_size,
        rate_per_s=spec.rate_per_s,
        min_duration_s=min_duration_s,
        min_requests=min_requests,
        max_output_tokens=spec.max_output_tokens,
        ignore_eos=ignore_eos,
        sampling=pb.Sampling(temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k),
        seed=seed,
        chat_template=spec.prompts.chat,
        return_text=True,
        return_token_ids=True,
        settle_s=settle_s,
    )


def generate_requests(load: pb.Workload, prompts: PromptSet) -> Iterator[pb.GenerateRequest]:
    """Yield the workload, then the prompts in chunks of about `CHUNK_BYTES`."""
    yield pb.GenerateRequest(workload=load)
    chunk, size = pb.PromptChunk(), 0
    for item, limit in zip(prompts.items, prompts.max_output_tokens, strict=True):
        message = pb.Prompt(max_output_tokens=limit)
        if isinstance(item, str):
            message.text = item
        else:
            message.token_ids.ids.extend(item)
        if chunk.prompts and size + message.ByteSize() > CHUNK_BYTES:
            yield pb.GenerateRequest(prompts=chunk)
            chunk, size = pb.PromptChunk(), 0
        chunk.prompts.append(message)
        size += message.ByteSize()
    if chunk.prompts:
        yield pb.GenerateRequest(prompts=chunk)


def clock_identity(reading: pb.ClockReading) -> ClockIdentity:
    """Return which clock the runner reads."""
    return ClockIdentity(reading.boot_id, optional(reading, "time_namespace"))


def span(message: pb.Span) -> Span:
    """Return one span."""
    return Span(message.name, message.start_ns, message.end_ns, message.drained)


def loaded(message: pb.Loaded) -> tuple[RunnerEnvironment, tuple[Span, ...]]:
    """Return what the runner says of the engine that it loaded, and the spans of the load."""
    given = message.environment
    environment = RunnerEnvironment(
        visible_gpus=[
            RunnerGpu(uuid=gpu.uuid, name=gpu.name, vram_total_bytes=optional(gpu, "vram_total_bytes"))
            for gpu in given.visible_gpus
        ],
        used_gpu_uuids=list(given.used_gpu_uuids),
        driver_version=optional(given, "driver_version"),
        cuda_version=optional(given, "cuda_version"),
        nccl_version=optional(given, "nccl_version"),
        framework=given.framework,
        framework_version=optional(given, "framework_version"),
        python_version=given.python_version,
        package_versions=dict(given.package_versions),
        parallelism=json.loads(given.parallelism_json or "{}"),
        engine_args=json.loads(message.effective_engine_args_json or "{}"),
        parameter_count=optional(given, "parameter_count"),
        weight_bytes=optional(given, "weight_bytes"),
        warnings=list(given.warnings),
    )
    return environment, tuple(map(span, message.spans))


def request_record(message: pb.RequestRecord) -> RequestRecord:
    """Return one request's record."""
    return RequestRecord(
        index=message.index,
        submitted_ns=message.submitted_ns,
        intended_ns=optional(message, "intended_ns"),
        first_token_ns=optional(message, "first_token_ns"),
        finished_ns=optional(message, "finished_ns"),
        prompt_tokens=optional(message, "prompt_tokens"),
        cached_prompt_tokens=optional(message, "cached_prompt_tokens"),
        output_tokens=optional(message, "output_tokens"),
        finish_reason=message.finish_reason,
        text=optional(message, "text"),
        output_ids=tuple(message.output_ids.ids) if message.HasField("output_ids") else None,
        replica=optional(message, "replica"),
    )


def generated_pass(
    summary: pb.PassSummary, requests: Sequence[RequestRecord], tokens: Sequence[pb.TokenSeries]
) -> PassRecord:
    """Return one pass, put together from the chunks that came before its summary."""
    at_ns = [at for chunk in tokens for at in chunk.at_ns]
    counts = [count for chunk in tokens for count in chunk.output_tokens]
    return PassRecord(
        span=span(summary.span),
        requests=tuple(sorted(requests, key=lambda request: request.index)),
        tokens=TokenSeries(np.array(at_ns, dtype=np.int64), np.array(counts, dtype=np.int64)),
        output_tokens=summary.output_tokens,
        prompt_tokens=optional(summary, "prompt_tokens"),
        cached_prompt_tokens=optional(summary, "cached_prompt_tokens"),
        prompt_repeats=summary.prompt_repeats,
        replicas=tuple(map(_replica_pass, summary.replicas)),
    )


def _replica_pass(message: pb.ReplicaPass) -> ReplicaPass:
    return ReplicaPass(
        gpu_uuids=tuple(message.gpu_uuids),
        span=span(message.span),
        requests=message.requests,
        output_tokens=message.output_tokens,
        last_token_ns=optional(message, "last_token_ns"),
    )
