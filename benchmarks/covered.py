"""How often a budget's interval holds the true figure of a simulated engine, and what that takes.

`make bench ARGS='--only coverage'` judges 100 worlds of each kind of `tests/make/worlds.py`, with three restarts and
with five.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from typing import NamedTuple

import numpy as np
from overheads import Row

from wattdock.launch.runners import REPO

sys.path.insert(0, str(REPO / "tests"))

from make.worlds import KINDS, worlds
from seams.analysis import budget

WORLDS, RESTARTS, LIMIT = 100, (3, 5), 0.02


class Judged(NamedTuple):
    """Of one world: whether the interval holds the true figure, its half, the error (both relative), and minutes."""

    holds: bool
    expanded: float
    error: float
    minutes: float


def judged(kind: str, seeds: range, restarts: int) -> list[Judged]:
    """Return what the budget says of these worlds."""
    found = []
    for world, windows, minutes in worlds(kind, seeds, restarts):
        seen = budget(windows)
        assert seen.interval is not None
        assert seen.expanded is not None
        holds = seen.interval.low <= world.true_j <= seen.interval.high
        found.append(Judged(holds, seen.expanded, seen.energy_per_unit_j / world.true_j - 1, minutes))
    return found


def coverage() -> list[Row]:
    """Judge all kinds of worlds."""
    kinds, restarts = zip(*product(KINDS, RESTARTS), strict=True)
    with ProcessPoolExecutor() as pool:
        return list(map(_row, kinds, restarts, pool.map(judged, kinds, repeat(range(WORLDS)), restarts)))


def _row(kind: str, restarts: int, found: list[Judged]) -> Row:
    holds, expanded, errors, minutes = np.array(found).T
    accepted = expanded <= LIMIT
    return Row(
        f"{kind}, {restarts} restarts of {minutes.mean() / restarts:.1f} min",
        f"{holds.mean():.1%} hold the true figure, {accepted.mean():.1%} accepted",
        f"U {np.median(expanded):.2%} (median); accepted ones off by at most {abs(errors[accepted]).max():.2%}",
    )
