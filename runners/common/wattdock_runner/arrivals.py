"""Decide which requests of a pass enter an engine, and when: kinds of arrival, minima.

Knows no engine and reads no clock: every instant is an argument.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from wattdock_runner.clock import NS_PER_S
from wattdock_runner.tickets import Tickets
from wattdock_runner.values import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock_runner.values import Workload

T = TypeVar("T")


class Admission(Generic[T]):
    """Hands out the requests of a pass at their times, until the minima of the pass are met and it may end.

    Prompts repeat in order. Without `min_requests` each prompt is run once. With a minimum duration every free place
    is filled, so that a static batch is never partial in the middle of a pass.

    Args:
        prompts: At least one prompt.
        started_ns: When the span of the pass was opened.
        first: The first requests, where these are other than the first prompts; they never repeat.
        may_end: Tells whether the client lets a pass with a minimum duration end.

    Attributes:
        exhausted: No further request will come.
    """

    def __init__(
        self,
        workload: Workload,
        prompts: Sequence[T],
        started_ns: int,
        first: Sequence[T] = (),
        *,
        may_end: Callable[[], bool],
    ) -> None:
        self._workload, self._may_end = workload, may_end
        self._prompts, self._first = prompts, first
        self._tickets = workload.tickets or Tickets()
        self._min_requests = workload.min_requests or len(prompts)
        self._min_end_ns = started_ns + round((workload.min_duration_s or 0.0) * NS_PER_S)
        self._schedule: Sequence[int] | None = None
        if workload.arrival is Arrival.OPEN:
            self._schedule = [started_ns + at_ns for at_ns in workload.arrival_ns]
            self._min_requests = min(self._min_requests, len(self._schedule))
        self.exhausted = False

    def intended_ns(self, index: int) -> int | None:
        """Return when the schedule of an open loop wants request `index` submitted; None where it has none."""
        return self._schedule[index] if self._schedule is not None and index < len(self._schedule) else None

    def wake_ns(self, running: int) -> int | None:
        """Return when the next request is due, or when the pass ends before it; None if a request must finish first."""
        if self._schedule is None or self.exhausted or running >= self._workload.in_flight:
            return None
        taken = self._tickets.taken
        instants = (*self._schedule[taken : taken + 1], self._end_ns(taken))
        return min(at_ns for at_ns in instants if at_ns is not None)

    def due(self, running: int, at_ns: int) -> list[tuple[int, T, int | None]]:
        """Return the requests that enter the engine now, as (index, prompt, intended instant or None).

        Args:
            running: Number of requests that the engine is serving.
        """
        free = self._workload.in_flight - running
        if self.exhausted or free <= 0 or (self._workload.arrival is Arrival.BATCH and running):
            return []
        granted = self._tickets.take(lambda taken: self._grant(taken, free, at_ns))
        # Ranks must agree on the end of a pass, so the tickets alone decide it.
        self.exhausted = not granted and (self._schedule is None or self._is_over(self._tickets.taken, at_ns))
        return [(index, self._prompt(index), self.intended_ns(index)) for index in granted]

    def _prompt(self, index: int) -> T:
        return self._first[index] if index < len(self._first) else self._prompts[index % len(self._prompts)]

    def _end_ns(self, taken: int) -> int | None:
        """Return when the pass ends if no further request is taken before; None while nobody knows."""
        is_used_up = self._schedule is not None and taken == len(self._schedule)
        is_bounded = is_used_up or not self._workload.min_duration_s or self._may_end()
        return self._min_end_ns if is_bounded and taken >= self._min_requests else None

    def _is_over(self, taken: int, at_ns: int) -> bool:
        end_ns = self._end_ns(taken)
        return end_ns is not None and at_ns >= end_ns

    def _grant(self, taken: int, free: int, at_ns: int) -> int:
        if self._is_over(taken, at_ns):
            return 0
        most = free if self._workload.min_duration_s else min(free, self._min_requests - taken)
        if self._schedule is not None:
            most = min(most, len(self._schedule) - taken)
        arrived = takewhile(lambda index: (self.intended_ns(index) or 0) <= at_ns, range(taken, taken + most))
        return len(list(arrived))
