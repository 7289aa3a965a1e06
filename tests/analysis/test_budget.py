"""The uncertainty budget: its intervals hold the true figures of simulated engines, and its table adds up."""

from __future__ import annotations

import pytest
from make.worlds import worlds
from seams.analysis import budget

LIMIT = 0.02


@pytest.mark.parametrize(
    ("kind", "count", "least_held", "least_accepted"),
    [
        ("as believed", 80, 0.9, 0.98),
        ("quiet", 20, 0.95, 0.98),
        ("warm", 40, 0.92, 0.98),
        ("room", 20, 0.95, 0.98),
        ("heavy", 40, 0.92, 0.95),
        ("stalls", 60, 0.9, 0.4),
        ("people, 64", 30, 0.93, 0.9),
        ("people, 8, no contexts", 30, 0.93, 0.7),
        ("prompts off, no contexts", 30, 0.93, 0.7),
        ("shortened", 30, 0.93, 0.98),
        ("slow noise", 40, 0.9, 0.9),
        ("no sensor", 30, 0.9, 0.98),
        ("two windows", 20, 0.9, 0.6),
        ("batches off", 20, 0.9, 0.9),
        ("long batches", 20, 0.9, 0.98),
        ("arrivals", 30, 0.9, 0.85),
    ],
)
def test_intervals_hold_the_true_figure(kind: str, count: int, least_held: float, least_accepted: float) -> None:
    """In as many worlds as 95 % let one expect, and no figure that is accepted is further off than the limit."""
    held, accepted = 0, []
    for world, restarts, _ in worlds(kind, range(1000, 1000 + count), 3):
        seen = budget(restarts)
        assert seen.interval is not None
        assert seen.expanded is not None
        held += seen.interval.low <= world.true_j <= seen.interval.high
        if seen.expanded <= LIMIT:
            accepted.append(seen.energy_per_output_token_j / world.true_j - 1)
    assert held >= least_held * count
    assert len(accepted) >= least_accepted * count
    assert max(map(abs, accepted)) <= LIMIT
