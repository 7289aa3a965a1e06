"""From experiments to load groups, and the order in which a restart serves them. Pure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig, Study

Groups = tuple[tuple[int, ...], ...]


def load_groups(experiments: Sequence[ExperimentConfig]) -> Groups:
    """Group experiments that one runner with one loaded model can serve, wherever they stand.

    One with `isolation: experiment` shares its runner with no other.

    Returns:
        Positions in `experiments`; groups in the order of their first.
    """
    groups: dict[tuple[str, int | None], list[int]] = {}
    for position, experiment in enumerate(experiments):
        alone = position if experiment.isolation == "experiment" else None
        groups.setdefault((experiment.load_key, alone), []).append(position)
    return tuple(map(tuple, groups.values()))


def schedule(study: Study, groups: Groups, restart: int) -> Groups:
    """Return the load groups in the order in which restart number `restart` serves them.

    Shuffled orders depend on the seed, the restart and what is measured, not on how the file is written.
    """
    if study.order == "written":
        return groups
    ids = [one.experiment_id for one in study.experiments]
    shuffler = random.Random(f"{study.seed}/{restart}")
    shuffled = []
    for group in sorted(groups, key=lambda group: min(ids[position] for position in group)):
        positions = sorted(group, key=ids.__getitem__)
        shuffler.shuffle(positions)
        shuffled.append(tuple(positions))
    shuffler.shuffle(shuffled)
    return tuple(shuffled)
