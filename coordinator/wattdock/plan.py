"""From experiments to load groups. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config.experiment import ExperimentConfig

# What decides how a runner is started and what it loads.
LOAD_KEYS = ("backend", "model", "accelerator", "gpus", "launcher", "meter", "runner_python", "timeouts")


def load_groups(experiments: Sequence[ExperimentConfig]) -> tuple[tuple[int, ...], ...]:
    """Group experiments that one runner with one loaded model can serve.

    One with `isolation: experiment` shares its runner with no other.

    Returns:
        Positions in `experiments`, in order of first appearance.
    """
    groups: dict[str, list[int]] = {}
    for position, experiment in enumerate(experiments):
        config = experiment.model_dump(mode="json")
        identity = {key: config[key] for key in (*LOAD_KEYS, experiment.backend)}
        alone = position if experiment.isolation == "experiment" else None
        groups.setdefault(json.dumps([identity, alone], sort_keys=True), []).append(position)
    return tuple(map(tuple, groups.values()))
