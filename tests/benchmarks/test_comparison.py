"""How the passes of two arms take turns."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from comparison import Comparison, Quantity
from engines import tokens_per_s
from paired import Claim, bounds

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
    comparison = Comparison("a machine", 1, passes, [Quantity(claim, tokens_per_s)])
    comparison.run({"A": machine.arm("A"), "B": machine.arm("B")}, lambda: None)
    return machine, comparison


def stalling(machine: Machine, name: str, stalls: set[int]) -> Callable[[], Any]:
    """Serve as the machine's arm does, but take half as long again in the passes of these numbers."""
    serve, number = machine.arm(name), count()

    def stall() -> Any:
        one = serve()
        one.span.duration_s *= 1.5 if next(number) in stalls else 1
        return one

    return stall


def test_blocks_of_several_passes_take_turns_after_every_pass() -> None:
    """Four passes per block: one of each block at a time, in the other order in every other quadruple."""
    machine, comparison = compared(PASSES)
    assert machine.turns == ("ABBA" * PASSES + "BAAB" * PASSES) * (QUADRUPLES // 2)
    assert [arm for arm, _, _ in comparison.blocks] == list("AABB" * QUADRUPLES)
    assert all(tokens == 128 * PASSES for _, _, tokens in comparison.blocks)


def test_what_changes_more_slowly_than_four_passes_does_not_blur_a_ratio() -> None:
    """A speed that jumps by tens of percent between turns leaves a cost of 0.4 % to be seen, and shown to be small."""
    _, comparison = compared(PASSES)
    seen = comparison.claims[0].seen
    assert seen
    assert seen.n == QUADRUPLES
    assert seen.ratio == pytest.approx(1 / (1 + COST))
    assert comparison.claims[0].verdict == "holds"


def test_a_stall_blurs_the_plain_mean_and_not_a_quadruple_s_value() -> None:
    """One pass in thirty takes half as long again, in either arm by chance."""
    machine, passes = Machine(), 15
    claim = Claim("with / without", 0.995, QUADRUPLES)
    comparison = Comparison("a machine", 1, passes, [Quantity(claim, tokens_per_s)])
    rng = np.random.default_rng(8)
    hit = {name: set(np.flatnonzero(rng.random(2 * passes * QUADRUPLES) < 1 / 30).tolist()) for name in "AB"}
    comparison.run({"A": stalling(machine, "A", hit["A"]), "B": stalling(machine, "B", hit["B"])}, lambda: None)
    trimmed, plain = bounds(claim.log_ratios), bounds(claim.plain)
    assert trimmed.ratio == pytest.approx(1 / (1 + COST), rel=1e-9)
    assert plain.margin
    assert plain.margin > 0.005
