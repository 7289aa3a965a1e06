"""Whether a model fits the GPUs of a split, and the smallest counts that do. Pure.

Three verdicts, because some parts are exact and others are not: weights, keys and values follow from the config;
activations, graphs and communicators are estimated. Only what exact parts rule out "cannot fit".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wattdock.config import Split
from wattdock.inputs.estimate.memory import activation_bytes, kv_bytes, weight_bytes
from wattdock.inputs.estimate.precision import bytes_of
from wattdock.inputs.estimate.splits import tensor_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.config import EngineMemory
    from wattdock.inputs.estimate.architecture import Architecture
    from wattdock.inputs.estimate.precision import Precision

Verdict = Literal["fits", "uncertain", "cannot fit"]
# Kept free, of everything, before "fits" is said.
MARGIN = 0.05


@dataclass(frozen=True)
class Demand:
    """What has to be in memory at the same time.

    Attributes:
        requests: In flight.
        context_tokens: Of each, prompt and answer.
        prompt_tokens: Of each.
        certain_requests: How many of them are at their full length at once whatever the engine does.
    """

    requests: int
    context_tokens: int
    prompt_tokens: int
    certain_requests: int = 1


@dataclass(frozen=True)
class Needs:
    """Bytes on the fullest GPU of a split.

    Attributes:
        weights, kv_cache: From the config.
        activations, overhead: Estimated.
        certain: Weights, and the keys and values of the requests that must be there at full length.
        kv_token: Keys and values of one token more, where every layer keeps every token.
        all_weights, all_kv_cache: Over all GPUs of one replica.
    """

    weights: float
    kv_cache: float
    activations: float
    overhead: float
    certain: float
    kv_token: float
    all_weights: float
    all_kv_cache: float

    @property
    def total(self) -> float:
        """Everything together, without the margin."""
        return self.weights + self.kv_cache + self.activations + self.overhead

    def verdict(self, memory_bytes: float, share: float) -> Verdict:
        """Return whether a GPU of this size holds it.

        Args:
            share: Of the memory that the engine may take.
        """
        if self.certain > memory_bytes:
            return "cannot fit"
        return "fits" if self.total * (1 + MARGIN) <= share * memory_bytes else "uncertain"

    def kv_room(self, memory_bytes: float, share: float) -> float:
        """Return what is left for keys and values once everything else is there."""
        return max(0.0, share * memory_bytes - self.total + self.kv_cache)


def needs(model: Architecture, split: Split, engine: EngineMemory, size: Precision, demand: Demand) -> Needs:
    """Return what the fullest GPU of a split has to hold.

    Raises:
        ConfigError: The type of keys and values is not known.
    """
    each = size.values if engine.kv_dtype == "auto" else bytes_of(engine.kv_dtype)
    weights = weight_bytes(model, split, size)

    def kept(requests: int, context_tokens: int) -> list[float]:
        return kv_bytes(
            model,
            split,
            requests=requests,
            context_tokens=context_tokens,
            bytes_per_value=each,
            repeated=engine.keeps_repeated_heads,
        )

    cache, certain = (kept(one, demand.context_tokens) for one in (demand.requests, demand.certain_requests))
    # A cache of a set size is there whole, used or not.
    cache = [engine.kv_cache_bytes or one for one in cache]
    fullest = max(range(split.pipeline), key=lambda stage: weights[stage] + cache[stage])
    is_split = split.tensor * split.pipeline > 1
    return Needs(
        weights=weights[fullest],
        kv_cache=cache[fullest],
        activations=activation_bytes(
            model,
            split,
            engine,
            requests=demand.requests,
            prompt_tokens=demand.prompt_tokens,
            bytes_per_value=size.values,
        ),
        overhead=engine.overhead_bytes + (engine.overhead_split_bytes if is_split else 0),
        certain=max(one + other for one, other in zip(weights, certain, strict=True)),
        kv_token=kept(1, 1)[fullest],
        all_weights=sum(weights) * split.tensor,
        all_kv_cache=sum(cache) * split.tensor,
    )


@dataclass(frozen=True)
class Smallest:
    """The fewest GPUs of one kind of split that hold a model.

    Attributes:
        split: None where no legal split of this kind does.
    """

    kind: Literal["tensor", "pipeline"]
    split: Split | None
    verdict: Verdict


def smallest(
    model: Architecture, engine: EngineMemory, size: Precision, demand: Demand, *, memory_bytes: float
) -> tuple[Smallest, ...]:
    """Return, for tensor and for pipeline parallelism, the fewest GPUs of a size that hold a model for sure.

    Where none does for sure, the fewest that may.
    """

    def fewest(kind: Literal["tensor", "pipeline"], splits: Iterable[Split]) -> Smallest:
        perhaps = None
        for split in splits:
            verdict = needs(model, split, engine, size, demand).verdict(memory_bytes, engine.share)
            if verdict == "fits":
                return Smallest(kind, split, verdict)
            if verdict == "uncertain" and perhaps is None:
                perhaps = split
        return Smallest(kind, perhaps, "uncertain" if perhaps else "cannot fit")

    tensors = tensor_sizes(model, repeats_kv_heads=engine.repeats_kv_heads)
    return (
        fewest("tensor", (Split(tensor=one) for one in tensors)),
        fewest("pipeline", (Split(pipeline=one) for one in range(1, len(model.layers) + 1))),
    )
