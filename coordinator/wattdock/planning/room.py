"""Ask whether a model and its answers fit, where they are to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.host import GpuInventory
from wattdock.inputs import memory_fit

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.launch import LauncherChoice


def model_memory(
    config: ExperimentConfig,
    inventory: GpuInventory,
    *,
    hub_home: Path | None,
    on_cpus: LauncherChoice | None = None,
    weights_only: bool = False,
) -> tuple[int | None, str, str | None]:
    """Return the size of the weights, a line about the model's memory, and whether it fits; refuse what cannot.

    Args:
        inventory: The GPUs here, of which the largest is looked at.
        hub_home: As of `memory_fit`.
        on_cpus: How a runner on CPUs is started, which says what memory is left; None looks at GPUs.
    """
    sizes_bytes = [gpu.vram_total_bytes for gpu in inventory.gpus if gpu.vram_total_bytes is not None]
    of_gpus_bytes = max(sizes_bytes, default=None) if config.accelerator != "cpu" else None
    return memory_fit(
        config,
        gpus=config.gpus_asked * config.node_count,
        memory_bytes=on_cpus.memory_left_bytes if on_cpus else of_gpus_bytes,
        on_host=on_cpus is not None,
        weights_only=weights_only,
        hub_home=hub_home,
    )


def require_room_to_answer(config: ExperimentConfig, tokens: int, *, hub_home: Path | None) -> None:
    """Check that an answer to a question may have so many tokens; else it has no score, once all has been measured.

    Raises:
        ConfigError: The model's context is shorter.
    """
    answering = config.model_copy(update={"workload": type(config.workload)(max_output_tokens=tokens)})
    try:
        model_memory(answering, GpuInventory(()), hub_home=hub_home)
    except ConfigError as error:
        raise ConfigError(f"quality: {error.what}", "lower quality.max_output_tokens", cause=error.cause) from error
