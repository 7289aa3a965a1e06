"""What an experiment asks of GPU memory, and whether that can be had. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.inputs.estimate.architecture import UnknownArchitectureError
from wattdock.inputs.estimate.estimate import sized
from wattdock.inputs.estimate.fit import Demand, smallest
from wattdock.inputs.estimate.splits import check_split

if TYPE_CHECKING:
    from wattdock.config import EngineMemory, ExperimentConfig, Split
    from wattdock.inputs.estimate.estimate import Sized
    from wattdock.inputs.estimate.fit import Needs, Verdict
    from wattdock.inputs.models.figures import ModelFigures

GB = 1e9


@dataclass(frozen=True)
class MemoryFit:
    """What was found before anything started.

    Attributes:
        verdict: None where nothing could be said.
        note: One line for a plan.
        weight_bytes: Of one replica of the model; None where they are not known.
    """

    verdict: Verdict | None
    note: str
    weight_bytes: int | None = None


# Nothing in flight: what is certain whatever the workload.
WEIGHTS_ONLY = Demand(requests=1, context_tokens=1, prompt_tokens=1, certain_requests=0)


def memory_fit(
    config: ExperimentConfig,
    figures: ModelFigures | None,
    *,
    gpus: int,
    memory_bytes: int | None,
    demand: Demand | None = None,
) -> MemoryFit:
    """Return whether an experiment's model fits, as far as that can be said before it is loaded.

    Args:
        figures: None where the model's config is not here.
        gpus: How many the experiment takes.
        memory_bytes: Of the largest GPU that it may get; None runs on the CPU, where only the split is checked.
        demand: What is to be in memory; None is the experiment's own workload.

    Raises:
        ConfigError: The model cannot be split so.
        PreflightError: Its weights, and the keys and values that it certainly needs, exceed the GPU.
    """
    engine = config.section.memory()
    if figures is None or engine is None or not engine.estimable:
        # Weights that are quantised while loading take less than their files.
        known = figures.weight_bytes if figures and engine is None else None
        return MemoryFit(None, f"memory of {config.model.label}: not estimated, {_why_not(figures, engine)}", known)
    try:
        # A checkpoint that is quantised stays so, whatever type its other weights get.
        dtype = "auto" if figures.config.get("quantization_config") else config.section.dtype
        model = sized(figures.config, file_bytes=figures.weight_bytes, dtype=dtype)
    except UnknownArchitectureError as error:
        return MemoryFit(None, f"memory of {config.model.label}: not estimated, {error}", figures.weight_bytes)
    split = config.section.split(gpus)
    check_split(model.model, split, repeats_kv_heads=engine.repeats_kv_heads)
    weights = int(model.weights)
    if memory_bytes is None:
        return MemoryFit(None, f"memory of {config.model.label}: not estimated, no GPU is used", weights)
    demand = demand or demand_of(config, engine, split)
    needed = model.needs(split, engine, demand)
    verdict = needed.verdict(memory_bytes, engine.share)
    if verdict == "cannot fit":
        raise PreflightError(_refusal(config.model.label, model, engine, needed, split, demand, memory_bytes))
    room_bytes = engine.share * memory_bytes
    doubt = "" if verdict == "fits" else "; it may fail while it loads or runs"
    if longest := _longest_request(model, engine, split, memory_bytes):
        verdict, doubt = "uncertain", (doubt or "; it may fail while it loads") + f": {longest}"
    return MemoryFit(verdict, _note(config, verdict, needed, split, room_bytes) + doubt, weights)


def demand_of(config: ExperimentConfig, engine: EngineMemory, split: Split) -> Demand:
    """Return what an experiment's workload has in one engine's memory at once, and which part of that is certain.

    Certain are whole batches of synthetic prompts whose answers do not end early, on an engine that lets none wait.
    """
    work = config.served
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


def _note(config: ExperimentConfig, verdict: str, needed: Needs, split: Split, room_bytes: float) -> str:
    of = f"about {needed.total / GB:.1f} GB of the {room_bytes / GB:.1f} GB that the engine may take of a GPU"
    parts = f"weights {needed.weights / GB:.1f}, keys and values {needed.kv_cache / GB:.1f}"
    return f"memory of {config.model.label}, {split.label}: {verdict}: {of} ({parts})"


def _longest_request(model: Sized, engine: EngineMemory, split: Split, memory_bytes: int) -> str | None:
    """Say for which request the engine may find no room before it starts; None where it does, or asks for none."""
    tokens = model.model.max_context if engine.longest_tokens is None else engine.longest_tokens
    if not tokens:
        return None
    one = Demand(requests=1, context_tokens=tokens, prompt_tokens=1)
    alone = model.needs(split, replace(engine, kv_cache_bytes=None), one)
    if engine.kv_cache_bytes:
        is_short = alone.kv_cache > engine.kv_cache_bytes
    else:
        # Where the weights leave nothing, no length would do.
        is_short = alone.kv_room(memory_bytes, engine.share) > 0 and alone.verdict(memory_bytes, engine.share) != "fits"
    if not is_short:
        return None
    wants = f"{tokens:,} tokens ({alone.kv_cache / GB:.1f} GB of keys and values)"
    return f"the engine wants room for the longest request it may get, {wants}; a smaller max_model_len asks for less"


def _refusal(
    label: str, model: Sized, engine: EngineMemory, needed: Needs, split: Split, demand: Demand, memory_bytes: int
) -> str:
    fewest = [
        f"{found.kind} parallelism over {found.split.gpus}"
        for found in smallest(model.model, engine, model.size, demand, memory_bytes=memory_bytes)
        if found.split is not None
    ]
    held = f"keys and values of {demand.certain_requests} requests of {demand.context_tokens:,} tokens"
    held = f" and {held}" if demand.certain_requests else ""
    hint = f"the fewest GPUs of this size that hold it: {' or '.join(fewest)}" if fewest else "no split holds it"
    return (
        f"{label} cannot fit on {split.label}: {needed.weights / GB:.1f} GB of weights{held} make "
        f"{needed.certain / GB:.1f} GB on one GPU, and the largest here has {memory_bytes / GB:.1f} GB; {hint}"
    )
