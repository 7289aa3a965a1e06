"""Estimates for a terminal, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.host import gpu_models
from wattdock.inputs import presets
from wattdock.reports.terminal import NOTHING, Sheet, console
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from wattdock.inputs import Estimate

GB = 1e9
UNVERIFIED = "NOT VERIFIED"
COLUMNS = (
    *("GPU", "memory", "smallest TP", "smallest PP", "shown", "weights", "KV cache", "activations", "overhead"),
    *("total", "verdict", "room for KV"),
)
KNOWN_MODELS = ("model", "hub id", "parameters", "figures")
KNOWN_GPUS = ("GPU", "memory", "bandwidth", "16-bit", "link", "limit", "figures")


def print_estimate(found: Estimate, *, as_json: bool) -> None:
    """Print what a model takes and where it fits."""
    if as_json:
        print_json(found.as_json())
        return
    out = console()
    for line in _head(found):
        _say(out, line)
    out.print(Sheet(COLUMNS, [_cells(found, place) for place in range(len(found.gpus))]))
    if unread := [gpu.gpu for gpu in found.gpus if _is_unread(gpu.gpu, gpu.memory_bytes)]:
        _say(out, f"{UNVERIFIED}: the memory of {', '.join(unread)} was found in no source that was read")
    _say(
        out,
        "GB are 10^9 bytes, on the fullest GPU. Weights and KV cache follow from the config; activations and overhead "
        f"(context, workspaces, graphs) are estimated. fits: {found.margin:.0%} of all that stays free below "
        f"{found.engine.share:.0%} of the memory. cannot fit: weights and KV cache alone exceed it. ? marks uncertain.",
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


def print_known(*, as_json: bool) -> None:
    """Print the models and GPUs that are known by name."""
    models, gpus = presets().values(), gpu_models.known().values()
    if as_json:
        names = ("name", "id", "parameters", "verified", "source", "note")
        known = [{name: getattr(model, name) for name in names} for model in models]
        hardware = [{"name": gpu.name, "aliases": gpu.aliases, "unverified": gpu.unverified} for gpu in gpus]
        print_json({"models": known, "gpus": hardware})
        return
    out = console()
    cells = [
        (model.name, model.id or NOTHING, f"{model.parameters or 0:,}", "read" if model.verified else UNVERIFIED)
        for model in models
    ]
    out.print(Sheet(KNOWN_MODELS, cells))
    out.print()
    out.print(Sheet(KNOWN_GPUS, [_gpu_cells(gpu) for gpu in gpus]))


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


def _say(out: Console, line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)
