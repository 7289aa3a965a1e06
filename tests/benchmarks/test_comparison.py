"""How the passes of two arms take turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from comparison import Comparison, Quantity
from engines import duration_s
from paired import Claim

if TYPE_CHECKING:
    from collections.abc import Callable
PASSES, QUADRUPLES, COST = 4, 6, 0.004


class Machine:
    """Serves a pass of 128 tokens in a second, longer by `COST` in arm A, at a speed that changes every eighth pass."""

    def __init__(self) -> None:
        self.turns = ""
        self._rng = np.random.default_rng(5)
        self._speed = 1.0

    def arm(self, name: str) -> Callable[[], Any]:
        def serve() -> Any:
            if len(self.turns) % 8 == 0:
                self._speed = self._rng.uniform(0.6, 1.4)
            self.turns += name
            took_s = (1 + (COST if name == "A" else 0)) / self._speed
            return SimpleNamespace(span=SimpleNamespace(duration_s=took_s), output_tokens=128)

        return serve


def compared(passes: int) -> tuple[Machine, Comparison]:
    machine = Machine()
    claim = Claim("with / without", 0.995, QUADRUPLES)
    comparison = Comparison("a machine", 1, passes, [Quantity(claim, duration_s)])
    comparison.run({"A": machine.arm("A"), "B": machine.arm("B")}, lambda: None)
    return machine, comparison


def test_blocks_of_several_passes_take_turns_after_every_pass() -> None:
    """Four passes per block: one of each block at a time, in the other order in every other quadruple; one warms up."""
    machine, comparison = compared(PASSES)
    assert machine.turns == "BAAB" * PASSES + ("ABBA" * PASSES + "BAAB" * PASSES) * (QUADRUPLES // 2)
    assert len(comparison.durations_s) == len(comparison.claims[0].log_ratios) == QUADRUPLES
    assert [arm for arm, _, _ in comparison.blocks] == list("AABB" * QUADRUPLES)
    assert all(tokens == 128 * PASSES for _, _, tokens in comparison.blocks)


def test_what_changes_more_slowly_than_four_passes_does_not_blur_a_ratio() -> None:
    """A speed that jumps by tens of percent between turns leaves a cost of 0.4 % to be seen, and shown to be small."""
    _, comparison = compared(PASSES)
    estimate = comparison.claims[0].estimate
    assert estimate
    assert estimate.n == QUADRUPLES
    assert estimate.ratio == pytest.approx(1 / (1 + COST))
    assert comparison.claims[0].verdict == "holds"
