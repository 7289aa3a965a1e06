"""Which GPUs an experiment runs on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.config.experiment import GpuCount
from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.host.gpus import GpuInfo


def choose_gpus(config: ExperimentConfig, gpus: Sequence[GpuInfo]) -> tuple[GpuInfo, ...]:
    """Return the GPUs that `config` asks for, in the order asked; none where it is to run on the CPU.

    Args:
        gpus: Every GPU of this machine.

    Raises:
        PreflightError: One that was named does not exist, or there are fewer than were asked for.
    """
    here = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
    explicit = config.gpus != "auto"
    if config.accelerator == "cpu":
        if explicit:
            raise PreflightError(f"accelerator: cpu and gpus: {_asked(config)} contradict each other; drop one")
        return ()
    if not gpus and not explicit and config.accelerator == "auto":
        return ()
    if isinstance(config.gpus, list):
        chosen = tuple(_named(wanted, gpus, here) for wanted in config.gpus)
        if len({gpu.uuid for gpu in chosen}) < len(chosen):
            raise PreflightError(f"gpus: {config.gpus} names a GPU twice; name each once")
        return chosen
    count = config.gpus.count if isinstance(config.gpus, GpuCount) else config.section.gpus_needed()
    if count > len(gpus):
        raise PreflightError(f"{count} GPU(s) needed, GPUs on this machine: {here}; ask for fewer, or accelerator: cpu")
    return tuple(gpus[:count])


def _named(wanted: int | str, gpus: Sequence[GpuInfo], here: str) -> GpuInfo:
    for gpu in gpus:
        if wanted in (gpu.index, gpu.uuid):
            return gpu
    raise PreflightError(f"there is no GPU {wanted!r}; GPUs on this machine: {here}")


def _asked(config: ExperimentConfig) -> str:
    return str(config.gpus.model_dump() if isinstance(config.gpus, GpuCount) else config.gpus)
