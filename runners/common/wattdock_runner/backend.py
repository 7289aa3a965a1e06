"""What a backend is, and everything that it is given or gives back.

Knows no protobuf and no gRPC: a backend is written against this file and `serving.Engine` alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from wattdock_runner.arguments import Argument
    from wattdock_runner.arrivals import Tickets
    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.serving import Engine

    # Takes the name of each stage of a load.
    Report = Callable[[str], None]


class Arrival(Enum):
    """How requests reach the engine; the meaning of each stands in runner.proto."""

    BATCH = "batch"
    CLOSED = "closed"
    POISSON = "poisson"
    SINGLE = "single"


@dataclass(frozen=True)
class RandomWeights:
    """Parameters drawn uniformly from [low, high) instead of read from files."""

    low: float
    high: float
    seed: int


@dataclass(frozen=True)
class Rank:
    """This process's place among those that hold one model together and compute every step together.

    Attributes:
        index: From 0; that rank's record counts.
        count: Of all ranks.
        meeting: Path of an empty file, the same for all, through which they find each other.
    """

    index: int
    count: int
    meeting: str


@dataclass(frozen=True)
class LoadOrder:
    """One model to load.

    Attributes:
        model_path: Folder with config.json and, unless weights are random, safetensors; a tokenizer is optional.
        dtype: "auto", "float32", "bfloat16" or "float16".
        engine_args: Known names with values of the declared types; the servicer has checked both.
        gpu_uuids: What the engine must see, in NVML's form and in this order; empty means no GPU.
        rank: This process's place, where several hold the model together; None where it is alone.
    """

    model_path: Path
    dtype: str = "auto"
    engine_args: Mapping[str, object] = field(default_factory=dict)
    random_weights: RandomWeights | None = None
    trust_remote_code: bool = False
    gpu_uuids: tuple[str, ...] = ()
    rank: Rank | None = None


@dataclass(frozen=True)
class Gpu:
    """One accelerator as the engine sees it; `uuid` in NVML's form, "GPU-…"."""

    uuid: str
    name: str
    vram_total_bytes: int | None = None


@dataclass(frozen=True)
class CudaVersions:
    """Versions of what an engine computes with on a GPU; None is unknown, or no GPU."""

    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None


@dataclass(frozen=True)
class LoadedModel:
    """What the engine says it runs with, read back from it after loading; None is unknown.

    Attributes:
        effective_engine_args: JSON-ready; without those that cannot be read back.
        parallelism: JSON-ready, for instance {"kind": "tensor", "size": 2}.
        weight_bytes: Size of the parameters of one copy of the model, as loaded.
        warnings: What the user should know of the load.
    """

    visible_gpus: tuple[Gpu, ...]
    used_gpu_uuids: tuple[str, ...]
    effective_engine_args: Mapping[str, object]
    parallelism: Mapping[str, Any]
    parameter_count: int | None = None
    weight_bytes: int | None = None
    versions: CudaVersions = CudaVersions()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; a temperature of 0 is greedy."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True)
class Prompt:
    """Text, or token ids that need no tokenizer; `max_output_tokens` overrides the workload's."""

    content: str | tuple[int, ...]
    max_output_tokens: int | None = None


@dataclass(frozen=True)
class Workload:
    """One pass; what each field means stands in runner.proto, and the servicer has checked the values.

    Attributes:
        tickets: The queue, where several engines serve it; None where one does.
    """

    arrival: Arrival
    in_flight: int
    max_output_tokens: int
    rate_per_s: float | None = None
    min_duration_s: float | None = None
    min_requests: int | None = None
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    chat_template: bool = False
    return_text: bool = False
    return_token_ids: bool = False
    settle_s: float = 0.0
    tickets: Tickets | None = None


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis; `status` is "ok", "warn" or "fail"."""

    name: str
    status: str
    value: str
    advice: str = ""


class Backend:
    """One engine; a backend is a subclass with `load`. Importing its module must not import the engine.

    Its methods are called one at a time, all on one thread. They raise `InvalidRequest`, `WrongState` or `OutOfMemory`
    for what a caller can act on; anything else counts as a defect of the backend.

    Attributes:
        name: As in `wattdock_<name>.py`.
        framework: What the engine calls itself.
        framework_package: The distribution whose version is the framework's.
        packages: Further distributions whose versions belong in a result.
        supported_versions: PEP 440 specifier of framework versions this backend was written for, or None.
        arrivals: The kinds of arrival it really implements.
        engine_arguments: Valid names and types; None where the engine that has them is not installed.
        can_replicate: Several processes of it may serve one workload, each with a copy (`data_parallel_size`).
        caveats: What a diagnosis must say of it.
        engine: What `load` made, until `unload`.
    """

    name: str
    framework: str
    framework_package: str
    packages: tuple[str, ...] = ()
    supported_versions: str | None = None
    arrivals: tuple[Arrival, ...] = tuple(Arrival)
    engine_arguments: Mapping[str, Argument] | None = None
    can_replicate = False
    caveats: tuple[Finding, ...] = ()
    engine: Engine | None = None

    def ranks(self, order: LoadOrder) -> int:  # noqa: ARG002
        """Return how many processes must hold the model together, each loading it with a `rank`; 1 is this one alone.

        Raises:
            InvalidRequest: The order contradicts itself about it.
        """
        return 1

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Load one model into `engine`, and return when the accelerators are idle."""
        raise NotImplementedError

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run one pass and record it."""
        from wattdock_runner.serving import serve

        serve(self.engine, workload, prompts, recorder)

    def unload(self) -> None:
        """Free the model and the accelerators' memory; harmless when nothing is loaded."""
        self.engine = None


def find_backend(name: str) -> Backend:
    """Return the backend in module `wattdock_<name>`: an instance of its one backend class.

    Raises:
        LookupError: There is no such module, or not exactly one backend in it.
    """
    module_name = f"wattdock_{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise LookupError(f"no backend {name!r}: module {module_name} is not on PYTHONPATH") from error
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module_name]
    classes = [value for value in own if issubclass(value, Backend)]
    if len(classes) != 1:
        raise LookupError(f"{module_name} must hold one backend class, and holds {len(classes)}")
    return classes[0]()
