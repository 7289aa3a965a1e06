"""Which GPUs an experiment runs on, and why the others were not taken. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.host.gpu import Gpu
    from wattdock.host.gpu_inventory import GpuInventory
    from wattdock.host.leases import Holder


@dataclass(frozen=True)
class _Host:
    """What decides, besides the experiment, which GPUs can be had; attributes as in `GpuInventory.choose`."""

    inventory: GpuInventory
    visible: str | None
    leases: Mapping[str, Holder]
    weight_bytes: int | None


def choose_gpus(
    config: ExperimentConfig,
    inventory: GpuInventory,
    *,
    visible: str | None,
    leases: Mapping[str, Holder],
    weight_bytes: int | None,
) -> tuple[Gpu, ...]:
    """Return the GPUs that an experiment gets, as `GpuInventory.choose` says."""
    if config.accelerator == "cpu":
        if config.gpus != "auto":
            raise PreflightError(f"accelerator: cpu and gpus: {config.gpus} contradict each other; drop one")
        return ()
    host = _Host(inventory, visible, leases, weight_bytes)
    usable = _visible(inventory.gpus, visible)
    if isinstance(config.gpus, list):
        here = _listed(usable) + ("" if len(usable) == len(inventory.gpus) else f" (CUDA_VISIBLE_DEVICES={visible})")
        named = _each_once(tuple(_named(name, usable, here) for name in config.gpus))
        return _require_free(config, host, named)
    if inventory.unreadable:
        # Silently running on the CPU, or on a neighbour, would measure something else than was meant.
        raise PreflightError(
            f"{inventory.unreadable[0]}: no answer; name other GPUs with gpus, or set accelerator: cpu"
        )
    if not usable and config.gpus == "auto" and config.accelerator == "auto":
        return ()
    return _best(config, host, usable)


def _why_not(config: ExperimentConfig, host: _Host, gpu: Gpu) -> str | None:
    """Why a GPU cannot be taken. Processes on a leased GPU are its holder's and end with the lease."""
    if gpu.mig:
        slices = ", ".join(gpu.mig_slices) or "none yet"
        return f"MIG is on (slices: {slices}) and a slice has no energy counter; turn it off (nvidia-smi -mig 0)"
    if holder := host.leases.get(gpu.uuid):
        return None if config.wait_s else f"leased by {holder}"
    if occupied := host.inventory.why_occupied(gpu):
        return occupied
    needed, free = _bytes_needed(config, host.weight_bytes), gpu.vram_free_bytes
    if free is not None and free < needed:
        return f"{free / 1e9:.1f} GB free, at least {needed / 1e9:.1f} GB needed"
    return None


def _bytes_needed(config: ExperimentConfig, weight_bytes: int | None) -> float:
    """Least VRAM per GPU: its share of the weights, and what was asked for."""
    return max(config.min_free_bytes, (weight_bytes or 0) * config.section.replicas / config.gpus_asked)


def _require_free(config: ExperimentConfig, host: _Host, named: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    rejected = {gpu.uuid: why for gpu in named if (why := _why_not(config, host, gpu))}
    if rejected:
        reasons = [f"GPU {gpu.index}: {rejected[gpu.uuid]}" for gpu in named if gpu.uuid in rejected]
        fewer = _fewer(config, host, [gpu for gpu in named if gpu.uuid not in rejected])
        raise PreflightError(f"{'; '.join(reasons)}; choose others with gpus{fewer}{_waiting(reasons)}")
    return named


def _fewer(config: ExperimentConfig, host: _Host, free: Sequence[Gpu]) -> str:
    """Say that those of the named GPUs that are free would do, where the settings need no more and the model fits."""
    indices = [gpu.index for gpu in free]
    smaller = config.model_copy(update={"gpus": indices})
    if len(free) < config.section.gpus_needed() or any(_why_not(smaller, host, gpu) for gpu in free):
        return ""
    return f", or fewer: gpus {indices} would do"


def _best(config: ExperimentConfig, host: _Host, usable: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The best group of one model; leased GPUs, which have to be waited for, only where there is no other."""
    count = config.gpus_asked
    rejected = {gpu.uuid: why for gpu in usable if (why := _why_not(config, host, gpu))}
    able = [gpu for gpu in usable if gpu.uuid not in rejected]
    for candidates in ([gpu for gpu in able if gpu.uuid not in host.leases], able):
        if groups := list(_groups(candidates, count)):
            # The first of equals, so that the choice is the same every time.
            return max(groups, key=lambda group: _linkage(group, host.inventory))
    if len(able) >= count:
        raise PreflightError(
            f"{count} GPUs of one model are needed, free here: {_listed(able)}; name GPUs with gpus to mix models"
        )
    reasons = [f"GPU {gpu.index}: {rejected[gpu.uuid]}" for gpu in usable if gpu.uuid in rejected]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    free = _listed(able)
    hidden = "" if len(usable) == len(host.inventory.gpus) else f" (CUDA_VISIBLE_DEVICES={host.visible})"
    raise PreflightError(
        f"{pluralize(count, 'GPU')} needed, free GPUs here: {free}{hidden}{why}; ask for fewer, or accelerator: cpu"
        f"{_waiting(reasons)}"
    )


def _groups(candidates: Sequence[Gpu], count: int) -> Iterable[tuple[Gpu, ...]]:
    """Every group of `count` GPUs of one model, lowest indices first."""
    for name in dict.fromkeys(gpu.name for gpu in candidates):
        yield from itertools.combinations([gpu for gpu in candidates if gpu.name == name], count)


def _linkage(group: tuple[Gpu, ...], inventory: GpuInventory) -> tuple[int, int]:
    """The slowest link decides how fast a group is, then all of them."""
    ranks = [link.rank for link in inventory.links_among(frozenset(gpu.uuid for gpu in group))]
    return (min(ranks, default=0), sum(ranks))


def _waiting(reasons: Sequence[str]) -> str:
    return ", or wait for the lease with --wait SECONDS" if any("leased by" in reason for reason in reasons) else ""


def _listed(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.name})" for gpu in gpus) or "none"


def _visible(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, by index or beginning of a UUID; all where it is unset."""
    if visible is None:
        return tuple(gpus)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if slices := [word for word in words if word.startswith("MIG-")]:
        raise PreflightError(
            f"CUDA_VISIBLE_DEVICES={visible} gives the MIG slice {slices[0]}, which has no energy counter of its own; "
            "ask the scheduler for a whole GPU"
        )
    return tuple(gpu for gpu in gpus if any(word == str(gpu.index) or gpu.uuid.startswith(word) for word in words))


def _named(name: int | str, gpus: Sequence[Gpu], here: str) -> Gpu:
    for gpu in gpus:
        if name in (gpu.index, gpu.uuid):
            return gpu
        if name in gpu.mig_slices:
            raise PreflightError(
                f"{name} is a MIG slice of GPU {gpu.index} and has no energy counter of its own; "
                "name a whole GPU with MIG off"
            )
    raise PreflightError(f"there is no GPU {name!r}; GPUs here: {here}")


def _each_once(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise PreflightError(f"gpus: {[gpu.index for gpu in gpus]} names a GPU twice; name each once")
    return gpus
