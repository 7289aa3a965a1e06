"""When the requests of an open loop arrive: at random, with a burstiness and a ramp, or as in a trace. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from wattdock.config import WorkloadSpec

# What one message to a runner holds.
MAX_ARRIVALS = 500_000


def arrival_instants(
    work: WorkloadSpec,
    trace_s: Sequence[float],
    *,
    min_requests: int,
    min_duration_s: float,
    generator: Generator,
) -> tuple[int, ...]:
    """Return when each request of a pass arrives, ns since its start: as many as the minima need, none beyond them.

    Args:
        trace_s: Instants of a trace, in order.
        min_duration_s: 0 without a minimum.

    Raises:
        ConfigError: The trace has no instants, or arrivals are more than a runner takes.
    """
    if work.loop != "open":
        return ()
    if work.arrival != "trace":
        at_s = _drawn(work, min_requests=min_requests, min_duration_s=min_duration_s, generator=generator)
    elif trace_s:
        at_s = _replayed(np.array(trace_s), work.trace_speed or 1, min_requests, min_duration_s)
    else:
        raise ConfigError(f"arrival: trace needs an arrival time in each line, and {work.prompts.source} lacks some")
    count = max(min_requests, int(np.searchsorted(at_s, min_duration_s, side="right")) if min_duration_s else 0)
    return tuple(np.round(at_s[:count] * NS_PER_S).astype(np.int64).tolist())


def _drawn(work: WorkloadSpec, *, min_requests: int, min_duration_s: float, generator: Generator) -> NDArray[Any]:
    """Arrivals with gaps from a gamma distribution, whose shape is the burstiness: 1 is a Poisson process."""
    shape, rate_per_s = work.burstiness or 1.0, work.rate_per_s or 1.0
    expected = rate_per_s * min_duration_s
    _require_few(max(expected, min_requests))
    units = np.zeros(0)
    while len(units) < min_requests or units[-1] <= expected:
        gaps = generator.gamma(shape, 1 / shape, size=max(min_requests, int(expected) + 1))
        units = np.concatenate([units, np.cumsum(gaps) + (units[-1] if len(units) else 0.0)])
    at_s: NDArray[Any] = units / rate_per_s
    return at_s


def _replayed(trace_s: NDArray[Any], speed: float, min_requests: int, min_duration_s: float) -> NDArray[Any]:
    """A trace's arrivals from its first, again and again until the minima are met, a mean gap between the rounds."""
    at_s = (trace_s - trace_s[0]) / speed
    round_s = at_s[-1] * len(at_s) / max(1, len(at_s) - 1) or 1.0
    rounds_before, rest_s = divmod(min_duration_s, round_s)
    within = int(rounds_before) * len(at_s) + int(np.searchsorted(at_s, rest_s, side="right"))
    _require_few(max(min_requests, within))
    rounds = max(-(-min_requests // len(at_s)), int(rounds_before) + 1)
    every: NDArray[Any] = (np.arange(rounds)[:, None] * round_s + at_s).ravel()
    return every


def _require_few(arrivals: float) -> None:
    if arrivals > MAX_ARRIVALS:
        raise ConfigError(
            f"a pass would have {arrivals:,.0f} arrivals, and a runner takes {MAX_ARRIVALS:,}",
            "make workload.min_duration_s, min_requests or the rate smaller",
        )
