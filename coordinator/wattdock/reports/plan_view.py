"""What would run, and what fits: plans, estimates of memory, and the models and GPUs known by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock.checks import ExecutionPlan
from wattdock.host import gpu_models
from wattdock.inputs import presets
from wattdock.reports.terminal import NOTHING, Sheet
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.config import ExperimentConfig, Study
    from wattdock.errors import WattdockError
    from wattdock.execution import Forecast
    from wattdock.inputs import Estimate
    from wattdock.reports.terminal import View

GB = 1e9
PLAN_COLUMNS = ("group", "experiment", "id", "model", "prompts", "batch", "restarts × passes", "on", "expected")
# A terminal is no place for more; --json has all.
SHOWN = 200
UNVERIFIED = "NOT VERIFIED"
COLUMNS = (
    *("GPU", "memory", "smallest TP", "smallest PP", "shown", "weights", "KV cache", "activations", "overhead"),
    *("total", "verdict", "room for KV"),
)
KNOWN_MODELS = ("model", "hub id", "parameters", "figures")
KNOWN_GPUS = ("GPU", "memory", "bandwidth", "16-bit", "link", "limit", "figures")


@dataclass(frozen=True)
class Plan:
    """The experiments of a study before anything is started.

    Attributes:
        checked: For each experiment what was decided, or why it cannot run here.
        forecast: How long each experiment and the whole are expected to take.
    """

    study: Study
    checked: Sequence[ExecutionPlan | WattdockError]
    forecast: Forecast

    def as_json(self) -> list[dict[str, Any]]:
        """Return every experiment's whole configuration."""
        return [config.model_dump(mode="json") for config in self.study.experiments]


class KnownHardware:
    """The models and GPUs that are known by name."""

    def as_json(self) -> dict[str, Any]:
        """Return what is known of them, and where from."""
        names = ("name", "id", "parameters", "verified", "source", "note")
        known = [{name: getattr(model, name) for name in names} for model in presets().values()]
        every = gpu_models.known().values()
        hardware = [{"name": gpu.name, "aliases": gpu.aliases, "unverified": gpu.unverified} for gpu in every]
        return {"models": known, "gpus": hardware}


def plan_view(plan: Plan) -> View:
    """Yield the experiments of a study, what is wrong with any of them, and what the whole takes."""
    study, forecast = plan.study, plan.forecast
    ready = [found for found in plan.checked if isinstance(found, ExecutionPlan)]
    memory = [found.memory for found in ready if found.memory]
    yield from (*study.notes, *dict.fromkeys((*(found.decisions for found in ready), *memory)))
    numbered = [(number, position) for number, group in enumerate(forecast.groups, 1) for position in group]
    yield Sheet(PLAN_COLUMNS, [_plan_cells(plan, number, position) for number, position in numbered[:SHOWN]])
    if len(numbered) > SHOWN:
        yield f"… and {len(numbered) - SHOWN} more; --json prints all"
    yield from (f"invalid: {point.name}: {point.reason}" for point in study.invalid)
    for config, found in zip(study.experiments, plan.checked, strict=True):
        if not isinstance(found, ExecutionPlan):
            yield f"cannot run here: {config.label}: {found}"
    yield from _unchecked(study.experiments)
    yield (
        f"{pluralize(len(study.experiments), 'experiment')}, {pluralize(len(forecast.groups), 'load group')}, "
        f"{pluralize(forecast.passes, 'pass', 'passes')}, expected: {forecast.total} besides starting runners"
    )


def _plan_cells(plan: Plan, group: int, position: int) -> tuple[str, ...]:
    config, found = plan.study.experiments[position], plan.checked[position]
    place = "cannot run here"
    if isinstance(found, ExecutionPlan):
        place = f"GPU {', '.join(str(gpu.index) for gpu in found.gpus)}" if found.gpus else "CPU"
    prompts = f"{config.workload.prompts_per_pass} {config.prompts.source}"
    repeats = f"{config.repeats.restarts} × {config.repeats.passes}"
    return (
        *(str(group), config.label, config.experiment_id[:8], config.model.label, prompts),
        *(str(config.workload.batch_size), repeats, place, plan.forecast.experiments[position]),
    )


def _unchecked(experiments: Sequence[ExperimentConfig]) -> Iterable[str]:
    """Yield what only a hub or a runner can check, a line for each."""
    hub = dict.fromkeys(config.model.label for config in experiments if config.model.on_hub)
    if hub:
        yield f"not checked: {', '.join(hub)}; a hub is asked for a model when its turn comes"
    names: dict[str, dict[str, None]] = {}
    for config in experiments:
        section, own = config.section, names.setdefault(config.backend, {})
        own.update(dict.fromkeys(f"{config.backend}.{name}" for name in section.passed_through))
        if section.arrivals is None:
            own[f"arrival: {config.workload.arrival}"] = None
    for backend, own in names.items():
        if own:
            yield f"not checked: {', '.join(own)}; only {backend}'s runner knows what its engine takes"


def estimate_view(found: Estimate) -> View:
    """Yield what a model takes and where it fits."""
    yield from _head(found)
    yield Sheet(COLUMNS, [_cells(found, place) for place in range(len(found.gpus))])
    if unread := [gpu.gpu for gpu in found.gpus if _is_unread(gpu.gpu, gpu.memory_bytes)]:
        yield f"{UNVERIFIED}: the memory of {', '.join(unread)} was found in no source that was read"
    yield (
        "GB are 10^9 bytes, on the fullest GPU. Weights and KV cache follow from the config; activations and overhead "
        f"(context, workspaces, graphs) are estimated. fits: {found.margin:.0%} of all that stays free below "
        f"{found.engine.share:.0%} of the memory. cannot fit: weights and KV cache alone exceed it. ? marks uncertain."
    )


def _head(found: Estimate) -> list[str]:
    model, figures = found.sized.model, found.figures
    unbounded = sum(layer.window is None for layer in model.layers)
    kv = unbounded * 2 * model.kv_heads * model.head_size * found.sized.size.values
    heads = f"{model.heads} heads, {model.kv_heads} key/value heads, {model.attention_kinds}"
    demand = f"{pluralize(found.demand.requests, 'request')} of {found.demand.context_tokens:,} tokens"
    lines = [
        f"{figures.name}: {model.parameters / 1e9:,.1f} billion parameters, {len(model.layers)} layers, {heads}",
        f"weights {found.sized.weights / GB:,.1f} GB ({_precision(found)})",
        f"KV cache {kv / 1000:,.1f} kB per token of context; shown for {demand}",
        f"tensor parallelism may take {', '.join(map(str, found.legal_tensor_sizes))} GPUs",
        f"source: {figures.source}",
    ]
    if not figures.verified:
        lines.insert(0, f"{UNVERIFIED}: not all figures of {figures.name} were found in a source that was read")
    if model.max_context and found.demand.context_tokens > model.max_context:
        told = f"{found.demand.context_tokens:,} tokens are more than its {model.max_context:,} positions"
        lines.append(f"note: {told}; engines refuse such requests")
    return lines + ([f"note: {figures.note}"] if figures.note else [])


def _precision(found: Estimate) -> str:
    size, dtype = found.sized.size, found.sized.dtype
    if size.dense != size.rest:
        return f"{dtype}, layers at {8 * size.dense:g} bits"
    return dtype if size.experts == size.rest else f"{dtype}, experts at {8 * size.experts:g} bits"


def _cells(estimate: Estimate, place: int) -> tuple[str, ...]:
    gpu = estimate.gpus[place]
    small = [
        NOTHING if found.gpus is None else f"{found.gpus}{'' if found.verdict == 'fits' else ' ?'}"
        for found in gpu.smallest.values()
    ]
    name, memory = gpu.gpu.removeprefix("NVIDIA "), f"{gpu.memory_bytes / GB:.1f} GB"
    if gpu.needs is None or gpu.split is None:
        return (name, memory, *small, *[NOTHING] * 6, gpu.verdict, NOTHING)
    parts = (gpu.needs.weights, gpu.needs.kv_cache, gpu.needs.activations, gpu.needs.overhead, gpu.needs.total)
    room = NOTHING if gpu.kv_room_tokens is None else f"{gpu.kv_room_tokens:,} tokens"
    return (name, memory, *small, gpu.split, *(f"{part / GB:.2f}" for part in parts), gpu.verdict, room)


def _is_unread(gpu: str, memory_bytes: int) -> bool:
    """Whether a GPU's memory is known only from `gpus.yaml`, which found it in no source."""
    known = gpu_models.known().get(gpu)
    return known is not None and known.memory_bytes == memory_bytes and known.memory_read_at is None


def known_view(_: KnownHardware) -> View:
    """Yield the models and GPUs that are known by name."""
    models = [
        (model.name, model.id or NOTHING, f"{model.parameters or 0:,}", "read" if model.verified else UNVERIFIED)
        for model in presets().values()
    ]
    yield Sheet(KNOWN_MODELS, models)
    yield ""
    yield Sheet(KNOWN_GPUS, [_gpu_cells(gpu) for gpu in gpu_models.known().values()])


def _gpu_cells(gpu: gpu_models.GpuModel) -> tuple[str, ...]:
    return (
        gpu.aliases[0],
        f"{gpu.memory_bytes / GB:.1f} GB",
        f"{gpu.memory_bytes_per_s / 1e12:g} TB/s",
        f"{gpu.flops_per_s / 1e12:g} TFLOP/s",
        f"{gpu.link}, {gpu.link_bytes_per_s / GB:g} GB/s",
        f"{gpu.power_limit_w:g} W",
        f"{UNVERIFIED}: {', '.join(gpu.unverified)}" if gpu.unverified else "read",
    )
