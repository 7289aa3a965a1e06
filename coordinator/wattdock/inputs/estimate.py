"""Where a model fits: for `wattdock estimate`, and for preflight.

The model's figures come from `shapes` or its files; `memory` does the arithmetic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wattdock.config import Split
from wattdock.errors import Cause, ConfigError, PreflightError, UnknownArchitectureError
from wattdock.inputs.memory import MARGIN, NO_REQUESTS, ModelMemory, Requests
from wattdock.inputs.prompts import PromptSet
from wattdock.inputs.resolve import figures_of, known_figures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wattdock.config import EngineMemory, ExperimentConfig
    from wattdock.inputs.memory import MemoryEstimate, Verdict
    from wattdock.inputs.shapes import ModelFigures

GB = 1e9


@dataclass(frozen=True)
class Estimate:
    """What a model takes of GPUs' memory, and where it fits.

    Attributes:
        gpus: By kind of GPU, the estimate for the split asked for, else for the smallest that holds the model, else for
            the largest tensor parallelism.
        fewest: By kind of GPU, the splits over the fewest; see `ModelMemory.fewest_gpus`.
        per_node: How many of a kind a node has.
    """

    figures: ModelFigures
    model: ModelMemory
    gpus: dict[str, MemoryEstimate]
    fewest: dict[str, dict[str, MemoryEstimate | None]]
    per_node: Mapping[str, int]
    # Share of everything that stays free before the verdict is "fits".
    margin: ClassVar = MARGIN

    @classmethod
    def of(
        cls,
        name: str,
        engine: EngineMemory,
        gpus: Mapping[str, tuple[int, int]],
        *,
        batch: int,
        context_tokens: int,
        home: Path,
        dtype: str = "auto",
        split: Split | None = None,
    ) -> Estimate:
        """Return where a model fits.

        Args:
            name: A known model, a hub id, ./folder or shape:NAME.
            gpus: By kind of GPU, its memory in bytes, and how many of the kind a node has.
            batch: Requests in flight, each of `context_tokens`.
            home: WATTDOCK_HOME, where a hub model's config is kept.
            dtype: As in `ModelMemory.of`.
            split: The split to look at; None takes the smallest for each GPU.

        Raises:
            ConfigError: The name or the architecture is unknown, or the model cannot be split so.
            PreflightError: The model cannot be had.
        """
        figures, requests = figures_of(name, home=home), Requests(batch, context_tokens, context_tokens, certain=True)
        config = figures.published_config
        try:
            model = ModelMemory.of(config, engine, requests, stored=figures.stored, dtype=dtype)
        except UnknownArchitectureError as error:
            raise ConfigError(f"{figures.name} cannot be estimated: {error}") from error
        fewest = {gpu: model.fewest_gpus(memory_bytes) for gpu, (memory_bytes, _) in gpus.items()}
        estimates, largest = {}, Split(tensor=model.tensor_sizes[-1])
        for gpu, (memory_bytes, _) in gpus.items():
            smallest = None if split else next(filter(None, fewest[gpu].values()), None)
            estimates[gpu] = smallest or model.estimate(split or largest, memory_bytes)
        return cls(figures, model, estimates, fewest, {gpu: count for gpu, (_, count) in gpus.items()})

    @property
    def nodes(self) -> dict[str, tuple[int, Split] | None]:
        """By kind of GPU, the fewest nodes that hold the model for sure, and the split; None where no number does."""
        sizes = {gpu: memory.memory_bytes for gpu, memory in self.gpus.items()}
        return {gpu: self.model.nodes_needed(size, self.per_node[gpu]) for gpu, size in sizes.items()}

    @property
    def more_nodes(self) -> str | None:
        """With which GPUs one node is not enough, and how many nodes are; None where one is, whatever its GPUs."""
        needed = [
            f"{self.per_node[gpu]} × {gpu.removeprefix('NVIDIA ')} "
            f"({f'{found[0]} nodes, {found[1].label}' if found else 'no number of nodes'})"
            for gpu, found in self.nodes.items()
            if found is None or found[0] > 1
        ]
        return f"not enough in one node: {'; '.join(needed)}" if needed else None

    def as_json(self) -> dict[str, Any]:
        """Return it JSON-ready, bytes as they are."""
        model, nodes, gpus = self.model.model, self.nodes, []
        for gpu, memory in self.gpus.items():
            fewest_gpus = {
                kind: fewest and {"gpus": fewest.split.gpus, "verdict": fewest.verdict}
                for kind, fewest in self.fewest[gpu].items()
            }
            found = nodes[gpu]
            over = found and {"nodes": found[0], "split": found[1].label, "gpus": found[1].gpus}
            derived = {
                "gpus_per_node": self.per_node[gpu],
                "fewest_nodes": over,
                "split": memory.split.label,
                "total": memory.total,
                "verdict": memory.verdict,
            }
            gpus.append({"gpu": gpu, "fewest_gpus": fewest_gpus, **asdict(memory), **derived})
        return {
            "model": self.figures.name,
            "source": self.figures.source,
            "verified": self.figures.verified,
            "note": self.figures.note,
            "parameters": model.parameters,
            "layers": len(model.layers),
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "dtype": self.model.dtype,
            "quantization": self.model.quantization,
            "weights_bytes": self.model.weights_bytes,
            "margin": self.margin,
            "requests": asdict(self.model.requests),
            "engine": asdict(self.model.engine),
            "legal_tensor_sizes": self.model.tensor_sizes,
            "gpus": gpus,
        }


class MemoryFit(NamedTuple):
    """The bytes of an experiment's weights, and a line that says whether they fit; None is unknown."""

    weights_bytes: int | None
    line: str
    verdict: Verdict | None = None


def memory_fit(
    config: ExperimentConfig,
    *,
    gpus: int,
    memory_bytes: float | None,
    on_host: bool = False,
    weights_only: bool = False,
    hub_home: Path | None = None,
) -> MemoryFit:
    """Return whether an experiment's model fits.

    Args:
        gpus: How many the experiment takes.
        memory_bytes: Memory of the largest GPU that the experiment may get; None checks only the split.
        on_host: It runs on CPUs, whose ranks and replicas share `memory_bytes`, what the host has left.
        weights_only: Leave out the memory that the experiment's workload takes.
        hub_home: WATTDOCK_HOME, to ask a hub for its models' figures, which are kept there; None asks no hub.

    Raises:
        ConfigError: The model cannot be split so, no shape has its name, or its requests exceed its context.
        PreflightError: Its weights, and the keys and values that it certainly needs, exceed the memory; or the model
            is missing, not whole, or not on the hub.
    """
    figures = known_figures(config.model, home=hub_home, config=config)
    engine, label = config.section.memory(), config.model.label
    if figures is not None and not weights_only:
        _require_context(config, config.section.context_tokens(figures.published_config))
    unknown = f"memory of {label}: not estimated, "
    if figures is None:
        return MemoryFit(None, unknown + "its config.json has not been downloaded yet")
    if engine is None:
        return MemoryFit(None, unknown + "settings move or quantise weights, or the backend's use is unknown")
    split, published, dtype = config.section.split(gpus), figures.published_config, config.section.dtype
    requests = NO_REQUESTS if weights_only else requests_of(config, engine, split)
    if published.get("quantization_config"):
        # Such a checkpoint stays so, whatever type its other weights get.
        dtype = "auto"
    elif on_host and dtype == "auto":
        # What backends take on a CPU; see their sections.
        dtype = "float32"
    try:
        model = ModelMemory.of(published, engine, requests, stored=figures.stored, dtype=dtype)
    except UnknownArchitectureError as error:
        return MemoryFit(figures.stored and figures.stored.bytes_in(dtype), f"{unknown}{error}")
    weights_bytes = int(model.weights_bytes)
    if memory_bytes is None:
        model.check_split(split)
        return MemoryFit(weights_bytes, unknown + "no GPU is used")
    verdict, words = _require_room(label, model, split, memory_bytes, on_host=on_host)
    return MemoryFit(weights_bytes, f"memory of {label}, {words}", verdict)


def _require_room(
    label: str, model: ModelMemory, split: Split, memory_bytes: float, *, on_host: bool
) -> tuple[Verdict, str]:
    """Return, and say in words, how well a model fits; raise where it certainly does not."""
    requests, where, place = model.requests, split.label, "the engine may take of a GPU"
    if on_host:
        # Ranks and replicas share what the host has left, and may take all of it.
        memory_bytes /= split.gpus
        model = replace(model, engine=replace(model.engine, share=1.0))
        where, place = "this machine", "each of its processes may take"
    estimate = model.estimate(split, memory_bytes)
    if estimate.verdict == "cannot fit":
        holding = [
            f"{kind} parallelism over {fewest.split.gpus}"
            for kind, fewest in model.fewest_gpus(memory_bytes).items()
            if fewest is not None
        ]
        more_gpus = f"the fewest GPUs of this size that hold it: {' or '.join(holding)}"
        # Where the weights alone exceed it, no workload helps.
        less = "lower batch_size, or take" if estimate.weights < memory_bytes else "take weights in fewer bits (dtype),"
        less += f" a smaller model or {'a machine with more memory' if on_host else 'larger GPUs'}"
        cache = f", {estimate.certain / GB:.1f} GB with {requests.count} requests of {requests.context_tokens:,} tokens"
        raise PreflightError(
            f"{label} cannot fit on {where}: {estimate.weights / GB:.1f} GB of weights{cache * requests.certain} "
            f"exceed the {memory_bytes / GB:.1f} GB that {place}",
            more_gpus if holding and not on_host else less,
            cause=Cause.DOES_NOT_FIT,
        )
    return estimate.verdict, (
        f"{where}: {estimate.verdict}: about {estimate.total / GB:.1f} GB of the "
        f"{estimate.usable_bytes / GB:.1f} GB that {place} (weights {estimate.weights / GB:.1f}, keys and values "
        f"{estimate.kv_cache / GB:.1f}){'' if estimate.verdict == 'fits' else '; it may fail while it loads or runs'}"
    )


def _require_context(config: ExperimentConfig, most: int | None) -> None:
    prompts, answers = PromptSet.lengths(config)
    prompt_tokens = prompts.most if prompts else 0
    if most and prompt_tokens + answers.most > most:
        before = f"prompts of {prompt_tokens:,} tokens with " if prompts else ""
        raise ConfigError(
            f"{config.model.label} has a context of {most:,} tokens in {config.backend}, and {before}answers of "
            f"{answers.most:,} exceed it",
            f"lower max_output_tokens{' or input_tokens' * bool(prompts)}",
            cause=Cause.DOES_NOT_FIT,
        )


def requests_of(config: ExperimentConfig, engine: EngineMemory, split: Split) -> Requests:
    """Return what an experiment's workload has in an engine's memory at once.

    Certain are whole batches of synthetic prompts, all of one length, whose answers do not end early, on an engine that
    lets none wait; else the largest lengths count.
    """
    work = config.workload
    prompts, answers = PromptSet.lengths(config)
    prompt_tokens = prompts.most if prompts else work.prompts.input_lengths.max
    is_exact = prompts is not None and (prompts.least, answers.least) == (prompts.most, answers.most)
    runs_to_the_end = work.ignore_eos if work.ignore_eos is not None else config.model.shape is not None
    together = work.arrival in ("batch", "closed") and not work.staggered_start
    return Requests(
        # Replicas share the requests out among them.
        count=ceil(work.most_in_flight / split.replicas),
        context_tokens=prompt_tokens + answers.most,
        prompt_tokens=prompt_tokens,
        certain=is_exact and runs_to_the_end and together and not engine.queues,
    )
