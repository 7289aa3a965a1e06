"""Two arms on a live engine, block after block, and the claims that their ratio is held against.

Knows no engine: an arm is a call that does one block of work and returns what was generated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paired import bounds, log_ratio, log_ratio_left, order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paired import Arm, Bounds, Claim

    from wattdock.records.restart import PassRecord

    Arms = Mapping[Arm, Callable[[], PassRecord]]
    # In the order they were run in, each with its arm.
    Passes = list[tuple[Arm, PassRecord]]

# An engine may not be at its pace at once (docs/decisions/comparing-arms.md).
WARM_UP = -1


@dataclass(frozen=True)
class Quantity:
    """Something that an arm is judged by: a time, so less is better.

    Attributes:
        claim: What its ratio, B over A, is held against.
        of: Reads it off one pass.
    """

    claim: Claim
    of: Callable[[PassRecord], float]


@dataclass
class Comparison:
    """One pair of arms and everything seen of it so far.

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
        """What is held against it."""
        return [quantity.claim for quantity in self.quantities]

    @property
    def left_to_the_next(self) -> Bounds | None:
        """What passes of A leave to the next pass, as the ratio of rates; None where a block is one pass."""
        if self.passes == 1 or not self.durations_s:
            return None
        return bounds([log_ratio_left(quadruple) for quadruple in self.durations_s])

    def rate_of(self, arm: Arm) -> float:
        """Return an arm's output tokens per second over all its blocks."""
        own = [(took_s, count) for which, took_s, count in self.blocks if which == arm]
        return sum(count for _, count in own) / sum(took_s for took_s, _ in own)

    def run(self, arms: Arms, after_each: Callable[[], None]) -> None:
        """Run a quadruple of blocks to warm up and then the planned ones; call `after_each` after each of these."""
        self._quadruple(WARM_UP, arms)
        for number in range(self.claims[0].planned):
            done = self._quadruple(number, arms)
            self._keep_blocks(done)
            self.durations_s.append([(arm, measured.span.duration_s) for arm, measured in done])
            for quantity in self.quantities:
                quantity.claim.log_ratios.append(log_ratio([(arm, quantity.of(measured)) for arm, measured in done]))
            after_each()

    def _quadruple(self, number: int, arms: Arms) -> Passes:
        """Run four blocks: turns of one pass of each."""
        return [(arm, arms[arm]()) for _ in range(self.passes) for arm in order(number)]

    def _keep_blocks(self, done: Passes) -> None:
        for arm in sorted({arm for arm, _ in done}):
            own = [measured for which, measured in done if which == arm]
            for block in (own[::2], own[1::2]):
                self.blocks.append((arm, seconds(block), tokens(block)))


def seconds(block: Sequence[PassRecord]) -> float:
    """Return how long a block's passes took together; each begins and ends on a drained engine."""
    return sum(measured.span.duration_s for measured in block)


def tokens(block: Sequence[PassRecord]) -> int:
    """Return the output tokens of a block."""
    return sum(measured.output_tokens for measured in block)
