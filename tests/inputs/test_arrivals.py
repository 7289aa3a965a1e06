"""When the requests of an open loop arrive: drawn at a rate, with a burstiness, or replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refused import raises
from seams.inputs import arrival_instants

from wattdock.config import WorkloadSpec
from wattdock.errors import ConfigError

TRACE: dict[str, Any] = {"arrival": "trace", "prompts": "trace.jsonl"}


def arrivals_s(
    seed: int = 0, trace_s: tuple[float, ...] = (), *, requests: int = 1, seconds: float = 0.0, **work: Any
) -> Any:
    """Return the arrivals of a pass in seconds."""
    generator = np.random.default_rng(seed)
    minima: dict[str, Any] = {"min_requests": requests, "min_duration_s": seconds}
    spec = WorkloadSpec.model_validate(work)
    return np.array(arrival_instants(spec, trace_s, **minima, generator=generator)) / 1e9


@pytest.mark.parametrize("work", [{"arrival": "poisson"}, *({"arrival": "gamma", "burstiness": b} for b in (0.25, 4))])
def test_gaps_have_the_rate_s_mean_and_the_burstiness_spread(work: dict[str, Any]) -> None:
    """The shape of a gamma distribution: a gap's variance is its squared mean ÷ the burstiness; Poisson is 1."""
    gaps = np.diff(arrivals_s(3, requests=20_000, rate_per_s=50, **work))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert (gaps.mean() / gaps.std()) ** 2 == pytest.approx(work.get("burstiness", 1), rel=0.1)
    assert gaps.min() >= 0


def test_equal_seeds_give_equal_arrivals() -> None:
    """The first instants are pinned: a seed means the same on every machine."""
    work: dict[str, Any] = {"arrival": "poisson", "rate_per_s": 2, "requests": 3}
    assert (arrivals_s(1, **work) == arrivals_s(1, **work)).all()
    assert (arrivals_s(1, **work) != arrivals_s(2, **work)).all()
    assert arrivals_s(1, **work) == pytest.approx(PINNED, abs=1e-6)


PINNED = [0.536515, 0.690741, 3.37846]


def test_a_pass_has_the_arrivals_that_both_minima_need_and_no_more() -> None:
    """Those within the duration, or as many as the requests need beyond it."""
    work: dict[str, Any] = {"arrival": "poisson", "rate_per_s": 10}
    within = arrivals_s(seconds=20, **work)
    assert len(within) == pytest.approx(200, abs=50)
    longer = arrivals_s(seconds=20, requests=400, **work)
    assert len(longer) == 400
    assert longer[:3] == pytest.approx(within[:3])


def test_a_trace_is_replayed_from_its_first_arrival_at_its_speed() -> None:
    """Instants far from zero, twice as fast; arrivals beyond the duration are left out."""
    trace_s = (1e9, 1e9 + 4, 1e9 + 4, 1e9 + 9)
    assert arrivals_s(0, trace_s, requests=4, **TRACE) == pytest.approx([0, 4, 4, 9])
    assert arrivals_s(0, trace_s, seconds=5, trace_speed=2.0, **TRACE) == pytest.approx([0, 2, 2, 4.5])
    assert arrivals_s(0, trace_s, seconds=4.2, **TRACE) == pytest.approx([0, 4, 4])


def test_a_trace_that_is_too_short_begins_again_a_mean_gap_after_its_end() -> None:
    """As prompts do; one that is all at one instant begins again after a second."""
    assert arrivals_s(0, (5, 6, 8), seconds=9, **TRACE) == pytest.approx([0, 1, 3, 4.5, 5.5, 7.5, 9])
    assert arrivals_s(0, (5, 6), requests=5, **TRACE) == pytest.approx([0, 1, 2, 3, 4])
    assert arrivals_s(0, (5, 5), seconds=1.5, **TRACE) == pytest.approx([0, 0, 1, 1])
    assert arrivals_s(0, (5,), seconds=1.5, **TRACE) == pytest.approx([0, 1])


def test_what_no_runner_takes_and_a_trace_without_instants_are_refused() -> None:
    """In one line that says what to change."""
    with raises(ConfigError, "60,000,000", "500,000"):
        arrivals_s(seconds=60, arrival="poisson", rate_per_s=1e6)
    with raises(ConfigError, "3,000,000"):
        arrivals_s(0, (0, 2), seconds=6000, trace_speed=1000.0, **TRACE)
    long_s = tuple(range(600_001))
    for minima in ({"requests": 600_001}, {"seconds": 600_000.0}):
        # In one round of the trace, too.
        with raises(ConfigError, "600,001"):
            arrivals_s(0, long_s, **minima, **TRACE)
    assert len(arrivals_s(0, long_s[:400_000], requests=450_000, **TRACE)) == 450_000
    with raises(ConfigError, "trace.jsonl"):
        arrivals_s(**TRACE)
    assert len(arrivals_s(arrival="closed")) == 0
