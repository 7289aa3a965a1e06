"""The plain values that pass between a backend and the runner.

Must not know: protobuf, gRPC, an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wattdock_runner.tickets import Tickets

# A function that takes the name of each stage of a load.
Report = Callable[[str], None]
# The engine argument that says how many replicas serve; every backend that can replicate has it.
REPLICAS = "data_parallel_size"


class Arrival(Enum):
    """How requests reach the engine; the meaning of each stands in runner.proto."""

    BATCH = "batch"
    CLOSED = "closed"
    OPEN = "open"
    SINGLE = "single"


@dataclass(frozen=True)
class RandomWeights:
    """Parameters drawn uniformly from [low, high) instead of read from files."""

    low: float
    high: float
    seed: int


@dataclass(frozen=True)
class Rank:
    """The place of this process among the processes that hold a model together and compute every step together.

    Attributes:
        index: From 0; the record of rank 0 counts.
        count: Number of ranks.
        meeting: Path of an empty file through which the ranks find each other.
    """

    index: int
    count: int
    meeting: str


@dataclass(frozen=True)
class NodePlace:
    """The place of a node among those that hold a model together, and where these meet: on the node of rank 0."""

    nodes: int
    rank: int
    head_address: str
    head_port: int


@dataclass(frozen=True)
class LoadOrder:
    """A model to load.

    Attributes:
        model_path: Folder with config.json and, unless weights are random, safetensors; a tokenizer is optional.
        dtype: "auto", "float32", "bfloat16" or "float16".
        engine_args: Checked against `Backend.engine_arguments`.
        gpu_uuids: The GPUs that the engine must see, in NVML's form and in this order; empty for a CPU.
        rank: The place of this process, where several processes hold the model together.
        replicas: Number of processes that each hold a copy.
        gguf: Name of the GGUF file that was chosen in the folder; empty leaves the choice to the folder.
        place: The place of this node, where several nodes hold the model together.
    """

    model_path: Path
    dtype: str = "auto"
    engine_args: Mapping[str, object] = field(default_factory=dict)
    random_weights: RandomWeights | None = None
    trust_remote_code: bool = False
    gpu_uuids: tuple[str, ...] = ()
    rank: Rank | None = None
    replicas: int = 1
    gguf: str = ""
    place: NodePlace | None = None


@dataclass(frozen=True)
class LoadedModel:
    """What the engine runs with, read back from the engine after loading; None is unknown.

    Attributes:
        visible_gpu_uuids: The GPUs that the engine sees, in NVML's form, "GPU-…".
        effective_engine_args: JSON-ready; without arguments that cannot be read back.
        parallelism: JSON-ready, for instance {"kind": "tensor", "tensor_parallel_size": 2, "devices": {…}}; see
            `RunnerEnvironment` in runner.proto.
        cuda_version, nccl_version: Versions that the engine computes with; None without a GPU.
        weight_bytes: Size of the parameters of a single copy of the model, as loaded.
        warnings: What the user should know of the load.
        framework, framework_version: Of an engine that is not the backend's own.
    """

    visible_gpu_uuids: tuple[str, ...]
    used_gpu_uuids: tuple[str, ...]
    effective_engine_args: Mapping[str, object]
    parallelism: Mapping[str, Any]
    parameter_count: int | None = None
    weight_bytes: int | None = None
    cuda_version: str | None = None
    nccl_version: str | None = None
    warnings: tuple[str, ...] = ()
    framework: str | None = None
    framework_version: str | None = None


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; a temperature of 0 is greedy, a top_p of 1 and a top_k of 0 leave none out."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


class Chat(NamedTuple):
    """Messages, each a role and a text, which the tokenizer's chat template renders."""

    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prompt:
    """Text, a chat, or token ids that need no tokenizer; `max_output_tokens` overrides the workload's."""

    content: str | Chat | Sequence[int]
    max_output_tokens: int | None = None


@dataclass(frozen=True)
class Workload:
    """A pass to serve. runner.proto explains the fields.

    Attributes:
        chat_template_kwargs: Variables for the chat template, as a JSON object has them.
        stop: Texts that end an answer, none empty.
        tickets: The queue that several engines take requests from; None for an engine that serves the pass alone.
    """

    arrival: Arrival
    in_flight: int
    max_output_tokens: int
    arrival_ns: tuple[int, ...] = ()
    min_duration_s: float | None = None
    min_requests: int | None = None
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    chat_template: bool = False
    return_text: bool = False
    return_token_ids: bool = False
    settle_s: float = 0.0
    first_output_tokens: tuple[int, ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template_time_s: int | None = None
    stop: tuple[str, ...] = ()
    tickets: Tickets | None = None


@dataclass(frozen=True)
class Finding:
    """A line of a diagnosis; `status` is "ok", "warn" or "fail"."""

    name: str
    status: str
    value: str
    advice: str = ""
