"""What a model takes of a GPU's memory: weights, keys and values, activations; and the fewest GPUs that hold it. Pure.

Weights, keys and values follow from the config; activations and overhead are estimated. So there are three verdicts,
and only what the former rule out "cannot fit".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from wattdock.config import Split
from wattdock.errors import ConfigError, UnknownArchitectureError
from wattdock.inputs.architecture import Architecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wattdock.config import EngineMemory

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float": 4.0, "fp8": 1.0}
BYTES |= {"fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0}
# Four bits per weight and one scale of eight bits for 32 of them. Source: OCP Microscaling Formats specification, v1.0.
MXFP4_BYTES = (4 + 8 / 32) / 8
# More GPUs than one host has.
MAX_TENSOR = 64
# Tensors as wide as the hidden state that are alive beside a layer's MLP, and bytes per request and vocabulary entry
# while tokens are chosen: transformers keeps the most of the engines here.
HIDDEN_COPIES, LOGIT_BYTES = 4, 8
# CUDA context, kernels' workspaces and captured graphs; assumed.
OVERHEAD_BYTES = 600_000_000
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


# Nothing in flight: what is certain whatever the workload.
WEIGHTS_ONLY = Demand(requests=1, context_tokens=1, prompt_tokens=1, certain_requests=0)


@dataclass(frozen=True)
class Precision:
    """Bytes per weight and per value.

    Attributes:
        dense: Of matrices inside layers, experts' left out.
        experts: Of experts' matrices.
        rest: Of every other weight.
        values: Of activations, and of keys and values unless an engine is told otherwise.
    """

    dense: float
    experts: float
    rest: float
    values: float


@dataclass(frozen=True)
class Needs:
    """Bytes on the fullest GPU of a split.

    Attributes:
        weights, kv_cache: From the config.
        activations, overhead: Estimated.
        certain: The mean over the split's GPUs of the weights, and of the keys and values of the requests that must be
            there at full length: the fullest GPU needs at least as much.
        kv_token: Keys and values of one token more of one request.
    """

    weights: float
    kv_cache: float
    activations: float
    overhead: float
    certain: float
    kv_token: float

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


@dataclass(frozen=True)
class Smallest:
    """The fewest GPUs of one kind of split that hold a model; None where no legal split of this kind does."""

    gpus: int | None
    verdict: Verdict


@dataclass(frozen=True)
class SizedModel:
    """A model and what its weights take.

    Attributes:
        dtype: Of weights that are not quantised, and of activations.
        weights: Bytes of all weights, on one GPU.
    """

    model: Architecture
    size: Precision
    dtype: str
    weights: float

    def tensor_sizes(self, engine: EngineMemory) -> list[int]:
        """Return the legal numbers of GPUs for tensor parallelism.

        Heads and the MLP's width have to divide; so do key/value heads, or, for engines that repeat them, the other
        way round: each GPU then holds one head.

        Source: vLLM, ModelConfig.verify_with_parallel_config; transformers, the "colwise" plan of attention layers.
        """
        model = self.model

        def divides(size: int) -> bool:
            kv = model.kv_heads % size == 0 or (engine.repeats_kv_heads and size % model.kv_heads == 0)
            return model.heads % size == 0 and model.mlp_width % size == 0 and kv

        return [size for size in range(1, MAX_TENSOR + 1) if divides(size)]

    def check_split(self, split: Split, engine: EngineMemory) -> None:
        """Raise unless the model can be split so.

        Raises:
            ConfigError: Names what does not divide, and the legal sizes.
        """
        model, legal = self.model, self.tensor_sizes(engine)
        if split.tensor not in legal:
            raise ConfigError(
                f"tensor parallelism over {split.tensor} GPUs is not possible: the model has {model.heads} heads, "
                f"{model.kv_heads} key/value heads and an MLP of width {model.mlp_width}; legal are "
                f"{', '.join(map(str, legal))}"
            )
        if split.pipeline > len(model.layers):
            raise ConfigError(
                f"{split.pipeline} pipeline stages are more than the model's {len(model.layers)} layers; use fewer"
            )

    def needs(self, split: Split, engine: EngineMemory, demand: Demand) -> Needs:
        """Return what the fullest GPU of a split has to hold.

        Raises:
            ConfigError: The model cannot be split so, or the type of keys and values is not known.
        """
        self.check_split(split, engine)
        each = self.size.values if engine.kv_dtype == "auto" else bytes_of(engine.kv_dtype)
        layers = len(self.model.layers)
        # The share of all layers on the fullest stage, and on the mean stage.
        fullest, mean = ceil(layers / split.pipeline) / layers, 1 / split.pipeline
        cache = demand.requests * self._kv_bytes(demand.context_tokens, split.tensor, each)
        certain = demand.certain_requests * self._kv_bytes(demand.context_tokens, split.tensor, each)
        return Needs(
            weights=self._weights(split, fullest),
            # A cache of a set size is there whole, used or not.
            kv_cache=engine.kv_cache_bytes or cache * fullest,
            activations=self._activations(split, engine, demand),
            overhead=OVERHEAD_BYTES,
            certain=self.weights / (split.tensor * split.pipeline) + certain * mean,
            kv_token=self._kv_bytes(1, split.tensor, each) * fullest,
        )

    def smallest(self, engine: EngineMemory, demand: Demand, *, memory_bytes: float) -> dict[str, Smallest]:
        """Return, for "tensor" and for "pipeline" parallelism, the fewest GPUs of a size that hold the model for sure.

        Where none does for sure, the fewest that may.
        """

        def fewest(splits: Iterable[Split]) -> Smallest:
            verdicts = {
                split.gpus: self.needs(split, engine, demand).verdict(memory_bytes, engine.share) for split in splits
            }
            for wanted in ("fits", "uncertain"):
                if found := [gpus for gpus, verdict in verdicts.items() if verdict == wanted]:
                    return Smallest(found[0], verdicts[found[0]])
            return Smallest(None, "cannot fit")

        return {
            "tensor": fewest(Split(tensor=size) for size in self.tensor_sizes(engine)),
            "pipeline": fewest(Split(pipeline=stages) for stages in range(1, len(self.model.layers) + 1)),
        }

    def _weights(self, split: Split, fullest: float) -> float:
        """Embedding and output projection lie on the first and the last stage; tensor parallelism divides both."""
        if split.pipeline == 1:
            return self.weights / split.tensor
        embedding = self.model.embedding * self.size.rest
        blocks = self.weights - embedding - self.model.head * self.size.rest
        return (blocks * fullest + embedding) / split.tensor

    def _kv_bytes(self, context_tokens: int, tensor: int, bytes_per_value: float) -> float:
        """Keys and values of one request over all layers, on each GPU of a tensor-parallel group."""
        model = self.model
        tokens = sum(min(context_tokens, layer.window or context_tokens) for layer in model.layers)
        # Beyond the number of key/value heads, each GPU has a repeated head.
        return tokens * 2 * ceil(model.kv_heads / tensor) * model.head_size * bytes_per_value

    def _activations(self, split: Split, engine: EngineMemory, demand: Demand) -> float:
        """The larger of a step's MLP with its hidden states, and of choosing tokens.

        Choosing tokens needs the whole vocabulary for every request, in single precision, however the model is split.
        """
        model = self.model
        tokens = engine.step_tokens or demand.requests * demand.prompt_tokens
        requests = engine.logits_rows or demand.requests
        step = tokens * (HIDDEN_COPIES * model.hidden + model.mlp_values / split.tensor) * self.size.values
        return max(step, tokens * model.hidden * self.size.values + requests * model.vocab * LOGIT_BYTES)


def sized(config: Mapping[str, Any], *, file_bytes: int | None = None, dtype: str = "auto") -> SizedModel:
    """Return a model with the size of its weights.

    Args:
        config: Its config.json.
        file_bytes: Of its tensors on disk, which are what they are; None where there are none.
        dtype: "auto" is the checkpoint's own; a type of eight bits is of the layers' matrices, as engines quantise
            them, and "mxfp4" of the experts'; another type is of unquantised weights.

    Raises:
        UnknownArchitectureError: The architecture, or how it is quantised, is not known.
        ConfigError: The type is not known.
    """
    model = Architecture.from_config(config)
    own = model.dtype.removeprefix("torch.")
    method = "mxfp4" if dtype == "mxfp4" else "fp8" if dtype != "auto" and bytes_of(dtype) == 1 else None
    rest = own if dtype == "auto" or method else dtype
    quantised = {"quant_method": method} if method else model.quantization if dtype == "auto" else {}
    try:
        size = _precision(rest, quantised)
    except UnknownArchitectureError:
        if file_bytes is None:
            raise
        each = file_bytes / model.parameters
        size = Precision(each, each, each, bytes_of(rest))
    counted = float(_weight_bytes(model, size))
    if file_bytes is not None and dtype == "auto":
        # What the files hold is exact; how a split divides it follows the architecture.
        by = file_bytes / counted
        size = Precision(size.dense * by, size.experts * by, size.rest * by, size.values)
        counted = file_bytes
    return SizedModel(model, size, rest, counted)


def _weight_bytes(model: Architecture, size: Precision) -> float:
    layers = sum(
        layer.dense * size.dense + layer.experts * size.experts + layer.other * size.rest for layer in model.layers
    )
    return layers + (model.embedding + model.head + model.final) * size.rest


def bytes_of(dtype: str) -> float:
    """Return the bytes of one value.

    Raises:
        ConfigError: The type is not known.
    """
    try:
        return BYTES[dtype.removeprefix("torch.")]
    except KeyError as error:
        raise ConfigError(
            f"dtype {dtype!r} is not known; known are {', '.join(BYTES)}, and mxfp4 for weights"
        ) from error


def _precision(dtype: str, quantization: Mapping[str, object]) -> Precision:
    """Return what a weight takes in a checkpoint quantised so, with the rest of type `dtype`."""
    rest = bytes_of(dtype)
    method = quantization.get("quant_method")
    if not method:
        return Precision(rest, rest, rest, rest)
    if method == "mxfp4":
        return Precision(rest, MXFP4_BYTES, rest, rest)
    if method == "fp8":
        return Precision(1.0, 1.0, rest, rest)
    raise UnknownArchitectureError(f"weights quantised by {method!r} are only known from their files")
