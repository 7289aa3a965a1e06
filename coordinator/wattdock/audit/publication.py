"""What stands between a study and figures that may be published, as far as can be told before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import WattdockError
from wattdock.host import GpuInventory
from wattdock.launch.images import find_locked, read_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig, ModelSpec


def left_to_do(experiments: Sequence[ExperimentConfig]) -> list[str]:
    """Return what a person has to do before these experiments' figures can be publishable, a line each.

    Raises:
        PreflightError: The driver cannot be talked to.
        ConfigError: The lock of images cannot be read.
    """
    lines = [line for config in experiments for line in (*_looser(config), *_model(config.model))]
    if reason := GpuInventory.here().reason:
        lines.append(f"GPU: {reason}; measure on a machine with an NVIDIA GPU")
    lock = read_lock()
    for backend in dict.fromkeys(config.backend for config in experiments):
        try:
            find_locked(backend, lock)
        except WattdockError as error:
            lines.append(f"image: {error}; docs/publication.md has the steps")
    return list(dict.fromkeys(lines))


def _looser(config: ExperimentConfig) -> list[str]:
    return [
        f"settings: the study, or a flag, sets {text}; take that out"
        for text in config.looser_than_published().values()
    ]


def _model(model: ModelSpec) -> list[str]:
    if model.shape:
        return [f"model: shape:{model.shape} has random weights; name a trained model of a hub, with its revision"]
    return [f"model: the folder {model.path} has no revision; name a model of a hub, with its revision"] * bool(
        model.path
    )
