"""From experiments to load groups. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config.experiment import ExperimentConfig

# What decides how a runner is started and what it loads.
LOAD_KEYS = ("backend", "model", "accelerator", "gpus", "launcher", "container", "meter", "runner_python", "timeouts")


def load_groups(experiments: Sequence[ExperimentConfig]) -> tuple[tuple[int, ...], ...]:
    """Group neighbours that one runner with one loaded model can serve; the order written is the order run.

    One with `isolation: experiment` shares its runner with no other.

    Returns:
        Positions in `experiments`.
    """
    groups: list[list[int]] = []
    last = None
    for position, experiment in enumerate(experiments):
        config = experiment.model_dump(mode="json")
        alone = position if experiment.isolation == "experiment" else None
        identity = ([config[key] for key in (*LOAD_KEYS, experiment.backend)], alone)
        if identity != last:
            groups.append([])
        groups[-1].append(position)
        last = identity
    return tuple(map(tuple, groups))
