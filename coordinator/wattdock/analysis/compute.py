"""Arithmetic of the measured passes, and how it compares with what the GPUs can do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis.derived_schema import Compute
from wattdock.host import gpu_models
from wattdock.inputs import Architecture, UnknownArchitectureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from wattdock.analysis.energy_schema import EnergyResult
    from wattdock.records import EnvironmentSnapshot, PassRecord, RequestRecord

EXECUTED_REASON = "no engine says how much padding and recomputation it did"


def compute(
    config: Mapping[str, Any] | None,
    passes: Sequence[PassRecord],
    environment: EnvironmentSnapshot,
    energy: EnergyResult,
    *,
    in_flight: int,
) -> Compute:
    """Return the useful arithmetic of all `passes` over all GPUs used, and its share of their peaks.

    Args:
        config: The model's config.json; None where the model was not resolved.
        in_flight: Requests that one engine step serves at most.
    """
    if config is None or not passes:
        return Compute(reason="the model is not known" if config is None else "no pass was measured")
    try:
        model = Architecture.from_config(config)
        requests = [request for one in passes for request in one.requests]
        flops = sum(_flops(model, request) for request in requests)
    except UnknownArchitectureError as error:
        return Compute(reason=str(error))
    duration_s = sum(one.span.duration_s for one in passes)
    names = environment.gpu_names
    peak = gpu_models.peak_of(names)
    share = flops / duration_s / peak.flops_per_s if peak else None
    bytes_read = _least_bytes(model, requests, environment, in_flight=in_flight)
    read_share = None if peak is None or bytes_read is None else bytes_read / duration_s / peak.memory_bytes_per_s
    return Compute(
        flops_total=flops,
        model_flops=flops,
        executed_reason=EXECUTED_REASON,
        method=model.FLOPS_METHOD,
        active_weights=model.active_weights,
        total_weights=model.total_weights,
        flops_per_s=flops / duration_s,
        flops_per_j=flops / energy.total_j if energy.total_j else None,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        peak_memory_bytes_per_s=peak.memory_bytes_per_s if peak else None,
        peak_source=peak.source if peak else None,
        peak_reason=gpu_models.why_no_peak(names),
        peak_flops_share=share,
        peak_memory_share_least=read_share,
    )


def _flops(model: Architecture, request: RequestRecord) -> int:
    if request.prompt_tokens is None or request.output_tokens is None:
        raise UnknownArchitectureError("the engine does not tell every request's tokens")
    return model.request_flops(
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        cached_prompt_tokens=request.cached_prompt_tokens or 0,
    )


def _least_bytes(
    model: Architecture, requests: Iterable[RequestRecord], environment: EnvironmentSnapshot, *, in_flight: int
) -> float | None:
    """Bytes that must have been read at least: all weights once per `in_flight` tokens, each token's keys and values.

    A step gives each request in flight one token at most; no engine here drafts tokens.
    """
    if not environment.model.weight_bytes:
        return None
    bytes_per_weight = environment.model.weight_bytes / model.total_weights
    narrow_cache = "fp8" in str(environment.engine_args.get("kv_cache_dtype", ""))
    weights, caches = 0.0, 0.0
    for one in requests:
        prompt, output = one.prompt_tokens or 0, one.output_tokens or 0
        weights += output / in_flight * model.active_weights * bytes_per_weight
        caches += model.kv_bytes_read(
            prompt_tokens=prompt, output_tokens=output, bytes_per_value=1.0 if narrow_cache else bytes_per_weight
        )
    return weights + caches
