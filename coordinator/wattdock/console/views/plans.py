"""What would run, and what fits: plans, and estimates of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.console.views.terminal import Listing
from wattdock.errors import WattdockError
from wattdock.inputs import PromptSet
from wattdock.reports.cells import NOTHING
from wattdock.text import pluralize, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.console.views.terminal import View
    from wattdock.inputs import Estimate
    from wattdock.planning import ExecutionPlan, Forecast

GB = 1e9
# Columns of a plan; a narrow terminal leaves out the last ones.
PLAN_COLUMNS = ("group", "experiment", "on", "batch", "restarts × passes", "expected", "model", "prompts", "id")
# How many experiments a terminal shows; --json has all.
SHOWN = 200
COLUMNS = (
    *("GPU", "memory", "verdict", "total", "fewest TP", "fewest PP", "split"),
    *("weights", "KV cache", "activations", "overhead"),
)


def plan_view(
    experiments: Sequence[ExperimentConfig],
    *,
    notes: Sequence[str],
    checked: Sequence[ExecutionPlan | WattdockError],
    forecast: Forecast,
    online: bool,
) -> View:
    """Yield the experiments of a study before anything is started, and what the whole takes.

    Args:
        checked: For each experiment what was decided, or why it cannot run here.
        forecast: How long each experiment and the whole are expected to take.
        online: The hub was asked for its models.
    """
    ready = [decision for decision in checked if not isinstance(decision, WattdockError)]
    memory = [decision.memory for decision in ready if decision.memory]
    decided = (line for decision in ready for line in (decision.decisions, *decision.warnings))
    yield from (*notes, *dict.fromkeys((*decided, *memory)))
    rows = []
    for number, at in ((number, at) for number, group in enumerate(forecast.groups, 1) for at in group):
        config, decision = experiments[at], checked[at]
        work = config.workload
        listed = "" if work.arrival == "trace" else "all of" if work.sends_whole_file else work.prompts_per_pass
        prompts = f"{listed} {config.prompts.source}"
        place = "cannot run here"
        if not isinstance(decision, WattdockError):
            place = f"GPU {', '.join(str(gpu.index) for gpu in decision.gpus)}" if decision.gpus else "CPU"
            tokens_in, tokens_out = PromptSet.lengths(config)
            prompts += f", {tokens_in} in, {tokens_out} out" if tokens_in else f", {tokens_out} out"
        repeats = f"{config.repeats.restarts} × {config.repeats.passes}"
        expected = str(forecast.experiments[at] or NOTHING)
        batch, model = str(work.batch_size), config.model.label
        if config.command:
            batch, model, prompts = NOTHING, NOTHING, config.command.text
        named = (str(number), config.label, place, batch, repeats)
        rows.append((*named, expected, model, prompts, config.experiment_id[:8]))
    yield Listing(PLAN_COLUMNS, rows[:SHOWN])
    if len(rows) > SHOWN:
        yield f"… and {len(rows) - SHOWN} more; --json prints all"
    yield from dict.fromkeys(decision.prompts for decision in ready if decision.prompts)
    yield from _unchecked(experiments, online=online)
    yield (
        f"{pluralize(len(experiments), 'experiment')}, {pluralize(len(forecast.groups), 'load group')}, "
        f"{pluralize(forecast.passes, 'pass', 'passes')}, expected: {forecast.total}"
    )


def _unchecked(experiments: Sequence[ExperimentConfig], *, online: bool) -> Iterable[str]:
    """Yield what only a hub or a runner can check, a line for each."""
    hub = dict.fromkeys(config.model.label for config in experiments if config.model.on_hub)
    if hub and not online:
        yield f"not checked: {', '.join(hub)}; run asks the hub when it starts, and so does plan --online"
    names: dict[str, dict[str, None]] = {}
    for config in experiments:
        section, settings = config.section, names.setdefault(config.backend, {})
        settings.update(dict.fromkeys(f"{config.backend}.{name}" for name in section.passed_through))
        if section.arrivals is None and not config.command:
            settings[f"arrival: {config.workload.arrival}"] = None
    for backend, settings in names.items():
        if settings:
            yield f"not checked: {', '.join(settings)}; only {backend}'s runner knows what its engine takes"


def estimate_view(estimate: Estimate) -> View:
    """Yield what a model takes and where it fits."""
    sized, figures = estimate.model, estimate.figures
    model, requests = sized.model, sized.requests
    if not figures.verified:
        yield f"not verified: not all figures of {figures.name} were found in a source that was read"
    layers = f"{len(model.layers)} layers, {model.heads} heads, {model.kv_heads} key/value heads"
    yield f"{figures.name}: {significant(model.parameters / 1e9)} billion parameters, {layers}"
    quantised = f"{sized.dtype}, quantised by {sized.quantization}" if sized.quantization else sized.dtype
    yield f"weights {sized.weights_bytes / GB:,.1f} GB ({quantised})"
    kv_gb, context = sized.kv_bytes(requests.context_tokens) / GB, f"{requests.context_tokens:,}"
    yield f"KV cache {kv_gb:,.3f} GB per request; {pluralize(requests.count, 'request')} of {context} tokens"
    yield f"tensor parallelism may take {', '.join(map(str, sized.tensor_sizes))} GPUs"
    yield f"source: {figures.source}"
    if model.max_context and requests.context_tokens > model.max_context:
        yield f"note: {context} tokens exceed the model's {model.max_context:,} positions; engines refuse them"
    if figures.note:
        yield f"note: {figures.note}"
    yield Listing(COLUMNS, [_cells(estimate, gpu) for gpu in estimate.gpus])
    if estimate.more_nodes:
        yield estimate.more_nodes
    yield (
        "GB are 10^9 bytes, on the fullest GPU. Weights and KV cache follow from the config; activations and overhead "
        f"(context, workspaces, graphs) are estimated. fits: the total and {estimate.margin:.0%} more are within "
        f"{estimate.model.engine.share:.0%} of the memory. cannot fit: weights and KV cache alone exceed all of it. "
        "? marks what is uncertain: neither."
    )


def _cells(estimate: Estimate, gpu: str) -> tuple[str, ...]:
    memory = estimate.gpus[gpu]
    fewest = [
        NOTHING if fitting is None else f"{fitting.split.gpus}{'' if fitting.verdict == 'fits' else ' ?'}"
        for fitting in estimate.fewest[gpu].values()
    ]
    parts = (memory.weights, memory.kv_cache, memory.activations, memory.overhead)
    return (
        *(gpu.removeprefix("NVIDIA "), f"{memory.memory_bytes / GB:.1f} GB", memory.verdict),
        *(f"{memory.total / GB:.2f}", *fewest, memory.split.label),
        *(f"{part / GB:.2f}" for part in parts),
    )
