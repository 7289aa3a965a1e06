"""What a backend's section says of how a model lies on GPUs: how it is split, and how the engine uses memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        hidden_copies: Tensors as wide as the hidden state that are alive at once beside a layer's MLP.
        norm_copies: As many, where what the MLPs of several GPUs gave is added up and normed.
        keeps_head_outputs: Whether what attention's heads gave is alive then, too.
        workspace_bytes: What matrix products keep beside them, where the engine counts it among activations.
        logit_bytes: Live at once per request and vocabulary entry while tokens are chosen.
        kv_cache_bytes: Size of the cache on each GPU where it was set; None fills or grows.
        kv_dtype: Of keys and values; "auto" is the model's own.
        repeats_kv_heads: Whether tensor parallelism may go beyond the number of key/value heads.
        overhead_bytes: CUDA context, kernels' workspaces and captured graphs; assumed.
        overhead_split_bytes: What communicators add on each GPU of a split model; assumed.
        keeps_repeated_heads: Whether the cache keeps key/value heads as often as a model's code repeats them.
        queues: Whether requests that the cache has no room for may wait, rather than fail.
        longest_tokens: Tokens of the longest request, one of which has to have room before the engine starts; None: as
            many as the model allows; 0: none has to.
        estimable: False where settings move weights or caches off the GPU, or quantise while loading.
    """

    share: float = 1.0
    step_tokens: int | None = None
    logits_rows: int | None = None
    hidden_copies: int = 4
    norm_copies: int = 0
    keeps_head_outputs: bool = False
    workspace_bytes: int = 0
    logit_bytes: int = 8
    kv_cache_bytes: int | None = None
    kv_dtype: str = "auto"
    repeats_kv_heads: bool = False
    overhead_bytes: int = 600_000_000
    overhead_split_bytes: int = 500_000_000
    keeps_repeated_heads: bool = False
    queues: bool = False
    longest_tokens: int | None = 0
    estimable: bool = True
