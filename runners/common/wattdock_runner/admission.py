"""Decide when an engine that batches continuously gets its next requests.

Knows no engine and reads no clock: it is told the instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from wattdock_runner.backend import Arrival
from wattdock_runner.supply import PromptSupply, poisson_instants

if TYPE_CHECKING:
    from wattdock_runner.backend import Workload

T = TypeVar("T")


class Admission(Generic[T]):
    """Hands out a pass's requests as its kind of arrival says.

    Args:
        supply: Where requests come from; it knows when the pass's minima are met.
        started_ns: The instant that the pass's span was opened at.

    Attributes:
        exhausted: No further request will come.
        next_ns: When the next request of an open-loop schedule arrives.
    """

    def __init__(self, workload: Workload, supply: PromptSupply[T], started_ns: int) -> None:
        self._workload = workload
        self._supply = supply
        self._schedule = (
            poisson_instants(workload.rate_per_s or 0.0, workload.seed, started_ns)
            if workload.arrival is Arrival.POISSON
            else None
        )
        self.next_ns = next(self._schedule) if self._schedule else started_ns
        self.exhausted = False

    @property
    def wake_ns(self) -> int:
        """When there is something to decide again where nothing runs: an arrival, or the pass's end before it."""
        ends_ns = self._supply.met_at_ns()
        return self.next_ns if ends_ns is None else min(self.next_ns, ends_ns)

    def due(self, running: int, at_ns: int) -> list[tuple[int, T, int | None]]:
        """Return the requests that enter the engine now, as (index, request, intended instant or None).

        Args:
            running: How many requests the engine is serving.
        """
        free = self._workload.in_flight - running
        self.exhausted = self.exhausted or self._supply.minima_met()
        if self.exhausted or free <= 0 or (self._workload.arrival is Arrival.BATCH and running):
            return []
        if self._schedule is None:
            return [(index, request, None) for index, request in self._supply.take(free)]
        arrived: list[tuple[int, T, int | None]] = []
        while len(arrived) < free and self.next_ns <= at_ns and (taken := self._supply.take(1)):
            arrived += [(index, request, self.next_ns) for index, request in taken]
            self.next_ns = next(self._schedule)
        return arrived
