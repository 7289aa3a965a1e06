"""When an engine that batches continuously gets its next request."""

from __future__ import annotations

from itertools import islice
from typing import Any

from wattdock_runner.admission import Admission
from wattdock_runner.backend import Arrival, Workload
from wattdock_runner.clock import NS_PER_S
from wattdock_runner.supply import PromptSupply, poisson_instants


def admission(arrival: Arrival, prompts: str, *, in_flight: int, clock_s: list[float], **fields: Any) -> Admission[str]:
    """Return an admission of one-letter prompts under a clock that shows `clock_s[0]`."""
    workload = Workload(arrival, in_flight=in_flight, max_output_tokens=1, **fields)
    return Admission(workload, PromptSupply(workload, prompts, 0, lambda: round(clock_s[0] * NS_PER_S)), 0)


def letters(due: list[tuple[int, str, int | None]]) -> str:
    """Return the prompts that are due as one word."""
    return "".join(prompt for _, prompt, _ in due)


def test_a_batch_waits_for_the_last_of_the_one_before() -> None:
    """Nothing is added to a batch that still runs."""
    batches = admission(Arrival.BATCH, "abcde", in_flight=2, clock_s=[0])
    assert [letters(batches.due(running, 0)) for running in (0, 2, 1, 0, 0)] == ["ab", "", "", "cd", "e"]
    assert not batches.due(0, 0)
    assert batches.exhausted


def test_a_closed_loop_replaces_what_has_finished_at_once() -> None:
    """As many as are missing, never more."""
    closed = admission(Arrival.CLOSED, "abcdef", in_flight=3, clock_s=[0])
    assert [letters(closed.due(running, 0)) for running in (0, 3, 2, 1)] == ["abc", "", "d", "ef"]
    assert not closed.due(0, 0)
    assert closed.exhausted


def test_poisson_requests_come_when_the_schedule_says_and_no_sooner() -> None:
    """The intended instant goes with each request."""
    schedule = list(islice(poisson_instants(2.0, 7, 0), 3))
    arrivals = admission(Arrival.POISSON, "abc", in_flight=9, clock_s=[0], rate_per_s=2.0, seed=7)
    assert arrivals.next_ns == schedule[0]
    assert arrivals.due(0, schedule[0] - 1) == []
    assert arrivals.due(0, schedule[1]) == [(0, "a", schedule[0]), (1, "b", schedule[1])]
    assert not arrivals.exhausted
    assert arrivals.due(2, schedule[2]) == [(2, "c", schedule[2])]
    assert (arrivals.due(3, schedule[2]), arrivals.exhausted) == ([], True)


def test_poisson_requests_beyond_those_in_flight_wait_with_their_intended_instant() -> None:
    """A busy engine delays an arrival and does not move it."""
    first, second = islice(poisson_instants(1000.0, 1, 0), 2)
    arrivals = admission(Arrival.POISSON, "ab", in_flight=1, clock_s=[0], rate_per_s=1000.0, seed=1)
    assert arrivals.due(0, NS_PER_S) == [(0, "a", first)]
    assert arrivals.due(1, NS_PER_S) == []
    assert arrivals.due(0, 2 * NS_PER_S) == [(1, "b", second)]


def test_an_open_loop_ends_with_its_minimum_duration() -> None:
    """What would arrive after it is not waited for."""
    clock_s = [0.0]
    arrivals = admission(
        Arrival.POISSON, "a", in_flight=4, clock_s=clock_s, rate_per_s=0.1, min_duration_s=5.0, min_requests=1
    )
    assert arrivals.wake_ns == arrivals.next_ns
    assert arrivals.due(0, NS_PER_S * 60)
    assert arrivals.wake_ns == 5 * NS_PER_S < arrivals.next_ns
    clock_s[0] = 5.0
    assert (arrivals.due(0, NS_PER_S * 90), arrivals.exhausted) == ([], True)
