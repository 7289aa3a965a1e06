"""Read what a worker of vLLM found of its GPU's memory at its start. Knows no engine and imports no vLLM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# torch's own pool; CUDA graphs allocate from others.
ORDINARY = (0, 0)


def memory_found(worker: Any) -> dict[str, int | None]:
    """Return what a worker keeps of its memory profile, in bytes; None for what this release does not keep, or skipped.

    With a KV cache of a set size nothing is profiled. Up to 0.26 the peak of activations stands by itself; later, as
    `total_consumed` shows, graphs are in it and whatever is not torch's is in what was consumed.
    """
    peak, graphs, consumed, other = (
        getattr(worker, name, None)
        for name in ("peak_activation_memory", "cudagraph_memory_estimate", "total_consumed", "non_torch_memory")
    )
    weights = getattr(getattr(worker, "model_runner", None), "model_memory_usage", None)
    if consumed is not None:
        applied = graphs if os.environ.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1") == "1" else 0
        peak = None if peak is None or applied is None else peak - applied
        other = None if weights is None else consumed - weights
    found = {
        "weights_bytes": weights,
        "activation_peak_bytes": peak,
        "graph_estimate_bytes": graphs,
        "other_bytes": other,
        "kv_cache_bytes": getattr(worker, "available_kv_cache_memory_bytes", None),
        "requested_bytes": getattr(worker, "requested_memory", None),
        "total_bytes": getattr(getattr(worker, "init_snapshot", None), "total_memory", None),
    }
    return {name: None if value is None else int(value) for name, value in found.items()}


def pool_bytes(segments: Sequence[Mapping[str, Any]]) -> int | None:
    """Return what torch holds in other pools than its ordinary one, as CUDA graphs do; None where it does not tell.

    Args:
        segments: torch.cuda.memory_snapshot().
    """
    if any("segment_pool_id" not in one for one in segments):
        return None
    return sum(int(one["total_size"]) for one in segments if tuple(one["segment_pool_id"]) != ORDINARY)
