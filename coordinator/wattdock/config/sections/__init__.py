"""What a backend's section can answer: how its engine is split over GPUs, and how it uses their memory. Pure.

A backend without a file of its own here uses `BackendSection` as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from wattdock.config.lengths import Positive, Settings
from wattdock_proto.context import model_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.config.workload import WorkloadSpec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
# Ways to spread a model; each has its own scaling curve.
SplitKind = Literal[
    "one GPU", "tensor", "pipeline", "tensor × pipeline", "device_map", "data", "data × split", "command"
]


@dataclass(frozen=True)
class Split:
    """How one model is spread over GPUs.

    Attributes:
        tensor: GPUs that each layer is split over.
        pipeline: Groups of GPUs that the layers are spread over, whether they work at once or in turn.
        replicas: Whole models beside each other, each split as above.
        by_device_map: The layers are spread by accelerate, and the GPUs work in turn.
        by_command: A command uses `replicas` GPUs in its own way.
    """

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    by_device_map: bool = False
    by_command: bool = False

    @classmethod
    def of(cls, parallelism: Mapping[str, Any]) -> Split:
        """Return the split that a runner reports."""
        tensor, pipeline, replicas = (
            int(parallelism.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline", "data")
        )
        if parallelism.get("kind") == "command":
            return cls(replicas=int(parallelism.get("gpus") or 1), by_command=True)
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
        if self.by_command and self.replicas > 1:
            return "command"
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
        if self.by_command and self.replicas > 1:
            return f"{self.replicas} GPUs"
        sizes = {"DP": self.replicas, "TP": self.tensor, "layers over" if self.by_device_map else "PP": self.pipeline}
        return " ".join(f"{kind}={size}" for kind, size in sizes.items() if size > 1) or "one GPU"


@dataclass(frozen=True)
class EngineMemory:
    """How an engine uses a GPU's memory, by its settings and, where these are silent, by assumption.

    Attributes:
        share: Share of each GPU's memory, what the engine may take.
        step_tokens: Most tokens that one step computes; None: all prompts of a batch at once.
        logits_rows: Most requests whose logits are computed together; None: the batch.
        kv_cache_bytes: Size of the cache on each GPU where it was set; None fills or grows.
        kv_dtype: Type of keys and values; "auto" is the model's own.
        repeats_kv_heads: Whether tensor parallelism may go beyond the number of key/value heads.
        queues: Whether requests that the cache has no room for may wait, rather than fail.
    """

    share: float = 1.0
    step_tokens: int | None = None
    logits_rows: int | None = None
    kv_cache_bytes: int | None = None
    kv_dtype: str = "auto"
    repeats_kv_heads: bool = False
    queues: bool = False


# Ways to split one model over GPUs, as the sections call them.
SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "tp_size", "pp_size", "tp_plan", "device_map")


class BackendSection(Settings):
    """Engine arguments of one backend.

    Names that the section does not declare are passed through: the runner holds them against its engine and refuses
    an unknown one with the nearest valid name.
    """

    # The kinds of arrival that the backend's runner offers; None where only the runner knows them.
    arrivals: ClassVar[tuple[str, ...] | None] = None
    needs_gpu: ClassVar[bool] = False
    # Whether an engine may span nodes.
    spans_nodes: ClassVar[bool] = False
    # A limitation of the runner that a plan names before a run.
    caveat: ClassVar[str] = ""
    # The setting that switches the engine's prefix cache on.
    prefix_cache: ClassVar[str] = "enable_prefix_caching: true"
    # The setting that bounds the positions of a request; "" where the engine has none.
    context_setting: ClassVar[str] = ""

    dtype: Dtype = "auto"

    def gpus_needed(self) -> int:
        """Return how many GPUs this section's parallelism takes, the fewest where `gpus` is to decide."""
        return self.split(1).gpus

    @property
    def server_url(self) -> str:
        """Address of a server that runs already and is measured as it is; empty where wattdock starts the engine."""
        return ""

    @property
    def replicas(self) -> int:
        """Equal engines that serve the workload together."""
        return 1

    def require_drawable(self) -> None:
        """Accept settings under which the runner can draw a model's weights at random.

        Raises:
            ConfigError: Holds the setting, and what to do without it.
        """

    def require_servable(self, workload: WorkloadSpec) -> None:
        """Accept what a workload asks of the parallelism.

        Raises:
            ValueError: Holds both values.
        """

    @property
    def passed_through(self) -> tuple[str, ...]:
        """Names of settings that are not declared here; only the engine knows whether they exist."""
        return tuple(self.model_extra or ())

    def split(self, gpus: int) -> Split:  # noqa: ARG002
        """Return how these settings spread a model over a number of GPUs."""
        return Split()

    def context_tokens(self, model: Mapping[str, Any]) -> int | None:
        """Return the most positions that prompt and answer share in the engine; None where only the engine knows.

        Args:
            model: The model's config.json.
        """
        asked = getattr(self, self.context_setting, None)
        return asked if isinstance(asked, int) else model_context(model)

    def memory(self) -> EngineMemory | None:
        """Return how the engine uses a GPU's memory; None where that cannot be estimated."""
        return None

    @property
    def moves_memory(self) -> bool:
        """Whether settings keep weights or caches elsewhere, or quantise while loading; they are passed through."""
        return bool(getattr(self, "quantization", None)) or any("offload" in name for name in self.model_extra or ())

    @property
    def caches_prefixes(self) -> bool:
        """Whether the engine's prefix cache was switched on."""
        return self.engine_args().get("enable_prefix_caching") is True

    def engine_args(self) -> dict[str, Any]:
        """Return what the runner's engine is given, apart from `dtype`; defaults are left to the engine."""
        return self.model_dump(exclude={"dtype"}, exclude_unset=True, exclude_defaults=True)


class TensorPipelineSection(BackendSection):
    """A section of an engine that splits each layer over GPUs, and spreads the layers over groups of them."""

    # The two sizes of a split, as the section calls them.
    size_names: ClassVar[tuple[str, str]] = ("tp_size", "pp_size")

    def split(self, gpus: int) -> Split:  # noqa: ARG002
        """Return tensor and pipeline parallelism, or replicas."""
        tensor, pipeline = (getattr(self, name) for name in self.size_names)
        return Split(tensor, pipeline, self.replicas)


class ReplicableSection(BackendSection):
    """A section of a backend whose engine the runner can hold several of.

    Attributes:
        data_parallel_size: Independent engines, each with the whole model on a GPU of its own, that take requests from
            one queue; `batch_size` is shared out among them.
    """

    WITHDRAWN: ClassVar = {"data_parallel_scaling": "strong"}

    data_parallel_size: Positive = 1

    @model_validator(mode="after")
    def _one_way_to_split(self) -> Self:
        splits = [f"{name}: {value}" for name in SPLITS if (value := getattr(self, name, None)) not in (None, 1)]
        if self.data_parallel_size > 1 and splits:
            raise ValueError(
                f"data_parallel_size: {self.data_parallel_size} gives each engine one GPU and {splits[0]} splits the "
                "model over several; choose one of the two"
            )
        return self

    @property
    def replicas(self) -> int:
        """Equal engines that serve the workload together."""
        return self.data_parallel_size

    def require_servable(self, workload: WorkloadSpec) -> None:
        """Accept requests in flight that can be shared out equally.

        Raises:
            ValueError: Holds both values.
        """
        if workload.batch_size % self.replicas or (workload.arrival == "single" and self.replicas > 1):
            raise ValueError(
                f"batch_size: {workload.batch_size} with arrival: {workload.arrival} cannot be shared out among "
                f"data_parallel_size: {self.replicas} engines equally; take a multiple"
            )


def section_class(backend: str) -> type[BackendSection]:
    """Return the section class of `backend`; `BackendSection`, which passes everything through, where it has none."""
    name = f"wattdock.config.sections.{backend}"
    if not backend.isidentifier() or importlib.util.find_spec(name) is None:
        return BackendSection
    declared: type[BackendSection] = importlib.import_module(name).Section
    return declared
