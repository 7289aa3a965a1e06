"""Which runner serves which experiments, in which order, and when a backend is given up. Pure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig, Study
    from wattdock.records import Failure

Groups = tuple[tuple[int, ...], ...]


def load_groups(experiments: Sequence[ExperimentConfig]) -> Groups:
    """Group experiments that one runner with one loaded model can serve, wherever they stand.

    An experiment with `isolation: experiment` shares its runner with no other.

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
    ids = [experiment.experiment_id for experiment in study.experiments]
    shuffler = random.Random(f"{study.seed}/{restart}")
    shuffled = []
    for group in sorted(groups, key=lambda group: min(ids[position] for position in group)):
        positions = sorted(group, key=ids.__getitem__)
        shuffler.shuffle(positions)
        shuffled.append(tuple(positions))
    shuffler.shuffle(shuffled)
    return tuple(shuffled)


class Breaker:
    """Counts, per backend, attempts in a row that ended in the same kind of failure at the same stage.

    Args:
        limit: Failures in a row after which a backend is given up; None for never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failures: dict[str, tuple[tuple[str, str], int]] = {}

    def note(self, backend: str, failure: Failure | None, *, measured: bool) -> None:
        """Note how an attempt ended; an attempt that measured a pass starts the count again."""
        if failure is None:
            self._failures.pop(backend, None)
            return
        # "pass 2/3" and "pass 1/3" are one stage.
        kind = (failure.kind, failure.stage.split(" ")[0])
        before, count = self._failures.get(backend, (kind, 0))
        self._failures[backend] = (kind, count + 1 if before == kind and not measured else 1)

    def reason(self, backend: str) -> str | None:
        """Return why a backend is given up; None while it is not."""
        (kind, stage), count = self._failures.get(backend, (("", ""), 0))
        if self._limit is None or count < self._limit:
            return None
        return (
            f"{backend}: {count} attempts in a row failed with {kind} ({stage}); the rest of its experiments is given "
            "up (see stop_after_failures)"
        )
