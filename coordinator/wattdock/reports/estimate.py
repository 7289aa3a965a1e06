"""Estimates for a terminal, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wattdock.host import gpu_models
from wattdock.inputs import AIM, MARGIN, presets
from wattdock.reports.terminal import Sheet, console
from wattdock.reports.words import NOTHING
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from wattdock.inputs import Answer, Comparison, GpuAnswer, Line, Preset, Smallest

GB = 1e9
UNVERIFIED = "NOT VERIFIED"
COLUMNS = (
    *("GPU", "memory", "smallest TP", "smallest PP", "shown", "weights", "KV cache", "activations", "overhead"),
    *("total", "verdict", "room for KV"),
)
FIGURES = tuple(name for name in COLUMNS if name not in ("GPU", "shown", "verdict"))
ERRORS = ("estimated", "reported", "error")
KNOWN_MODELS = ("model", "hub id", "parameters", "figures")
KNOWN_GPUS = ("GPU", "memory", "bandwidth", "16-bit", "link", "limit", "figures")


def print_answer(found: Answer, *, as_json: bool) -> None:
    """Print what a model takes and where it fits."""
    if as_json:
        print_json(found.as_json())
        return
    out = console()
    for line in _head(found):
        _say(out, line)
    out.print(Sheet(COLUMNS, [_cells(one) for one in found.gpus], right=FIGURES))
    if unread := [one.gpu.name for one in found.gpus if not one.gpu.verified]:
        _say(out, f"{UNVERIFIED}: the memory of {', '.join(unread)} was found in no source that was read")
    _say(
        out,
        "GB are 10^9 bytes, on the fullest GPU. Weights and KV cache follow from the config; activations and overhead "
        f"(context, graphs, communicators) are estimated. fits: {MARGIN:.0%} of all that stays free below "
        f"{found.engine.share:.0%} of the memory. cannot fit: weights and KV cache alone exceed it. ? marks uncertain.",
    )


def _head(found: Answer) -> list[str]:
    model, figures = found.sized.model, found.figures
    kv = sum(layer.kv_values for layer in model.layers if layer.window is None) * found.sized.size.values
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


def _precision(found: Answer) -> str:
    size, dtype = found.sized.size, found.sized.dtype
    if size.layers != size.rest:
        return f"{dtype}, layers at {8 * size.layers:g} bits"
    return dtype if size.experts == size.rest else f"{dtype}, experts at {8 * size.experts:g} bits"


def _cells(one: GpuAnswer) -> tuple[str, ...]:
    small = [_count(found) for found in one.smallest]
    name, memory = one.gpu.name.removeprefix("NVIDIA "), f"{one.gpu.memory_bytes / GB:.1f} GB"
    if one.needs is None or one.split is None:
        return (name, memory, *small, *[NOTHING] * 6, one.verdict, NOTHING)
    parts = (one.needs.weights, one.needs.kv_cache, one.needs.activations, one.needs.overhead, one.needs.total)
    room = NOTHING if one.kv_room_tokens is None else f"{one.kv_room_tokens:,} tokens"
    return (name, memory, *small, one.split.label, *(f"{part / GB:.2f}" for part in parts), one.verdict, room)


def _count(found: Smallest) -> str:
    if found.split is None:
        return NOTHING
    return f"{found.split.gpus}{'' if found.verdict == 'fits' else ' ?'}"


def print_estimate_comparison(found: Sequence[Comparison], *, as_json: bool) -> None:
    """Print estimates beside what engines reported."""
    if as_json:
        print_json([_comparison_json(one) for one in found])
        return
    out = console()
    rows = [(one.name, one.split.label, line.part, *_line_cells(line)) for one in found for line in one.lines]
    out.print(Sheet(("result", "split", "part", *ERRORS, ""), rows, right=ERRORS))
    for one in found:
        if one.reason:
            _say(out, f"{one.name}: {one.reason}")


def _line_cells(line: Line) -> tuple[str, ...]:
    tokens = line.part.endswith("tokens")
    values = [
        NOTHING if value is None else f"{value:,.0f}" if tokens else f"{value / GB:.3f} GB"
        for value in (line.estimated, line.reported)
    ]
    error = NOTHING if line.error is None else f"{line.error:+.1%}"
    beyond = "beyond the aim of 5 %" if line.error is not None and abs(line.error) > AIM else ""
    return (*values, error, beyond)


def _comparison_json(one: Comparison) -> dict[str, Any]:
    lines = [asdict(line) | {"error": line.error} for line in one.lines]
    return {"result": one.name, "split": one.split.label, "reason": one.reason, "lines": lines}


def print_known(*, as_json: bool) -> None:
    """Print the models and GPUs that are known by name."""
    models, gpus = presets().values(), gpu_models.known().values()
    if as_json:
        names = ("name", "id", "parameters", "verified", "source", "note")
        known = [{name: getattr(one, name) for name in names} for one in models]
        hardware = [{"name": one.name, "aliases": one.aliases, "unverified": one.unverified} for one in gpus]
        print_json({"models": known, "gpus": hardware})
        return
    out = console()
    out.print(Sheet(KNOWN_MODELS, [_model_cells(one) for one in models], right=("parameters",)))
    out.print()
    out.print(Sheet(KNOWN_GPUS, [_gpu_cells(one) for one in gpus]))


def _model_cells(one: Preset) -> tuple[str, ...]:
    count = f"{one.parameters:,}" if one.parameters else NOTHING
    return one.name, one.id or NOTHING, count, "read" if one.verified else UNVERIFIED


def _gpu_cells(one: gpu_models.GpuModel) -> tuple[str, ...]:
    return (
        one.aliases[0],
        f"{one.memory_bytes / GB:.1f} GB",
        f"{one.memory_bytes_per_s / 1e12:g} TB/s",
        f"{one.flops_per_s / 1e12:g} TFLOP/s",
        f"{one.link}, {one.link_bytes_per_s / GB:g} GB/s",
        f"{one.power_limit_w:g} W",
        f"{UNVERIFIED}: {', '.join(one.unverified)}" if one.unverified else "read",
    )


def _say(out: Console, line: str) -> None:
    out.print(line, markup=False, highlight=False, soft_wrap=True)
