"""Where a model fits: the answer of `wattdock estimate`, and what preflight says of an experiment.

The model's figures come from `shapes` or its files; `memory` does the arithmetic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from wattdock.config import Split
from wattdock.errors import ConfigError, PreflightError, UnknownArchitectureError
from wattdock.inputs.memory import MARGIN, WEIGHTS_ONLY, Demand, sized
from wattdock.inputs.resolve import figures_of, known_figures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wattdock.config import EngineMemory, ExperimentConfig
    from wattdock.inputs.memory import Needs, SizedModel, Smallest, Verdict
    from wattdock.inputs.shapes import ModelFigures

GB = 1e9


@dataclass(frozen=True)
class GpuEstimate:
    """One model on one kind of GPU.

    Attributes:
        gpu, memory_bytes: Of the kind of GPU.
        split: The split asked for, else the smallest tensor parallelism that holds the model; None where none does.
        needs: Of that split, on its fullest GPU.
        kv_room_tokens: Tokens of which keys and values then fit; None where a window caps what a layer keeps.
    """

    gpu: str
    memory_bytes: int
    smallest: dict[str, Smallest]
    verdict: Verdict
    split: str | None = None
    needs: Needs | None = None
    kv_room_tokens: int | None = None


@dataclass(frozen=True)
class Estimate:
    """What a model takes of GPUs' memory, and where it fits.

    Attributes:
        legal_tensor_sizes: Numbers of GPUs that tensor parallelism may have.
        margin: Share of everything that stays free before "fits" is said.
    """

    figures: ModelFigures
    sized: SizedModel
    engine: EngineMemory
    demand: Demand
    legal_tensor_sizes: list[int]
    gpus: tuple[GpuEstimate, ...]
    margin: float = MARGIN

    @classmethod
    def of(
        cls,
        name: str,
        engine: EngineMemory,
        gpus: Mapping[str, int],
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
            gpus: Memory in bytes by kind of GPU.
            batch: Requests in flight, each of `context_tokens`.
            home: WATTDOCK_HOME, for what is fetched of a hub's model.
            dtype: As in `memory.sized`.
            split: The split to look at; None takes the smallest for each GPU.

        Raises:
            ConfigError: Nothing is called so, its architecture is not known, or it cannot be split so.
            PreflightError: The model cannot be had.
        """
        figures = figures_of(name, home=home)
        try:
            model = sized(figures.published_config, file_bytes=figures.weight_bytes, dtype=dtype)
        except UnknownArchitectureError as error:
            raise ConfigError(f"{figures.name} cannot be estimated: {error}") from error
        demand = Demand(batch, context_tokens, context_tokens, certain_requests=batch)
        found = tuple(
            _gpu_estimate(gpu, memory_bytes, model, engine, demand, split) for gpu, memory_bytes in gpus.items()
        )
        return cls(figures, model, engine, demand, model.tensor_sizes(engine), found)

    def as_json(self) -> dict[str, Any]:
        """Return it JSON-ready, bytes as they are."""
        model = self.sized.model
        return {
            "model": self.figures.name,
            "source": self.figures.source,
            "verified": self.figures.verified,
            "note": self.figures.note,
            "parameters": model.parameters,
            "layers": len(model.layers),
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "attention": model.attention_kinds,
            "dtype": self.sized.dtype,
            "weights_bytes": self.sized.weights,
            "margin": self.margin,
            "demand": asdict(self.demand),
            "engine": asdict(self.engine),
            "legal_tensor_sizes": self.legal_tensor_sizes,
            "gpus": [asdict(gpu) | {"total": gpu.needs.total if gpu.needs else None} for gpu in self.gpus],
        }


def _gpu_estimate(
    gpu: str, memory_bytes: int, model: SizedModel, engine: EngineMemory, demand: Demand, asked: Split | None
) -> GpuEstimate:
    found = model.smallest(engine, demand, memory_bytes=memory_bytes)
    tensor, pipeline = found["tensor"].gpus, found["pipeline"].gpus
    if not (asked or tensor or pipeline):
        return GpuEstimate(gpu, memory_bytes, found, "cannot fit")
    split = asked or (Split(tensor=tensor) if tensor else Split(pipeline=pipeline or 1))
    needed = model.needs(split, engine, demand)
    verdict = needed.verdict(memory_bytes, engine.share)
    has_windows = any(layer.window for layer in model.model.layers)
    room = None if has_windows else int(needed.kv_room(memory_bytes, engine.share) / needed.kv_token)
    return GpuEstimate(gpu, memory_bytes, found, verdict, split.label, needed, room)


@dataclass(frozen=True)
class MemoryFit:
    """Whether an experiment's model fits, as far as that can be said before it is loaded.

    Attributes:
        verdict: None where nothing could be said.
        note: One line for a plan.
        weight_bytes: Of one replica of the model; None where they are not known.
    """

    verdict: Verdict | None
    note: str
    weight_bytes: int | None = None


def memory_fit(
    config: ExperimentConfig, *, gpus: int, memory_bytes: int | None, weights_only: bool = False
) -> MemoryFit:
    """Return whether an experiment's model fits, as far as that can be said before it is loaded.

    Args:
        gpus: How many the experiment takes.
        memory_bytes: Of the largest GPU that it may get; None runs on the CPU, where only the split is checked.
        weights_only: Leave out what the experiment's own workload has in memory.

    Raises:
        ConfigError: The model cannot be split so, or no shape has its name.
        PreflightError: Its weights, and the keys and values that it certainly needs, exceed the GPU; or a model folder
            is missing, or not whole.
    """
    figures, engine, label = known_figures(config.model), config.section.memory(), config.model.label
    if figures is None or engine is None or not engine.estimable:
        # Weights that are quantised while loading take less than their files.
        known = figures.weight_bytes if figures and engine is None else None
        return MemoryFit(None, f"memory of {label}: not estimated, {_why_not(figures, engine)}", known)
    published = figures.published_config
    try:
        # A checkpoint that is quantised stays so, whatever type its other weights get.
        dtype = "auto" if published.get("quantization_config") else config.section.dtype
        model = sized(published, file_bytes=figures.weight_bytes, dtype=dtype)
    except UnknownArchitectureError as error:
        return MemoryFit(None, f"memory of {label}: not estimated, {error}", figures.weight_bytes)
    split, weights = config.section.split(gpus), int(model.weights)
    if memory_bytes is None:
        model.check_split(split, engine)
        return MemoryFit(None, f"memory of {label}: not estimated, no GPU is used", weights)
    demand = WEIGHTS_ONLY if weights_only else demand_of(config, engine, split)
    needed = model.needs(split, engine, demand)
    verdict = needed.verdict(memory_bytes, engine.share)
    if verdict == "cannot fit":
        raise PreflightError(_refusal(label, model, engine, needed, split, demand, memory_bytes))
    doubt = "" if verdict == "fits" else "; it may fail while it loads or runs"
    return MemoryFit(verdict, _note(label, verdict, needed, split, engine.share * memory_bytes) + doubt, weights)


def demand_of(config: ExperimentConfig, engine: EngineMemory, split: Split) -> Demand:
    """Return what an experiment's workload has in an engine's memory at once, and which part of that is certain.

    Certain are whole batches of synthetic prompts whose answers do not end early, on an engine that lets none wait.
    """
    work = config.total_workload
    is_exact = config.prompts.source == "synthetic"
    prompt = config.prompts.input_tokens
    runs_to_the_end = work.ignore_eos if work.ignore_eos is not None else config.model.shape is not None
    together = work.arrival in ("batch", "closed") and not (work.output_spread or work.staggered_start)
    certain = is_exact and runs_to_the_end and together and not engine.queues
    # Replicas share the requests out among them.
    in_flight = ceil(work.most_in_flight / split.replicas)
    return Demand(
        requests=in_flight,
        context_tokens=prompt + work.max_output_tokens,
        prompt_tokens=prompt,
        certain_requests=in_flight if certain else 0,
    )


def _why_not(figures: ModelFigures | None, engine: EngineMemory | None) -> str:
    if figures is None:
        return "its config is not here before it is fetched"
    return "its backend does not tell how it uses memory" if engine is None else "settings move or quantise weights"


def _note(label: str, verdict: Verdict, needed: Needs, split: Split, room_bytes: float) -> str:
    of = f"about {needed.total / GB:.1f} GB of the {room_bytes / GB:.1f} GB that the engine may take of a GPU"
    parts = f"weights {needed.weights / GB:.1f}, keys and values {needed.kv_cache / GB:.1f}"
    return f"memory of {label}, {split.label}: {verdict}: {of} ({parts})"


def _refusal(
    label: str, model: SizedModel, engine: EngineMemory, needed: Needs, split: Split, demand: Demand, memory_bytes: int
) -> str:
    fewest = [
        f"{kind} parallelism over {found.gpus}"
        for kind, found in model.smallest(engine, demand, memory_bytes=memory_bytes).items()
        if found.gpus is not None
    ]
    held = f"keys and values of {demand.certain_requests} requests of {demand.context_tokens:,} tokens"
    held = f" and {held}" if demand.certain_requests else ""
    hint = f"the fewest GPUs of this size that hold it: {' or '.join(fewest)}" if fewest else "no split holds it"
    return (
        f"{label} cannot fit on {split.label}: {needed.weights / GB:.1f} GB of weights{held} make "
        f"{needed.certain / GB:.1f} GB on one GPU, and the largest here has {memory_bytes / GB:.1f} GB; {hint}"
    )
