"""Two arms on a live engine, block after block, and the claims about their ratio.

Knows no engine: an arm is a call that runs one pass and returns its record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paired import bounds, carryover_log_ratio, log_ratio, order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paired import Arm, Bounds, Claim

    from wattdock.records.passes import PassRecord

    Arms = Mapping[Arm, Callable[[], PassRecord]]

# An engine may need time to reach its speed (docs/decisions/comparing-arms.md).
WARM_UP = -1


@dataclass(frozen=True)
class Quantity:
    """A time by which arms are compared; less is better.

    Attributes:
        claim: The claim about its ratio, B over A.
        of: Returns its value in a pass.
    """

    claim: Claim
    of: Callable[[PassRecord], float]


@dataclass
class Comparison:
    """A pair of arms and its measurements so far.

    Attributes:
        on: Engine and size of the work, for people.
        requests: Per pass, the same in both arms.
        passes: Per block.
        blocks: Arm, seconds and output tokens of each block so far; the warm-up's are not among them.
        durations_s: Arm and seconds of every pass so far, in the order they were run in: one list per quadruple.
    """

    on: str
    requests: int
    passes: int
    quantities: Sequence[Quantity]
    blocks: list[tuple[Arm, float, int]] = field(default_factory=list)
    durations_s: list[list[tuple[Arm, float]]] = field(default_factory=list)

    @property
    def claims(self) -> list[Claim]:
        """The claims about the ratio of the arms."""
        return [quantity.claim for quantity in self.quantities]

    @property
    def carryover(self) -> Bounds | None:
        """The effect of a pass of A on the next pass, as a ratio of rates; None if a block is one pass."""
        if self.passes == 1 or not self.durations_s:
            return None
        return bounds([carryover_log_ratio(quadruple) for quadruple in self.durations_s])

    def rate_of(self, arm: Arm) -> float:
        """Return an arm's output tokens per second over all its blocks."""
        blocks = [(took_s, count) for block_arm, took_s, count in self.blocks if block_arm == arm]
        return sum(count for _, count in blocks) / sum(took_s for took_s, _ in blocks)

    def run(self, arms: Arms, after_each: Callable[[], None]) -> None:
        """Run a quadruple of blocks to warm up and then the planned ones; call `after_each` after each of these."""
        self._quadruple(WARM_UP, arms)
        for number in range(self.claims[0].planned):
            done = self._quadruple(number, arms)
            for arm in sorted(arms):
                passes = [measured for pass_arm, measured in done if pass_arm == arm]
                for block in (passes[::2], passes[1::2]):
                    # Each pass begins and ends on a drained engine.
                    took_s = sum(measured.span.duration_s for measured in block)
                    self.blocks.append((arm, took_s, sum(measured.output_tokens for measured in block)))
            self.durations_s.append([(arm, measured.span.duration_s) for arm, measured in done])
            for quantity in self.quantities:
                quantity.claim.log_ratios.append(log_ratio([(arm, quantity.of(measured)) for arm, measured in done]))
            after_each()

    def _quadruple(self, number: int, arms: Arms) -> list[tuple[Arm, PassRecord]]:
        """Run four blocks, in turns of one pass of each; return the passes with their arms, in running order."""
        return [(arm, arms[arm]()) for _ in range(self.passes) for arm in order(number)]
