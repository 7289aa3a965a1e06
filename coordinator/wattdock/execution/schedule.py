"""Which experiments share a runner, in which order they are served, how long they take, when a backend is given up.

The time left is the sum of durations that were measured. An experiment of unknown duration counts with its lower bound,
and the sum is then called "at least".
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from wattdock.planning import load_groups

if TYPE_CHECKING:
    from wattdock.config import Study
    from wattdock.planning import eta
    from wattdock.records import Failure


def schedule(study: Study, restart: int) -> eta.Groups:
    """Return the load groups in the order in which restart number `restart` serves them.

    A shuffled order depends on the seed, the restart and the experiments, not on their order in the file.
    """
    groups = load_groups(study.experiments)
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


class CircuitBreaker:
    """Counts, per backend, sessions in a row that ended in the same kind of failure at the same stage.

    Args:
        limit: Failures in a row after which a backend is given up; None for never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failures: dict[str, tuple[tuple[str, str], int]] = {}

    def note(self, backend: str, failure: Failure | None, *, measured: bool) -> None:
        """Note how a session ended; a session that measured a pass starts the count again."""
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
            f"{backend}: {count} attempts in a row failed with {kind} ({stage}); no more of its experiments are tried "
            "(see stop_after_failures)"
        )
