"""Decide when an engine that batches continuously gets its next requests.

Knows no engine and reads no clock: it is told the instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from wattdock_runner.backend import Arrival
from wattdock_runner.supply import PoissonSchedule, PromptSupply

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
    """

    def __init__(self, workload: Workload, supply: PromptSupply[T], started_ns: int) -> None:
        self._workload = workload
        self._supply = supply
        self._started_ns = started_ns
        self._schedule = (
            PoissonSchedule(workload.rate_per_s or 0.0, workload.seed, started_ns)
            if workload.arrival is Arrival.POISSON
            else None
        )
        self.exhausted = False

    @property
    def next_ns(self) -> int:
        """When the next request of an open-loop schedule arrives."""
        return self._schedule.at_ns(self._supply.taken) if self._schedule else self._started_ns

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
        if (schedule := self._schedule) is None:
            return [(index, request, None) for index, request in self._supply.take(free)]
        arrived = self._supply.take(free, arrived=lambda index: schedule.at_ns(index) <= at_ns)
        return [(index, request, schedule.at_ns(index)) for index, request in arrived]
