"""Two arms on one live engine, block after block, and the claims that their ratio is held against.

Knows no engine: an arm is a call that does one block of work and returns what was generated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paired import log_ratio, order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from paired import Arm, Claim

    from wattdock.records import GeneratedPass


@dataclass(frozen=True)
class Quantity:
    """Something that an arm is judged by; more is better.

    Attributes:
        claim: What its ratio, A over B, is held against.
        of: Reads it off one block.
    """

    claim: Claim
    of: Callable[[GeneratedPass], float]


@dataclass
class Comparison:
    """One pair of arms and everything seen of it so far.

    Attributes:
        on: Engine and size of the work, for people.
        requests: Per block, the same in both arms.
        blocks: Arm, seconds and output tokens of each block so far.
    """

    on: str
    requests: int
    quantities: Sequence[Quantity]
    blocks: list[tuple[Arm, float, int]] = field(default_factory=list)

    @property
    def claims(self) -> list[Claim]:
        """What is held against it."""
        return [quantity.claim for quantity in self.quantities]

    def rate_of(self, arm: Arm) -> float:
        """Return an arm's output tokens per second over all its blocks."""
        own = [(seconds, tokens) for which, seconds, tokens in self.blocks if which == arm]
        return sum(tokens for _, tokens in own) / sum(seconds for seconds, _ in own)

    def run(self, arms: Mapping[Arm, Callable[[], GeneratedPass]], after_each: Callable[[], None]) -> None:
        """Run the planned quadruples; call `after_each` after every one of them."""
        for number in range(self.claims[0].planned):
            turns = order(number)
            done = [arms[arm]() for arm in turns]
            self.blocks += [(arm, one.span.duration_s, one.output_tokens) for arm, one in zip(turns, done, strict=True)]
            for quantity in self.quantities:
                quantity.claim.log_ratios.append(log_ratio(turns, [quantity.of(one) for one in done]))
            after_each()
