"""What a figure needs: a pass that has just enough of it, and one that has just too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, stepped_power, timeline
from seams.analysis import (
    Instants,
    Restarts,
    difference,
    holm,
    phases,
    quantiles,
    rounds_of,
    token_disagreements,
    undrained,
)
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.records import PassRecord, RestartRecord

GPU = "GPU-a"


def restart(done: PassRecord) -> RestartRecord:
    return RestartRecord(0, passes=(done,), timeline=timeline(constant_power(GPU, 500, start_s=0, end_s=120)))


def window(name: str, done: PassRecord, *, in_flight: int) -> tuple[float, float] | str | None:
    """Return a window's begin and end, s, or why there is none."""
    made_up = experiment(restart(done), used=[GPU], workload={"batch_size": in_flight, "arrival": "closed"})
    [found] = [figure for figure in made_up.windows.passes if figure.window == name]
    if found.start_ns is None or found.end_ns is None:
        return found.reason
    return found.start_ns / NS_PER_S, found.end_ns / NS_PER_S


def in_turn(count: int, *, lifetime_s: float = 1.0, in_flight: int = 2) -> PassRecord:
    """Return a pass from 10 s on whose requests each take the place of one that has ended."""
    apart_s = lifetime_s / in_flight
    requests = [
        request(i, 10 + i * apart_s, 10.1 + i * apart_s, 10 + i * apart_s + lifetime_s, 10) for i in range(count)
    ]
    return measured(0, 10, 10 + (count - 1) * apart_s + lifetime_s, tuple(requests))


def test_requests_are_in_order_of_submission_and_may_finish_with_their_first_token() -> None:
    """Whatever the order of their records and of their first tokens."""
    done = measured(0, 10, 13, (request(0, 10.5, 10.6, 10.6, 1), request(1, 10, 12, 12, 1)))
    at = Instants.of(done)
    assert [column.tolist() for column in at] == [[10e9, 10.5e9], [12e9, 10.6e9], [12e9, 10.6e9]]


@pytest.mark.parametrize(
    ("count", "lifetime_s", "expected"),
    [
        # From the second first token to the last submission: 20 s.
        (44, 1.0, (10.6, 31.5)),
        (41, 1.0, "19.4 s of 20.0 s (5 lifetimes of 1.00 s)"),
        (14, 3.35, (11.775, 31.775)),
        (13, 5.0, (12.6, 40.0)),
        (12, 5.0, "24.9 s of 25.0 s (5 lifetimes of 5.00 s)"),
        (2, 1.0, "2 requests never leave 2 in flight and one waiting"),
    ],
)
def test_a_steady_state_needs_twenty_seconds_and_five_lifetimes(
    count: int, lifetime_s: float, expected: tuple[float, float] | str
) -> None:
    """Less is what the engine does while it fills and empties."""
    assert window("steady_state", in_turn(count, lifetime_s=lifetime_s), in_flight=2) == (
        expected if isinstance(expected, str) else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("apart_s", "reason"),
    [
        (0.9, "no request arrived a mean lifetime after the first"),
        (1.0, "no request arrived a mean lifetime after the first"),
        (1.5, "0.5 s of 20.0 s (5 lifetimes of 1.00 s)"),
    ],
)
def test_an_open_loop_is_steady_from_a_mean_lifetime_after_its_first_arrival_on(apart_s: float, reason: str) -> None:
    """Of two requests of a second each."""
    requests = (request(0, 10, 10.1, 11, 10), request(1, 10 + apart_s, 10.1 + apart_s, 11 + apart_s, 10))
    arriving = tuple(replace(each, intended_ns=each.submitted_ns) for each in requests)
    assert window("steady_state", measured(0, 10, 20, arriving), in_flight=2) == reason


@pytest.mark.parametrize(
    ("last_s", "reason"),
    [
        (11.0, "no request came after 2 had their first token"),
        (11.5, "0.5 s of 20.0 s (5 lifetimes of 1.50 s)"),
    ],
)
def test_an_engine_is_full_from_the_first_token_of_its_last_slot_on(last_s: float, reason: str) -> None:
    """Where the third request comes then, no time is left."""
    slots = (request(0, 10, 10.5, last_s, 10), request(1, 10, 11, 12, 10))
    done = measured(0, 10, 20, (*slots, request(2, last_s, last_s + 0.1, last_s + 1, 10)))
    assert window("steady_state", done, in_flight=2) == reason


@pytest.mark.parametrize(("late_s", "expected"), [(0.05, True), (0.06, False)])
def test_an_engine_is_full_nineteen_twentieths_of_the_time(late_s: float, *, expected: bool) -> None:
    """A finished request is replaced between two steps; how long that may take depends on how long requests take."""
    requests = [
        request(i, 10 + i * (1 + late_s), 10.1 + i * (1 + late_s), 11 + i * (1 + late_s), 10) for i in range(30)
    ]
    found = window("steady_state", measured(0, 10, 50, tuple(requests)), in_flight=1)
    assert isinstance(found, tuple) == expected


@pytest.mark.parametrize(("second_s", "rounds"), [(10.5, 1), (10.6, 0)])
def test_requests_of_a_round_are_there_when_the_first_of_them_gets_a_token(second_s: float, rounds: int) -> None:
    """Their first tokens are prefill's, and nothing is decoded where there are no others."""
    found = rounds_of(measured(0, 10, 13, (request(0, 10, 10.5, 12, 1), request(1, second_s, 11, 12, 1))))
    assert [(part.prefill.end_ns, part.mixed_tokens, part.decode_tokens) for part in found] == [
        (11 * NS_PER_S, 0, 0)
    ] * rounds


@pytest.mark.parametrize(
    ("last", "reason"), [(6, None), (5, "2.0% of decode's tokens came during prefills (limit 2%)")]
)
def test_a_fiftieth_of_the_tokens_decoded_may_come_in_prefills(last: int, reason: str | None) -> None:
    """One in ten rounds of six tokens, of which the first is prefill's; where the last has five it is more."""
    begins_s = [3.0 + 5 * number for number in range(10)]
    requests = tuple(request(index, at_s, at_s + 1, at_s + 5, 6) for index, at_s in enumerate(begins_s))
    ends_s = np.array([at_s + length_s for at_s in begins_s for length_s in (1, 5)])
    gained = [2, 4, *[1, 5] * 8, 1, last - 1]
    tokens = TokenSeries((ends_s * NS_PER_S).astype(np.int64), np.cumsum(gained))
    done = replace(measured(0, 3, 53, requests), tokens=tokens)
    gpu = stepped_power(GPU, [(3, 100), *[(1, 600), (4, 500)] * 10, (3, 100)])
    split = phases(experiment(RestartRecord(0, passes=(done,), timeline=timeline(gpu)), used=[GPU]))
    assert split.decode_tokens_in_prefill == 1 / (44 + last)
    assert split.reason == reason


def test_token_counts_that_agree_are_not_told_and_those_that_do_not_are() -> None:
    """By the summary, the requests, their ids where all have them, and the course of tokens."""
    whole = measured(0, 0, 9, (request(0, 0, 1, 9, 3), request(1, 0, 1, 9, 2)))
    first, second = whole.requests
    with_ids = replace(whole, requests=(replace(first, output_ids=(1, 2, 3)), replace(second, output_ids=(4, 5))))
    partly = replace(whole, requests=(replace(first, output_ids=(1,)), second))
    untold = replace(whole, requests=(replace(first, output_tokens=5), replace(second, output_tokens=None)))
    assert token_disagreements([whole, with_ids, partly, untold]) == []
    wrong = replace(with_ids, index=1, requests=(*with_ids.requests[:1], replace(second, output_ids=(4,))))
    assert token_disagreements([wrong]) == ["pass 2: {'summary': 5, 'requests': 5, 'series': 5, 'ids': 4}"]
    empty = replace(whole, tokens=TokenSeries(np.array([], dtype=np.int64), np.array([], dtype=np.int64)))
    assert token_disagreements([empty]) == ["pass 1: {'summary': 5, 'requests': 5, 'series': 0}"]


def test_a_pass_that_ended_before_its_work_is_named_with_what_was_left() -> None:
    """A request that finished at its very end is inside; one a nanosecond later, before its begin or never is not."""
    inside = request(0, 1, 2, 9, 3)
    assert undrained([measured(0, 1, 9, (inside,))]) == []
    late, early = replace(inside, finished_ns=9 * NS_PER_S + 1), replace(inside, finished_ns=NS_PER_S - 1)
    never = replace(inside, finished_ns=None, finish_reason="abort")
    found = undrained(
        [
            replace(
                measured(1, 1, 9, (inside, late, early, never)),
                tokens=TokenSeries(np.array([9 * NS_PER_S + 1]), np.array([1])),
            )
        ]
    )
    assert found == [
        "pass 2: tokens came after it",
        "pass 2: 3 of its requests did not finish in it",
        "pass 2: 1 of its requests were aborted",
    ]
    nothing = TokenSeries(np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    assert undrained([replace(measured(0, 1, 9, (inside,)), tokens=nothing)]) == []


def test_quantiles_are_of_the_values_that_are_known() -> None:
    """A hundred latencies and one that nobody knows."""
    found = quantiles([*(n / 10 for n in range(101)), None])
    assert found is not None
    assert (found.count, found.max_s) == (101, 10)
    assert found.mean_s == pytest.approx(5)
    assert (found.p50_s, found.p90_s, found.p95_s, found.p99_s) == pytest.approx((5, 9, 9.5, 9.9))
    assert quantiles([None]) is None


@pytest.mark.parametrize(("count", "known"), [(9, 0), (10, 1), (19, 1), (20, 2), (99, 2), (100, 3)])
def test_a_tail_is_told_from_as_many_values_as_it_takes_to_have_one(count: int, known: int) -> None:
    """The 99th percentile of eight requests is the slowest of them."""
    found = quantiles(range(1, count + 1))
    assert found is not None
    told = [found.p90_s, found.p95_s, found.p99_s]
    assert [value is not None for value in told] == [True] * known + [False] * (3 - known)


def test_equal_repeats_do_not_differ_and_leave_no_doubt_of_it() -> None:
    """No spread at all: an interval of no width around the difference."""
    two, three = Restarts.of_values([2.0, 2.0]), Restarts.of_values([3.0, 3.0])
    alike, apart = difference(two, two), difference(two, three)
    assert (alike.relative, list(alike.interval), alike.p_value) == (0, [0, 0], 1)
    assert apart.p_value == 0
    assert apart.relative == pytest.approx(0.5)
    assert (apart.p_not_above(0.4), apart.p_not_above(0.6)) == (0, 1)
    assert (apart.p_not_below(0.4), apart.p_not_below(0.6)) == (1, 0)


def test_one_sided_chances_add_up_to_one_and_meet_in_the_middle() -> None:
    """What is at least as high and what is at most as high."""
    found = difference(Restarts.of_values([1.0, 1.1, 1.2]), Restarts.of_values([1.2, 1.3, 1.5]))
    for relative in (-0.1, 0.0, found.relative, 0.5):
        assert found.p_not_above(relative) + found.p_not_below(relative) == pytest.approx(1)
    assert found.p_not_above(found.relative) == pytest.approx(0.5)
    # Twice the smaller one-sided chance that there is no difference.
    assert found.p_value == pytest.approx(2 * min(found.p_not_above(0), found.p_not_below(0)))


def test_p_values_are_adjusted_for_their_number_in_their_order() -> None:
    """Holm: the smallest times four, the next times three, never less than the one before, and no more than 1."""
    assert holm([0.04, 0.01, 0.5, 0.011]) == pytest.approx([0.08, 0.04, 0.5, 0.04])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
