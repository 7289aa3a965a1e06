"""Decide which requests a pass still has to submit; the same rule for every backend.

Knows no engine. The clock is read here only against `min_duration_s`.
"""

from __future__ import annotations

import random
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.tickets import OwnTickets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattdock_runner.backend import Workload
    from wattdock_runner.tickets import Tickets

T = TypeVar("T")


class PromptSupply(Generic[T]):
    """Hands out prompts in order, from the start again when they are used up, until the pass's minima are met.

    Without `min_requests` each prompt is wanted once. Where a minimum duration is set, every request asked for is
    handed out, so that a static batch is never partial in the middle of a pass. Where the workload has tickets that
    several engines share, each request goes to the one that asks first.

    Args:
        prompts: Whatever the backend made of the prompts; at least one.
        started_ns: The instant that the pass's span was opened at.
    """

    def __init__(
        self, workload: Workload, prompts: Sequence[T], started_ns: int, clock_ns: Callable[[], int] = now_ns
    ) -> None:
        self._prompts = prompts
        self._tickets: Tickets = workload.tickets or OwnTickets()
        self._min_requests = workload.min_requests or len(prompts)
        self._min_duration_s = workload.min_duration_s or 0.0
        self._started_ns = started_ns
        self._clock_ns = clock_ns

    @property
    def taken(self) -> int:
        """How many requests have been handed out so far, to any engine."""
        return self._tickets.taken

    def minima_met(self) -> bool:
        """Return whether the pass has had all its requests and its time."""
        return self._met_with(self.taken)

    def _met_with(self, taken: int) -> bool:
        elapsed_s = (self._clock_ns() - self._started_ns) / NS_PER_S
        return taken >= self._min_requests and elapsed_s >= self._min_duration_s

    def met_at_ns(self) -> int | None:
        """Return when the minima are met without a further request; None where one is wanted."""
        if self.taken < self._min_requests:
            return None
        return self._started_ns + round(self._min_duration_s * NS_PER_S)

    def take(self, count: int, *, arrived: Callable[[int], bool] = lambda _: True) -> list[tuple[int, T]]:
        """Return up to `count` further requests as (index, prompt); none once both minima are met.

        Args:
            arrived: Whether the request of an index is there yet; those behind one that is not have to wait too.
        """
        granted = self._tickets.take(lambda taken: self._grant(taken, count, arrived))
        return [(index, self._prompts[index % len(self._prompts)]) for index in granted]

    def _grant(self, taken: int, count: int, arrived: Callable[[int], bool]) -> int:
        if self._met_with(taken):
            return 0
        most = count if self._min_duration_s else min(count, self._min_requests - taken)
        return sum(1 for _ in takewhile(arrived, range(taken, taken + most)))


def poisson_instants(rate_per_s: float, seed: int, started_ns: int) -> Iterator[int]:
    """Yield the instants (ns) of a Poisson process of `rate_per_s` after `started_ns`; equal for equal seeds."""
    draw = random.Random(seed)
    offset_s = 0.0
    while True:
        offset_s += draw.expovariate(rate_per_s)
        yield started_ns + round(offset_s * NS_PER_S)


class PoissonSchedule:
    """The instants of `poisson_instants`, by the index of the request that arrives at each."""

    def __init__(self, rate_per_s: float, seed: int, started_ns: int) -> None:
        self._instants = poisson_instants(rate_per_s, seed, started_ns)
        self._known_ns: list[int] = []

    def at_ns(self, index: int) -> int:
        """Return when request `index` arrives, in ns."""
        while len(self._known_ns) <= index:
            self._known_ns.append(next(self._instants))
        return self._known_ns[index]
