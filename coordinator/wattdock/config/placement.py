"""What a backend's section says of how a model lies on GPUs: how it is split, and how the engine uses memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

# Ways to spread a model, of which each is a curve of its own.
SplitKind = Literal["one GPU", "tensor", "pipeline", "tensor × pipeline", "device_map", "data", "data × split"]


@dataclass(frozen=True)
class Split:
    """How one model is spread over GPUs.

    Attributes:
        tensor: GPUs that each layer is split over.
        pipeline: Groups of GPUs that the layers are spread over, whether they work at once or in turn.
        replicas: Whole models beside each other, each split as above.
        by_device_map: The layers are spread by accelerate, and the GPUs work in turn.
    """

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    by_device_map: bool = False

    @classmethod
    def of(cls, parallelism: Mapping[str, Any]) -> Split:
        """Return the split that a runner says is in effect."""
        tensor, pipeline, replicas = (
            int(parallelism.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline", "data")
        )
        if parallelism.get("kind") == "device_map":
            return cls(pipeline=max(1, len(parallelism.get("devices") or {})), by_device_map=True)
        return cls(tensor, pipeline, replicas)

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.tensor * self.pipeline * self.replicas

    @property
    def kind(self) -> SplitKind:
        """Which way the model is spread."""
        if self.replicas > 1:
            return "data" if self.tensor == self.pipeline == 1 else "data × split"
        if self.pipeline > 1 and self.tensor > 1:
            return "tensor × pipeline"
        if self.pipeline > 1:
            return "device_map" if self.by_device_map else "pipeline"
        return "tensor" if self.tensor > 1 else "one GPU"

    @property
    def label(self) -> str:
        """The split as the field writes it: "TP=2 PP=2"."""
        sizes = {"DP": self.replicas, "TP": self.tensor, "layers over" if self.by_device_map else "PP": self.pipeline}
        return " ".join(f"{kind}={size}" for kind, size in sizes.items() if size > 1) or "one GPU"


@dataclass(frozen=True)
class EngineMemory:
    """How an engine uses a GPU's memory, as far as its settings tell; what they leave open is assumed.

    Attributes:
        share: Of each GPU's memory, what the engine may take.
        step_tokens: Most tokens that one step computes; None: all prompts of a batch at once.
        logits_rows: Most requests whose logits are computed together; None: the batch.
        kv_cache_bytes: Size of the cache on each GPU where it was set; None fills or grows.
        kv_dtype: Of keys and values; "auto" is the model's own.
        repeats_kv_heads: Whether tensor parallelism may go beyond the number of key/value heads.
        queues: Whether requests that the cache has no room for may wait, rather than fail.
        estimable: False where settings move weights or caches off the GPU, or quantise while loading.
    """

    share: float = 1.0
    step_tokens: int | None = None
    logits_rows: int | None = None
    kv_cache_bytes: int | None = None
    kv_dtype: str = "auto"
    repeats_kv_heads: bool = False
    queues: bool = False
    estimable: bool = True
