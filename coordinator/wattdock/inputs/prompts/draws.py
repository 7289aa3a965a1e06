"""What is drawn for a pass: token ids, repeated by a conversation's turns, and the instants of an open loop. Pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from wattdock.config import WorkloadSpec
    from wattdock.inputs.prompts.formats import Ids, Item

# What one message to a runner holds.
MAX_ARRIVALS = 500_000


def arrival_instants(
    work: WorkloadSpec, trace_s: Sequence[float], *, min_requests: int, min_duration_s: float, generator: Generator
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
    round_s = mean_gap(trace_s) / speed * len(at_s)
    rounds_before, rest_s = divmod(min_duration_s, round_s)
    within = int(rounds_before) * len(at_s) + int(np.searchsorted(at_s, rest_s, side="right"))
    _require_few(max(min_requests, within))
    rounds = max(-(-min_requests // len(at_s)), int(rounds_before) + 1)
    every: NDArray[Any] = (np.arange(rounds)[:, None] * round_s + at_s).ravel()
    return every


def mean_gap(trace_s: Sequence[float] | NDArray[Any]) -> float:
    """Return the mean time between arrivals of a trace; as if its arrivals took a second where all are at once."""
    return (trace_s[-1] - trace_s[0]) / max(1, len(trace_s) - 1) or 1 / len(trace_s)


def _require_few(arrivals: float) -> None:
    if arrivals > MAX_ARRIVALS:
        raise ConfigError(
            f"a pass would have {arrivals:,.0f} arrivals, and a runner takes {MAX_ARRIVALS:,}",
            "make workload.min_duration_s, min_requests or the rate smaller",
        )


def with_ids(items: Sequence[Item | int], generator: Generator, vocab_size: int | None) -> tuple[Item, ...]:
    """Return the items with ids in place of lengths.

    Raises:
        ConfigError: The size of the vocabulary is needed and unknown.
    """
    lengths = [item for item in items if isinstance(item, int)]
    if lengths and vocab_size is None:
        raise ConfigError(
            "synthetic prompts need the model's vocabulary size", "give a model whose config.json tells it"
        )
    drawn = np.split(generator.integers(0, vocab_size or 1, size=sum(lengths)), np.cumsum(lengths)[:-1])
    rows = (array("I", row.astype(np.uint32).tobytes()) for row in drawn)
    return tuple(next(rows) if isinstance(item, int) else item for item in items)


def conversations(
    said: Sequence[tuple[Ids, Ids]], prefix: Ids, *, turns: int, abreast: int
) -> tuple[tuple[Ids, ...], tuple[int, ...]]:
    """Return each request's prompt, and how many of its tokens a prefix cache holds from an earlier one.

    So many conversations run abreast: all take their first turn, then all their second, and so on to the next ones. A
    turn's prompt is the prompt before it, a stand-in for that one's answer, which no cache holds, and new tokens.

    Args:
        said: Of each request, in order: its new tokens, and a stand-in for its answer.
        prefix: With which every conversation begins.
    """
    prompts, repeated = list["Ids"](), list[int]()
    for i, (new, _) in enumerate(said):
        if i // abreast % turns:
            before = prompts[i - abreast]
            prompts.append(before + said[i - abreast][1] + new)
            repeated.append(len(before))
        else:
            prompts.append(prefix + new)
            repeated.append(len(prefix) if i else 0)
    return tuple(prompts), tuple(repeated)
