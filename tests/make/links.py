"""Links between two nodes, and the exchanges of instants that go over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from seams.metering import Exchange

from wattdock.clock import NS_PER_S

OFFSETS_S = (0.0, 1.0, -1.0, 3 * 86_400.0)


@dataclass(frozen=True)
class Link:
    """A link, and the node's clock at its other end.

    Attributes:
        there_s, back_s: Delay of a message that meets no queue, each way.
        queue_s: Mean time in queues.
        heavy: Queues have a heavy tail (Pareto, 1.5) instead of an exponential one.
        drift: Rate of the node's clock against this host's, less 1.
    """

    offset_s: float = 0.0
    drift: float = 0.0
    there_s: float = 0.001
    back_s: float = 0.001
    queue_s: float = 0.0
    heavy: bool = False

    @classmethod
    def drawn(cls, random: np.random.Generator) -> Link:
        """One-way delays of 0.1 to 20 ms; any part of the round trip may be the way there, and is so all the time."""
        one_way_s, share = 10 ** random.uniform(-4, np.log10(0.02)), random.uniform()
        return cls(
            offset_s=float(random.choice(OFFSETS_S)),
            drift=random.uniform(-50e-6, 50e-6),
            there_s=2 * one_way_s * share,
            back_s=2 * one_way_s * (1 - share),
            queue_s=one_way_s * 10 ** random.uniform(-2, 0.3),
            heavy=bool(random.integers(2)),
        )

    def node_ns(self, at_s: float) -> int:
        """Return what the node's clock shows at an instant of this host's."""
        return round(((5e5 + at_s) * (1 + self.drift) + self.offset_s) * NS_PER_S)

    def exchanges(self, random: np.random.Generator, length_s: float, per_s: float = 10.0) -> list[Exchange]:
        """Return the exchanges of a time that begins at 0 s."""
        found = []
        for number in range(int(length_s * per_s)):
            sent_s = number / per_s + random.uniform(0, 0.002)
            queues_s = self.queue_s * (random.pareto(1.5, 2) if self.heavy else random.exponential(1, 2))
            received_s = sent_s + self.there_s + queues_s[0]
            replied_s = received_s + random.exponential(20e-6)
            returned_s = replied_s + self.back_s + queues_s[1]
            instants = (self.node_ns(received_s), self.node_ns(replied_s))
            found.append(Exchange(round(sent_s * NS_PER_S), *instants, round(returned_s * NS_PER_S)))
        return found
