"""Which GPUs an experiment runs on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.config.experiment import GpuCount
from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.host.gpus import GpuInfo, GpuInventory


def choose_gpus(config: ExperimentConfig, found: GpuInventory, *, visible: str | None = None) -> tuple[GpuInfo, ...]:
    """Return the GPUs that `config` asks for, in the order asked; none where it is to run on the CPU.

    Args:
        found: Every GPU of this machine.
        visible: The caller's CUDA_VISIBLE_DEVICES, which a scheduler sets: only these GPUs are ours to take.

    Raises:
        PreflightError: One that was named does not exist or is not ours, there are fewer than were asked for, or one
            that might have been taken does not answer.
    """
    if config.accelerator == "cpu":
        if config.gpus != "auto":
            raise PreflightError(f"accelerator: cpu and gpus: {_asked(config)} contradict each other; drop one")
        return ()
    ours = _ours(found.gpus, visible)
    here = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in ours) or "none"
    if len(ours) < len(found.gpus):
        here += f" (CUDA_VISIBLE_DEVICES={visible})"
    if isinstance(config.gpus, list):
        return _each_once(tuple(_named(wanted, ours, here) for wanted in config.gpus))
    if found.unreadable:
        # Silently running on the CPU, or on a neighbour, would measure something else than was meant.
        raise PreflightError(f"{found.unreadable[0]}: it does not answer; name others with gpus, or accelerator: cpu")
    if not ours and config.gpus == "auto" and config.accelerator == "auto":
        return ()
    count = config.gpus.count if isinstance(config.gpus, GpuCount) else config.section.gpus_needed()
    if count > len(ours):
        raise PreflightError(f"{count} GPU(s) needed, GPUs here: {here}; ask for fewer, or accelerator: cpu")
    return ours[:count]


def _ours(gpus: Sequence[GpuInfo], visible: str | None) -> tuple[GpuInfo, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, by index or beginning of a UUID; all where it is unset."""
    if visible is None:
        return tuple(gpus)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    return tuple(gpu for gpu in gpus if any(word == str(gpu.index) or gpu.uuid.startswith(word) for word in words))


def _named(wanted: int | str, gpus: Sequence[GpuInfo], here: str) -> GpuInfo:
    for gpu in gpus:
        if wanted in (gpu.index, gpu.uuid):
            return gpu
    raise PreflightError(f"there is no GPU {wanted!r}; GPUs here: {here}")


def _each_once(chosen: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
    if len({gpu.uuid for gpu in chosen}) < len(chosen):
        raise PreflightError(f"gpus: {[gpu.index for gpu in chosen]} names a GPU twice; name each once")
    return chosen


def _asked(config: ExperimentConfig) -> str:
    return str(config.gpus.model_dump() if isinstance(config.gpus, GpuCount) else config.gpus)
