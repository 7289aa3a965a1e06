"""Decide which requests a pass still has to submit; the same rule for every backend.

Knows no engine. The clock is read here only against `min_duration_s`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Generic, TypeVar

from wattdock_runner.clock import NS_PER_S, now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattdock_runner.backend import Workload

T = TypeVar("T")


class PromptSupply(Generic[T]):
    """Hands out prompts in order, from the start again when they are used up, until the pass's minima are met.

    Without `min_requests` each prompt is wanted once. Where a minimum duration is set, every request asked for is
    handed out, so that a static batch is never partial in the middle of a pass.

    Args:
        prompts: Whatever the backend made of the prompts; at least one.
        started_ns: The instant that the pass's span was opened at.
    """

    def __init__(
        self, workload: Workload, prompts: Sequence[T], started_ns: int, clock_ns: Callable[[], int] = now_ns
    ) -> None:
        self._prompts = prompts
        self._min_requests = workload.min_requests or len(prompts)
        self._min_duration_s = workload.min_duration_s or 0.0
        self._started_ns = started_ns
        self._clock_ns = clock_ns
        self.taken = 0

    def minima_met(self) -> bool:
        """Return whether the pass has had all its requests and its time."""
        elapsed_s = (self._clock_ns() - self._started_ns) / NS_PER_S
        return self.taken >= self._min_requests and elapsed_s >= self._min_duration_s

    def met_at_ns(self) -> int | None:
        """Return when the minima are met without a further request; None where one is wanted."""
        if self.taken < self._min_requests:
            return None
        return self._started_ns + round(self._min_duration_s * NS_PER_S)

    def take(self, count: int) -> list[tuple[int, T]]:
        """Return up to `count` further requests as (index, prompt); none once both minima are met."""
        if self.minima_met():
            return []
        granted = count if self._min_duration_s else min(count, self._min_requests - self.taken)
        first, self.taken = self.taken, self.taken + granted
        return [(index, self._prompts[index % len(self._prompts)]) for index in range(first, first + granted)]


def poisson_instants(rate_per_s: float, seed: int, started_ns: int) -> Iterator[int]:
    """Yield the instants (ns) of a Poisson process of `rate_per_s` after `started_ns`; equal for equal seeds."""
    draw = random.Random(seed)
    offset_s = 0.0
    while True:
        offset_s += draw.expovariate(rate_per_s)
        yield started_ns + round(offset_s * NS_PER_S)
