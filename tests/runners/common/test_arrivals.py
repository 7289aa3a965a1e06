"""Which requests of a pass enter an engine, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.arrivals import Admission
from wattdock_runner.clock import NS_PER_S
from wattdock_runner.values import Arrival, Workload

if TYPE_CHECKING:
    from collections.abc import Callable


def admission(
    arrival: Arrival,
    prompts: str,
    *,
    in_flight: int,
    first: str = "",
    may_end: Callable[[], bool] = lambda: True,
    **fields: Any,
) -> Admission[str]:
    """Return an admission of one-letter prompts to a pass that began at 0."""
    workload = Workload(arrival, in_flight=in_flight, max_output_tokens=1, **fields)
    return Admission(workload, prompts, 0, first, may_end=may_end)


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


@pytest.mark.parametrize(("arrival", "running"), [(Arrival.BATCH, 0), (Arrival.CLOSED, 1)])
def test_a_pass_with_a_minimum_duration_goes_on_until_it_may_end(arrival: Arrival, running: int) -> None:
    """However long both minima are met; nothing enters afterwards."""
    allowed: list[bool] = []
    in_flight = 2 + running
    source = admission(
        arrival, "abc", in_flight=in_flight, min_duration_s=10.0, min_requests=3, may_end=lambda: any(allowed)
    )
    due = [letters(source.due(running, at_s * NS_PER_S)) for at_s in (0, 9, 10, 500)]
    assert (due, source.exhausted) == (["ab", "ca", "bc", "ab"], False)
    allowed.append(True)
    assert (source.due(running, 500 * NS_PER_S), source.exhausted) == ([], True)


def test_a_pass_that_may_end_early_still_meets_its_minima() -> None:
    """The client lets it end before it begins."""
    source = admission(Arrival.CLOSED, "abc", in_flight=2, min_duration_s=10.0, min_requests=5)
    assert [len(source.due(0, at_s * NS_PER_S)) for at_s in (0, 9, 10, 11)] == [2, 2, 2, 0]


@pytest.mark.parametrize("arrival", [Arrival.BATCH, Arrival.CLOSED, Arrival.SINGLE])
def test_a_pass_without_a_minimum_duration_waits_for_nobody(arrival: Arrival) -> None:
    """Its requests are counted."""
    source = admission(arrival, "abc", in_flight=1, min_requests=4, may_end=lambda: False)
    assert "".join(letters(source.due(0, 0)) for _ in range(5)) == "abca"
    assert source.exhausted


def test_both_minima_must_be_met() -> None:
    """A long first batch does not excuse the requests."""
    source = admission(Arrival.BATCH, "abc", in_flight=4, min_duration_s=10.0, min_requests=6)
    assert [len(source.due(0, 20 * NS_PER_S)) for _ in range(3)] == [4, 4, 0]


def opened(prompts: str, *at_s: float, in_flight: int = 9, **fields: Any) -> Admission[str]:
    """Return an admission of an open loop whose requests arrive at these instants."""
    instants = tuple(round(at * NS_PER_S) for at in at_s)
    return admission(Arrival.OPEN, prompts, in_flight=in_flight, arrival_ns=instants, **fields)


def test_requests_of_an_open_loop_come_when_the_schedule_says_and_no_sooner() -> None:
    """The intended instant goes with each request, and counts from the start of the pass."""
    arrivals = opened("abc", 1, 2, 3)
    first, second, third = (at_s * NS_PER_S for at_s in (1, 2, 3))
    assert arrivals.wake_ns(0) == first
    assert arrivals.due(0, first - 1) == []
    assert arrivals.due(0, second) == [(0, "a", first), (1, "b", second)]
    assert not arrivals.exhausted
    assert arrivals.due(2, third) == [(2, "c", third)]
    assert (arrivals.due(3, third), arrivals.exhausted, arrivals.wake_ns(3)) == ([], True, None)
    one = Workload(Arrival.OPEN, in_flight=1, max_output_tokens=1, arrival_ns=(5,))
    later = Admission(one, "a", 100, may_end=lambda: True)
    assert later.wake_ns(0) == 105


def test_requests_of_an_open_loop_beyond_those_in_flight_wait_with_their_intended_instant() -> None:
    """A busy engine delays an arrival and does not move it."""
    arrivals = opened("ab", 0.25, 0.5, in_flight=1)
    assert arrivals.due(0, NS_PER_S) == [(0, "a", NS_PER_S // 4)]
    assert (arrivals.due(1, NS_PER_S), arrivals.wake_ns(1)) == ([], None)
    assert arrivals.due(0, 2 * NS_PER_S) == [(1, "b", NS_PER_S // 2)]


def test_an_open_loop_ends_with_its_minimum_duration() -> None:
    """What would arrive after it is not waited for, and what has arrived is not waited on before it."""
    for at_s in ((7, 11), (7,)):
        arrivals = opened("a", *at_s, min_duration_s=8.0, min_requests=1)
        assert arrivals.wake_ns(0) == 7 * NS_PER_S
        assert len(arrivals.due(0, 7 * NS_PER_S)) == 1
        assert (arrivals.due(1, 7 * NS_PER_S), arrivals.exhausted) == ([], False)
        assert arrivals.wake_ns(1) == 8 * NS_PER_S
        assert (arrivals.due(0, 8 * NS_PER_S), arrivals.exhausted) == ([], True)


def test_an_open_loop_sleeps_until_the_next_arrival_while_it_may_not_end() -> None:
    """Its minimum is no instant to wake at; once it may end, it ends before what would arrive later."""
    allowed: list[bool] = []
    arrivals = opened("a", 7, 11, 20, min_duration_s=8.0, may_end=lambda: any(allowed))
    assert len(arrivals.due(0, 7 * NS_PER_S)) == 1
    assert arrivals.wake_ns(1) == 11 * NS_PER_S
    assert (arrivals.due(1, 9 * NS_PER_S), arrivals.exhausted) == ([], False)
    assert len(arrivals.due(1, 11 * NS_PER_S)) == 1
    allowed.append(True)
    assert arrivals.wake_ns(2) == 8 * NS_PER_S
    assert (arrivals.due(2, 12 * NS_PER_S), arrivals.exhausted) == ([], True)


def test_an_open_loop_whose_arrivals_are_used_up_ends_at_its_minimum_duration() -> None:
    """Nobody need let it end."""
    arrivals = opened("a", 2, 7, min_duration_s=8.0, min_requests=1, may_end=lambda: False)
    assert len(arrivals.due(0, 7 * NS_PER_S)) == 2
    assert arrivals.wake_ns(2) == 8 * NS_PER_S
    assert (arrivals.due(2, 8 * NS_PER_S), arrivals.exhausted) == ([], True)


def test_an_open_loop_has_no_more_requests_than_arrivals() -> None:
    """Whatever is asked for: a pass of two arrivals is over after two requests; prompts repeat."""
    arrivals = opened("a", 1, 1, min_requests=5)
    assert letters(arrivals.due(0, NS_PER_S)) == "aa"
    assert (arrivals.due(2, NS_PER_S), arrivals.exhausted) == ([], True)


def test_the_first_requests_come_once_however_often_the_prompts_repeat() -> None:
    """A staggered start is of the pass, not of the list."""
    staggered = admission(Arrival.BATCH, "abc", in_flight=2, min_requests=7, first="AB")
    taken = "".join(letters(staggered.due(0, 0)) for _ in range(4))
    assert taken == "ABcabca"
