"""What a figure needs: a pass that has just enough of it, and one that has just too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from merge_samples import constant_power, measured, request, timeline

from wattdock.analysis.joules import SpanJoules
from wattdock.analysis.performance import quantiles, token_disagreements, undrained
from wattdock.analysis.statistics import Restarts, difference, holm, mean_interval
from wattdock.analysis.steadiness import warm_up_steadiness
from wattdock.analysis.windows import windows
from wattdock.clock import NS_PER_S
from wattdock.config import WarmUpSpec, WorkloadSpec
from wattdock.metering.timeline import Span
from wattdock.records.restart import PassRecord, RequestRecord, RestartRecord, WarmUpSample
from wattdock.records.series import TokenSeries

GPU = "GPU-a"


def restart(done: PassRecord) -> RestartRecord:
    return RestartRecord(0, passes=(done,), timeline=timeline(constant_power(GPU, 500, start_s=0, end_s=120)))


def window(name: str, done: PassRecord, *, in_flight: int) -> tuple[float, float] | str | None:
    """Return a window's begin and end, s, or why there is none."""
    [found] = [
        figure
        for figure in windows([restart(done)], [GPU], SpanJoules(), WorkloadSpec(batch_size=in_flight)).passes
        if figure.window == name
    ]
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


@pytest.mark.parametrize(("count", "expected"), [(6, (10.6, 12.0)), (5, "5 requests; with 2 in flight it needs 6")])
def test_the_window_of_ml_energy_needs_two_requests_more_than_fill_and_empty_the_engine(
    count: int, expected: tuple[float, float] | str
) -> None:
    """From the second first token until all but three have finished."""
    assert window("ml-energy", in_turn(count), in_flight=2) == (
        expected if isinstance(expected, str) else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("count", "lifetime_s", "expected"),
    [
        # From the second first token to the last submission: 20 s.
        (44, 1.0, (10.6, 31.5)),
        (41, 1.0, "19.4 s of 20.0 s (five lifetimes of 1.00 s)"),
        (13, 5.0, (12.6, 40.0)),
        (12, 5.0, "24.9 s of 25.0 s (five lifetimes of 5.00 s)"),
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


@pytest.mark.parametrize(("together", "expected"), [(2, True), (3, True), (4, False)])
def test_half_of_the_others_may_be_replaced_together_with_each(together: int, *, expected: bool) -> None:
    """On average: with more a window's figure hangs on the part of a round that it holds."""
    requests: list[RequestRecord] = []
    for slot in range(4):
        # The first slots in step with each other, the others apart.
        begin_s = 10 + (0 if slot < together else 0.4 * slot)
        requests += [
            request(len(requests), begin_s + n, begin_s + n + 0.1, begin_s + n + 1, 10)
            for n in range(31)
            if begin_s + n < 40
        ]
    found = window("steady_state", measured(0, 10, 42, tuple(requests)), in_flight=4)
    assert isinstance(found, tuple) == expected
    if not expected:
        assert "in lock-step: 100% of the other requests" in str(found)


@pytest.mark.parametrize(("late_s", "expected"), [(0.05, True), (0.06, False)])
def test_an_engine_is_full_nineteen_twentieths_of_the_time(late_s: float, *, expected: bool) -> None:
    """A finished request is replaced between two steps; how long that may take depends on how long requests take."""
    requests = [
        request(i, 10 + i * (1 + late_s), 10.1 + i * (1 + late_s), 11 + i * (1 + late_s), 10) for i in range(30)
    ]
    found = window("steady_state", measured(0, 10, 50, tuple(requests)), in_flight=1)
    assert isinstance(found, tuple) == expected
    assert expected or "of 1 requests in flight on average" in str(found)


def test_a_warm_up_s_limits_may_be_reached() -> None:
    """A temperature that changed by exactly what is allowed has not drifted; a hundredth more has."""
    limits = WarmUpSpec(profile="steady", min_s=60, window_s=60, temperature_c=1.0)

    def drifting(last_c: float) -> tuple[str, ...]:
        samples = [
            WarmUpSample(
                Span("warm-up", 15 * n * NS_PER_S, 15 * (n + 1) * NS_PER_S), 100, 10.0, {f"{GPU} temperature_c": 50.0}
            )
            for n in range(4)
        ]
        samples[-1] = replace(samples[-1], temperature_c={f"{GPU} temperature_c": last_c})
        return warm_up_steadiness(samples, limits, [GPU]).drifting

    assert drifting(51.0) == ()
    assert drifting(51.01) == ("temperature changed by 1.0 °C (limit 1 °C)",)


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
    assert (alike.differs, alike.relative, list(alike.interval), alike.p_value) == (False, 0, [0, 0], 1)
    assert (apart.differs, apart.p_value) == (True, 0)
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


def test_factors_of_many_restarts_are_student_s_too() -> None:
    """Where no table has the factor: ten values are nine degrees of freedom, eleven are ten."""
    ten, eleven = (mean_interval([float(n % 2) + 10 for n in range(count)]) for count in (10, 11))
    assert (ten.high - ten.low) / 2 == pytest.approx(2.2622 * np.std([0, 1] * 5, ddof=1) / 10**0.5, rel=1e-4)
    assert (eleven.high - eleven.low) / 2 == pytest.approx(
        2.2281 * np.std([*([0, 1] * 5), 0], ddof=1) / 11**0.5, rel=1e-4
    )
