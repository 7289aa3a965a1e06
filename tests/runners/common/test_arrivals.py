"""Which requests of a pass enter an engine, and when."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from wattdock_runner.arrivals import Admission, poisson_instants
from wattdock_runner.backend import Arrival, Workload
from wattdock_runner.clock import NS_PER_S


def admission(arrival: Arrival, prompts: str, *, in_flight: int, **fields: Any) -> Admission[str]:
    """Return an admission of one-letter prompts to a pass that began at 0."""
    return Admission(Workload(arrival, in_flight=in_flight, max_output_tokens=1, **fields), prompts, 0)


def letters(due: list[tuple[int, str, int | None]]) -> str:
    """Return the prompts that are due as one word."""
    return "".join(prompt for _, prompt, _ in due)


def test_a_batch_waits_for_the_last_of_the_one_before() -> None:
    """Nothing is added to a batch that still runs."""
    batches = admission(Arrival.BATCH, "abcde", in_flight=2)
    assert [letters(batches.due(running, 0)) for running in (0, 2, 1, 0, 0)] == ["ab", "", "", "cd", "e"]
    assert not batches.due(0, 0)
    assert batches.exhausted


def test_a_closed_loop_replaces_what_has_finished_at_once() -> None:
    """As many as are missing, never more."""
    closed = admission(Arrival.CLOSED, "abcdef", in_flight=3)
    assert [letters(closed.due(running, 0)) for running in (0, 3, 2, 1)] == ["abc", "", "d", "ef"]
    assert not closed.due(0, 0)
    assert closed.exhausted


@pytest.mark.parametrize(("min_requests", "batches"), [(7, ["abca", "bca"]), (2, ["ab"]), (3, ["abc"])])
def test_min_requests_is_met_exactly(min_requests: int, batches: list[str]) -> None:
    """Prompts repeat in order; fewer requests than prompts is a wish, too."""
    source = admission(Arrival.BATCH, "abc", in_flight=4, min_requests=min_requests)
    assert [letters(due) for due in iter(lambda: source.due(0, 0), [])] == batches


def test_min_duration_hands_out_whole_batches_until_it_is_over() -> None:
    """No batch is partial while the clock decides."""
    source = admission(Arrival.BATCH, "abc", in_flight=4, min_duration_s=10.0, min_requests=3)
    due = [letters(source.due(0, round(at_s * NS_PER_S))) for at_s in (0.0, 9.9, 10.0)]
    assert due == ["abca", "bcab", ""]


def test_both_minima_must_be_met() -> None:
    """A long first batch does not excuse the requests."""
    source = admission(Arrival.BATCH, "abc", in_flight=4, min_duration_s=10.0, min_requests=6)
    assert [len(source.due(0, 20 * NS_PER_S)) for _ in range(3)] == [4, 4, 0]


def test_poisson_requests_come_when_the_schedule_says_and_no_sooner() -> None:
    """The intended instant goes with each request."""
    schedule = list(islice(poisson_instants(2.0, 7, 0), 3))
    arrivals = admission(Arrival.POISSON, "abc", in_flight=9, rate_per_s=2.0, seed=7)
    assert arrivals.wake_ns(0) == schedule[0]
    assert arrivals.due(0, schedule[0] - 1) == []
    assert arrivals.due(0, schedule[1]) == [(0, "a", schedule[0]), (1, "b", schedule[1])]
    assert not arrivals.exhausted
    assert arrivals.due(2, schedule[2]) == [(2, "c", schedule[2])]
    assert (arrivals.due(3, schedule[2]), arrivals.exhausted, arrivals.wake_ns(3)) == ([], True, None)


def test_poisson_requests_beyond_those_in_flight_wait_with_their_intended_instant() -> None:
    """A busy engine delays an arrival and does not move it."""
    first, second = islice(poisson_instants(1000.0, 1, 0), 2)
    arrivals = admission(Arrival.POISSON, "ab", in_flight=1, rate_per_s=1000.0, seed=1)
    assert arrivals.due(0, NS_PER_S) == [(0, "a", first)]
    assert (arrivals.due(1, NS_PER_S), arrivals.wake_ns(1)) == ([], None)
    assert arrivals.due(0, 2 * NS_PER_S) == [(1, "b", second)]


def test_an_open_loop_ends_with_its_minimum_duration() -> None:
    """What would arrive after it is not waited for."""
    fields: dict[str, Any] = {"rate_per_s": 0.1, "min_duration_s": 5.0, "min_requests": 1}
    arrivals = admission(Arrival.POISSON, "a", in_flight=4, **fields)
    [first] = islice(poisson_instants(0.1, 0, 0), 1)
    assert arrivals.wake_ns(0) == first > 5 * NS_PER_S
    assert len(arrivals.due(0, first)) == 1
    assert arrivals.wake_ns(1) == 5 * NS_PER_S
    assert (arrivals.due(0, first + 1), arrivals.exhausted) == ([], True)


def test_poisson_gaps_have_the_rates_mean_and_start_after_the_pass() -> None:
    """10,000 arrivals at 50 per second take about 200 s; their mean gap has a standard error of 1 %."""
    instants = list(islice(poisson_instants(50.0, 3, 1_000), 10_000))
    assert instants == sorted(instants)
    assert instants[0] >= 1_000
    assert instants[-1] / NS_PER_S == pytest.approx(200, rel=0.04)
