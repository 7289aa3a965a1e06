"""Two arms on a live engine, block after block, and the claims that their ratio is held against.

Knows no engine: an arm is a call that does one block of work and returns what was generated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from statistics import mean
from typing import TYPE_CHECKING

from paired import order, steady_mean, turn_seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paired import Arm, Claim, TurnSeen

    from wattdock.records import GeneratedPass

    Arms = Mapping[Arm, Callable[[], GeneratedPass]]
    # Four passes in the order they were run in, each with its arm.
    Turn = list[tuple[Arm, GeneratedPass]]


@dataclass(frozen=True)
class Quantity:
    """Something that an arm is judged by; more is better.

    Attributes:
        claim: What its ratio, A over B, is held against.
        of: Reads it off one pass.
    """

    claim: Claim
    of: Callable[[GeneratedPass], float]

    def seen_in(self, turn: Turn) -> TurnSeen:
        """Return what four passes say of it."""
        return turn_seen([arm for arm, _ in turn], [self.of(one) for _, one in turn])


@dataclass
class Comparison:
    """One pair of arms and everything seen of it so far.

    Attributes:
        on: Engine and size of the work, for people.
        requests: Per pass, the same in both arms.
        passes: Per block.
        blocks: Arm, seconds and output tokens of each block so far.
        durations_s: Arm and seconds of every pass so far: one list per quadruple, of its turns.
    """

    on: str
    requests: int
    passes: int
    quantities: Sequence[Quantity]
    blocks: list[tuple[Arm, float, int]] = field(default_factory=list)
    durations_s: list[list[list[tuple[Arm, float]]]] = field(default_factory=list)

    @property
    def claims(self) -> list[Claim]:
        """What is held against it."""
        return [quantity.claim for quantity in self.quantities]

    def rate_of(self, arm: Arm) -> float:
        """Return an arm's output tokens per second over all its blocks."""
        own = [(took_s, count) for which, took_s, count in self.blocks if which == arm]
        return sum(count for _, count in own) / sum(took_s for took_s, _ in own)

    def run(self, arms: Arms, after_each: Callable[[], None]) -> None:
        """Run the planned quadruples of blocks; call `after_each` after every one of them."""
        for number in range(self.claims[0].planned):
            turns = self._quadruple(number, arms)
            self._keep_blocks(turns)
            self.durations_s.append([[(arm, one.span.duration_s) for arm, one in turn] for turn in turns])
            for quantity in self.quantities:
                seen = [quantity.seen_in(turn) for turn in turns]
                quantity.claim.log_ratios.append(steady_mean(seen))
                quantity.claim.plain.append(mean(turn.log_ratio for turn in seen))
            after_each()

    def _quadruple(self, number: int, arms: Arms) -> list[Turn]:
        """Run four blocks: turns of one pass of each."""
        return [[(arm, arms[arm]()) for arm in order(number)] for _ in range(self.passes)]

    def _keep_blocks(self, turns: Sequence[Turn]) -> None:
        for block in zip(*(sorted(turn, key=itemgetter(0)) for turn in turns), strict=True):
            passes = [one for _, one in block]
            self.blocks.append((block[0][0], seconds(passes), tokens(passes)))


def seconds(block: Sequence[GeneratedPass]) -> float:
    """Return how long a block's passes took together; each begins and ends on a drained engine."""
    return sum(one.span.duration_s for one in block)


def tokens(block: Sequence[GeneratedPass]) -> int:
    """Return the output tokens of a block."""
    return sum(one.output_tokens for one in block)
