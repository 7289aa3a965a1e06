"""An estimate held against what an engine found at its start, from a stored result. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wattdock.config import Split
from wattdock.inputs.estimate.estimate import sized
from wattdock.inputs.estimate.fit import Demand
from wattdock.values import all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wattdock.config import EngineMemory
    from wattdock.inputs.estimate.estimate import Sized
    from wattdock.inputs.estimate.fit import Needs
    from wattdock.inputs.models.figures import ModelFigures

# Effective engine argument → what it decides.
EFFECTIVE = {
    "gpu_memory_utilization": "share",
    "max_num_batched_tokens": "step_tokens",
    "max_num_seqs": "logits_rows",
    "kv_cache_memory_bytes": "kv_cache_bytes",
}
AIM = 0.05


@dataclass(frozen=True)
class Line:
    """One part, on the GPU that has most of it.

    Attributes:
        error: Estimated ÷ reported − 1; None where either is unknown.
        exact: It follows from the config; else it is estimated.
    """

    part: str
    estimated: float | None
    reported: float | None
    exact: bool

    @property
    def error(self) -> float | None:
        """How far the estimate is off."""
        return self.estimated / self.reported - 1 if self.estimated is not None and self.reported else None


@dataclass(frozen=True)
class Comparison:
    """One stored result.

    Attributes:
        reason: Why the engine's own figures are missing, where they are.
    """

    name: str
    split: Split
    lines: tuple[Line, ...]
    reason: str | None


def split_of(parallelism: Mapping[str, Any]) -> Split:
    """Return the split that a runner says is in effect."""
    tensor, pipeline, replicas = (
        int(parallelism.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline", "data")
    )
    if parallelism.get("kind") == "device_map":
        return Split(pipeline=max(1, len(parallelism.get("devices") or {})), by_device_map=True)
    return Split(tensor, pipeline, replicas)


def compare(
    name: str, figures: ModelFigures, engine: EngineMemory, effective: Mapping[str, Any], parallelism: Mapping[str, Any]
) -> Comparison:
    """Return the estimate of a load beside the engine's own report of it.

    Args:
        engine: As the experiment's settings have it; what the engine says is in effect goes before that.
        effective: The engine's arguments as read back, with `memory_by_gpu`.

    Raises:
        UnknownArchitectureError: The model's architecture is not known here.
        ConfigError: The split in effect is not one that the model allows.
    """
    known = {ours: effective[theirs] for theirs, ours in EFFECTIVE.items() if effective.get(theirs) is not None}
    engine, split = replace(engine, **known), split_of(parallelism)
    model = sized(figures.config, file_bytes=figures.weight_bytes, dtype=_dtype(effective))
    needed = model.needs(split, engine, Demand(requests=1, context_tokens=1, prompt_tokens=1))
    by_gpu = list((effective.get("memory_by_gpu") or {}).values())
    lines = (
        Line("weights", needed.weights, _most(one.get("weights_bytes") for one in by_gpu), exact=True),
        Line(
            "activation peak",
            needed.activations,
            _most(one.get("activation_peak_bytes") for one in by_gpu),
            exact=False,
        ),
        Line("graphs and other", needed.overhead, _most(map(_graphs_and_other, by_gpu)), exact=False),
        Line("KV cache", *_cache(needed, engine, by_gpu), exact=False),
        Line("KV cache tokens", *_tokens(model, needed, engine, effective, by_gpu), exact=False),
    )
    return Comparison(name, split, lines, None if by_gpu else "this result's engine did not report its memory")


def _dtype(effective: Mapping[str, Any]) -> str:
    """The type of the weights in effect; a quantised checkpoint's stays its own."""
    given = effective.get("dtype")
    return "auto" if effective.get("quantization") or not isinstance(given, str) else given


def _most(of_gpus: Iterable[float | None]) -> float | None:
    known = all_known(of_gpus)
    return float(max(known)) if known else None


def _graphs_and_other(found: Mapping[str, Any]) -> float | None:
    """What captured graphs hold of torch's memory goes before what the engine expected them to take."""
    held = found.get("pool_bytes")
    return known_sum((found.get("graph_estimate_bytes") if held is None else held, found.get("other_bytes")))


def _room(needed: Needs, engine: EngineMemory, by_gpu: list[Mapping[str, Any]]) -> float | None:
    """What the estimate leaves for keys and values on the GPU that the engine saw."""
    if engine.kv_cache_bytes:
        return float(engine.kv_cache_bytes)
    total = _most(one.get("total_bytes") for one in by_gpu)
    return None if total is None else needed.kv_room(total, engine.share)


def _cache(needed: Needs, engine: EngineMemory, by_gpu: list[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    known = [one["kv_cache_bytes"] for one in by_gpu if one.get("kv_cache_bytes") is not None]
    # The GPU with the least decides for all.
    reported = float(min(known)) if known else None
    return _room(needed, engine, by_gpu), reported


def _tokens(
    model: Sized, needed: Needs, engine: EngineMemory, effective: Mapping[str, Any], by_gpu: list[Mapping[str, Any]]
) -> tuple[float | None, float | None]:
    blocks, block_tokens = effective.get("num_gpu_blocks"), effective.get("block_size")
    if not model.model.keeps_every_token:
        return None, None
    room = _room(needed, engine, by_gpu)
    reported = float(blocks * block_tokens) if blocks and block_tokens else None
    return (None if room is None else room / needed.kv_token), reported
