"""What a model takes of a GPU's memory: weights, keys and values, activations; and the fewest GPUs that hold it. Pure.

Weights, keys and values follow from the config; activations and overhead are estimated. So there are three verdicts,
and only weights, keys and values rule out that a model can fit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wattdock.config import Split
from wattdock.errors import ConfigError, UnknownArchitectureError
from wattdock.inputs.architecture import BYTES, Architecture, architecture_of
from wattdock_proto.context import TEXT_PARTS, text_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wattdock.config import EngineMemory

# Four bits per weight and one scale of eight bits for 32 weights. Source: OCP Microscaling Formats specification, v1.0.
MXFP4_BYTES = (4 + 8 / 32) / 8
# Bytes of a stored value by the name of its type, and types of no weights.
STORED_BYTES, NO_WEIGHTS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}, ("BOOL", "I64")
# More GPUs than one host has.
MAX_TENSOR = 64
# Tensors as wide as the hidden state that are alive beside a layer's MLP, and bytes per request and vocabulary entry
# while tokens are chosen: transformers keeps the most of the engines here.
HIDDEN_COPIES, LOGIT_BYTES = 4, 8
# CUDA context, kernels' workspaces and captured graphs; assumed.
OVERHEAD_BYTES = 600_000_000
Verdict = Literal["fits", "uncertain", "cannot fit"]
# Share of everything that stays free before the verdict is "fits".
MARGIN = 0.05


class StoredWeights(NamedTuple):
    """A checkpoint's tensors.

    Attributes:
        bytes: Their size.
        values: How many floating-point numbers they are; None where some are packed.
    """

    bytes: int
    values: int | None

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, int]], total_bytes: int) -> StoredWeights:
        """Return the sum of tensors, each its type and bytes; indices and masks are no weights.

        Source: names of types in the safetensors format.
        """
        sizes = Counter[str]()
        for kind, size_bytes in tensors:
            sizes[kind] += size_bytes
        is_plain = sizes.keys() <= {*STORED_BYTES, *NO_WEIGHTS}
        values = sum(sizes[kind] // each for kind, each in STORED_BYTES.items())
        return cls(total_bytes, values if is_plain else None)

    def bytes_in(self, dtype: str) -> int:
        """Return their size in an engine that gives each value a type; "auto" leaves them as they are.

        Raises:
            ConfigError: The type is not known.
        """
        return self.bytes if dtype == "auto" or self.values is None else int(self.values * bytes_of(dtype))


@dataclass(frozen=True)
class Requests:
    """The requests that are in memory at the same time.

    Attributes:
        count: In flight.
        context_tokens: Tokens of each request, prompt and answer.
        prompt_tokens: Prompt tokens of each request.
        certain: Whether all of them are at full length at once whatever the engine does.
    """

    count: int
    context_tokens: int
    prompt_tokens: int
    certain: bool = False


NO_REQUESTS = Requests(0, 0, 0)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the fullest GPU of a split.

    Attributes:
        memory_bytes: Memory of each GPU.
        usable_bytes: The part of a GPU's memory that the engine may take.
        weights, kv_cache: From the config.
        activations, overhead: Estimated.
        certain: The mean over the split's GPUs of the weights, and of the keys and values of requests that are certain:
            the fullest GPU needs at least as much.
    """

    split: Split
    memory_bytes: float
    usable_bytes: float
    weights: float
    kv_cache: float
    activations: float
    overhead: float
    certain: float

    @property
    def total(self) -> float:
        """Everything together, without the margin."""
        return self.weights + self.kv_cache + self.activations + self.overhead

    @property
    def verdict(self) -> Verdict:
        """Whether a GPU holds it."""
        if self.certain > self.memory_bytes:
            return "cannot fit"
        return "fits" if self.total * (1 + MARGIN) <= self.usable_bytes else "uncertain"


@dataclass(frozen=True)
class ModelMemory:
    """A model in an engine, and the requests that the engine serves at once.

    Attributes:
        dtype: Type of weights that are not quantised, and of activations.
        quantization: How the matrices in layers are quantised; None where they are not.
        weights_bytes: All weights, on one GPU.
        embedding_bytes: The input embedding among them.
    """

    model: Architecture
    engine: EngineMemory
    requests: Requests
    dtype: str
    quantization: str | None
    weights_bytes: float
    embedding_bytes: float

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        engine: EngineMemory,
        requests: Requests = NO_REQUESTS,
        *,
        stored: StoredWeights | None = None,
        dtype: str = "auto",
    ) -> ModelMemory:
        """Return a model with the size of its weights.

        Args:
            config: Its config.json.
            stored: Its tensors on disk; None where there are none.
            dtype: "auto" is the checkpoint's own; a type of eight bits is of the layers' matrices, as engines quantise
                them, and "mxfp4" of the experts'; another type is of unquantised weights.

        Raises:
            UnknownArchitectureError: The architecture, or how it is quantised, is not known.
            ConfigError: The type is not known.
        """
        model = architecture_of(config)
        quantises = dtype == "mxfp4" or (dtype != "auto" and bytes_of(dtype) == 1)
        checkpoint_method = str(model.quantization.get("quant_method") or "") or None
        method = dtype if quantises else checkpoint_method if dtype == "auto" else None
        plain = dtype
        if (quantises or dtype == "auto") and (plain := model.dtype.removeprefix("torch.")) not in BYTES:
            raise UnknownArchitectureError(f"config.json says dtype = {plain[:40]}")
        each = bytes_of(plain)
        # Bytes per weight of dense matrices in layers, and of experts'.
        dense = experts = 1.0 if BYTES.get(method or "") == 1 else each
        if method == "mxfp4":
            experts = MXFP4_BYTES
        elif method and BYTES.get(method) != 1 and stored is None:
            raise UnknownArchitectureError(f"weights quantised by {method!r} are only known from their files")
        layers = (layer.dense * dense + layer.experts * experts + layer.other * each for layer in model.layers)
        counted = float(sum(layers) + (model.embedding + model.head + model.final) * each)
        said, weights = text_config(config), counted
        # Packed weights are as large as their files, and so are weights whose type config.json leaves out. Other parts
        # than the language model are not counted. How a split divides it all follows the architecture.
        if stored and dtype == "auto" and (method or not (said.get("dtype") or said.get("torch_dtype"))):
            weights = stored.bytes
        elif stored and not quantises and any(isinstance(config.get(part), dict) for part in TEXT_PARTS):
            weights = stored.bytes_in(plain)
        embedding = model.embedding * each * weights / counted
        return cls(model, engine, requests, plain, method, weights, embedding)

    @property
    def tensor_sizes(self) -> list[int]:
        """Legal numbers of GPUs for tensor parallelism.

        Heads and the MLP's width have to divide; so do key/value heads, or, for engines that repeat them, the other
        way round: each GPU then holds one head.

        Source: vLLM, ModelConfig.verify_with_parallel_config; transformers, the "colwise" plan of attention layers.
        """
        model = self.model

        return [
            size
            for size in range(1, MAX_TENSOR + 1)
            if model.heads % size == model.mlp_width % size == 0
            and (model.kv_heads % size == 0 or (self.engine.repeats_kv_heads and size % model.kv_heads == 0))
        ]

    def check_split(self, split: Split) -> None:
        """Raise unless the model can be split so.

        Raises:
            ConfigError: Names what does not divide, and the legal sizes.
        """
        model, legal = self.model, self.tensor_sizes
        if split.tensor not in legal:
            raise ConfigError(
                f"tensor parallelism over {split.tensor} GPUs is not possible: the model has {model.heads} heads, "
                f"{model.kv_heads} key/value heads and an MLP of width {model.mlp_width}",
                f"legal are {', '.join(map(str, legal))}",
            )
        if split.pipeline > len(model.layers):
            raise ConfigError(
                f"{split.pipeline} pipeline stages are more than the model's {len(model.layers)} layers", "use fewer"
            )

    def estimate(self, split: Split, memory_bytes: float) -> MemoryEstimate:
        """Return what the fullest GPU of a split has to hold, on GPUs of a size.

        Raises:
            ConfigError: The model cannot be split so, or the type of keys and values is not known.
        """
        self.check_split(split)
        model, requests, layers = self.model, self.requests, len(self.model.layers)
        # The share of all layers on the fullest stage.
        fullest = ceil(layers / split.pipeline) / layers
        weights = self.weights_bytes
        if split.pipeline > 1:
            # Embedding and output projection lie on the first and the last stage.
            blocks = self.weights_bytes - self.embedding_bytes * (2 if model.head else 1)
            weights = blocks * fullest + self.embedding_bytes
        cache = requests.count * self.kv_bytes(requests.context_tokens, split.tensor)
        each, tokens = bytes_of(self.dtype), self.engine.step_tokens or requests.count * requests.prompt_tokens
        mlp = tokens * (HIDDEN_COPIES * model.hidden + model.mlp_values / split.tensor) * each
        # Choosing tokens needs the whole vocabulary for every request, in single precision, however the model is split.
        logits = (self.engine.logits_rows or requests.count) * model.vocab * LOGIT_BYTES
        certain = cache if requests.certain else 0
        return MemoryEstimate(
            split,
            memory_bytes,
            usable_bytes=self.engine.share * memory_bytes,
            weights=weights / split.tensor,
            # A cache of a set size is there whole, used or not.
            kv_cache=self.engine.kv_cache_bytes or cache * fullest,
            activations=max(mlp, tokens * model.hidden * each + logits),
            overhead=OVERHEAD_BYTES,
            certain=self.weights_bytes / (split.tensor * split.pipeline) + certain / split.pipeline,
        )

    def fewest_gpus(self, memory_bytes: float) -> dict[str, MemoryEstimate | None]:
        """Return, for "tensor" and for "pipeline" parallelism, the split over the fewest GPUs that holds the model.

        Where no split holds it for sure, the smallest that may; None where every split cannot.
        """

        def fewest(splits: Iterable[Split]) -> MemoryEstimate | None:
            estimates = [self.estimate(split, memory_bytes) for split in splits]
            by_verdict = {estimate.verdict: estimate for estimate in reversed(estimates)}
            return by_verdict.get("fits") or by_verdict.get("uncertain")

        return {
            "tensor": fewest(Split(tensor=size) for size in self.tensor_sizes),
            "pipeline": fewest(Split(pipeline=stages) for stages in range(1, len(self.model.layers) + 1)),
        }

    def nodes_needed(self, memory_bytes: float, gpus_per_node: int) -> tuple[int, Split] | None:
        """Return the fewest nodes that hold the model for sure, and the split; None where no number of nodes does.

        Over several nodes, tensor parallelism stays within a node, and each node holds its part of the layers.
        """
        layers = len(self.model.layers)
        splits = (
            (nodes, Split(tensor=tensor, pipeline=nodes * stages))
            for nodes in range(1, layers + 1)
            for stages in range(1, min(gpus_per_node, layers // nodes) + 1)
            for tensor in self.tensor_sizes
            if tensor * stages <= gpus_per_node
        )
        return next((split for split in splits if self.estimate(split[1], memory_bytes).verdict == "fits"), None)

    def kv_bytes(self, context_tokens: int, tensor: int = 1) -> float:
        """Return the keys, values and states of one request over all layers, on each GPU of a tensor-parallel group."""
        model, kv_dtype = self.model, self.engine.kv_dtype
        tokens = sum(min(context_tokens, layer.window or context_tokens) for layer in model.layers if layer.attends)
        value_bytes = bytes_of(self.dtype if kv_dtype == "auto" else kv_dtype)
        kept = model.kv_values(tensor)
        return tokens * kept * value_bytes + model.state_bytes(value_bytes) / tensor


def bytes_of(dtype: str) -> float:
    """Return the bytes of one value.

    Raises:
        ConfigError: The type is not known.
    """
    try:
        return BYTES[dtype.removeprefix("torch.")]
    except KeyError as error:
        raise ConfigError(
            f"dtype {dtype!r} is not known", f"known are {', '.join(BYTES)}, and mxfp4 for weights"
        ) from error
