"""Another node's clock: whether intervals hold the truth as often as they say, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.links import Link
from make.records import stepped_power
from refused import raises
from seams.metering import Exchange, NodeClock, ProcessSample, on_this_clock, pid_here

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ClockError
from wattdock.host import GpuProcess
from wattdock.metering import EnergyCurve, MeterEvent, Span, Timeline

PASSES = 500
NORMAL95 = 1.96


def off_s(clock: NodeClock, link: Link, at_s: float) -> float:
    """Return by how much an instant of the node is off once it is converted."""
    return (int(clock.here(np.array([link.node_ns(at_s)]))[0]) - round(at_s * NS_PER_S)) / NS_PER_S


@pytest.fixture(scope="module")
def passes() -> list[tuple[Link, float, NodeClock]]:
    """Passes of 10 to 60 s over as many links: error of an instant of each, and the clock that was found."""
    random, drawn = np.random.default_rng(20261129), []
    for _ in range(PASSES):
        link, length_s = Link.drawn(random), random.uniform(10, 60)
        clock = NodeClock.of(link.exchanges(random, length_s))
        drawn.append((link, off_s(clock, link, random.uniform(1, length_s - 1)), clock))
    return drawn


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say(passes: list[tuple[Link, float, NodeClock]]) -> None:
    """93 to 97 % of all passes, and at least 88 % of each kind of link; no instant beyond the bound."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for link, error_s, clock in passes:
        held = abs(error_s) <= NORMAL95 * clock.std_s
        kinds["all"].append(held)
        kinds[f"offset {link.offset_s:g} s"].append(held)
        kinds["heavy tail" if link.heavy else "exponential"].append(held)
        kinds["short" if link.there_s + link.back_s < 0.002 else "long"].append(held)
        kinds["queues" if link.queue_s > (link.there_s + link.back_s) / 4 else "empty"].append(held)
        # One nanosecond for rounding.
        assert abs(error_s) <= clock.bound_s + 1e-9
    coverage = {kind: float(np.mean(held)) for kind, held in kinds.items()}
    assert 0.93 <= coverage.pop("all") <= 0.97
    assert min(coverage.values()) >= 0.88, coverage


@pytest.mark.slow
def test_no_interval_is_absurd(passes: list[tuple[Link, float, NodeClock]]) -> None:
    """The bound is half of the shortest round trip, a third more at most where queues are long; drift is found."""
    for link, error_s, clock in passes:
        half_trip_s = (link.there_s + link.back_s) / 2
        assert half_trip_s <= clock.bound_s < 1.35 * half_trip_s
        assert abs(error_s) < 1.35 * NORMAL95 * clock.std_s
        assert abs(clock.drift + link.drift) < 1e-3 * (half_trip_s / 0.02 + 0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(-(10**15), 10**15), st.floats(-4e-4, 4e-4), st.floats(1e-5, 0.05), st.floats(0, 1))
def test_any_steady_clock_lies_within_its_bound(offset_ns: int, drift: float, trip_s: float, share: float) -> None:
    """Months away, fast, slow, near, far, one-sided."""
    link = Link(offset_ns / NS_PER_S, drift, trip_s * share, trip_s * (1 - share), trip_s / 10)
    clock = NodeClock.of(link.exchanges(np.random.default_rng(1), 10))
    # Instants in seconds from months ago are floats of about 1e-7 s.
    assert abs(off_s(clock, link, 5.0)) <= clock.bound_s + 5e-7


def test_a_rate_that_changes_is_followed() -> None:
    """A time service slews a clock by 200 ppm for a part of the pass: no straight line, but two or four of them."""
    random = np.random.default_rng(3)
    link = Link(there_s=1e-4, back_s=1e-4)
    first = link.exchanges(random, 20)
    slewed = [
        exchange._replace(received_ns=exchange.received_ns + by_ns, replied_ns=exchange.replied_ns + by_ns)
        for exchange in link.exchanges(random, 40)[len(first) :]
        if (by_ns := round(200e-6 * (exchange.sent_ns - 20 * NS_PER_S)))
    ]
    clock = NodeClock.of(first + slewed)
    assert len(clock.at_ns) > 2
    for at_s in (5.0, 30.0):
        by_ns = round(200e-6 * max(0.0, at_s - 20) * NS_PER_S)
        here_ns = int(clock.here(np.array([link.node_ns(at_s) + by_ns]))[0])
        assert abs(here_ns - at_s * NS_PER_S) < 2e5


def test_a_clock_that_was_set_is_refused() -> None:
    """CLOCK_MONOTONIC is never set; another boot, or a frozen machine, looks like this."""
    exchanges = Link().exchanges(np.random.default_rng(4), 10)
    jumped = [
        Exchange(each.sent_ns, each.received_ns + 10**8 * (number > 97), each.replied_ns + 10**8, each.returned_ns)
        for number, each in enumerate(exchanges)
    ]
    with raises(ClockError, "no steady clock gives the instants of", cause=Cause.OTHER_CLOCK):
        NodeClock.of(jumped)


def test_few_exchanges_are_no_clock() -> None:
    """Seven leave too much open."""
    with raises(ClockError, "7 exchanges of instants do not tell a clock; 8 are needed", cause=Cause.OTHER_CLOCK):
        NodeClock.of(Link().exchanges(np.random.default_rng(5), 7 / 10))


@pytest.mark.parametrize(("there_s", "back_s"), [(0.02, 0.02), (0.0001, 0.03)], ids=["slow", "asymmetric"])
def test_a_link_too_slow_or_asymmetric_for_the_limit_is_refused_with_the_figure(there_s: float, back_s: float) -> None:
    """The same link is good enough for a looser limit."""
    clock = NodeClock.of(Link(there_s=there_s, back_s=back_s).exchanges(np.random.default_rng(6), 10))
    with raises(ClockError, "a step of 700 W would be off by", cause=Cause.OTHER_CLOCK) as refused:
        clock.require(limit_j=5, step_w=700, node="n2")
    figure_j = float(str(refused.value).partition("off by ")[2].split()[0])
    assert figure_j == pytest.approx(0.95 * (there_s + back_s) / 2 * 700, rel=0.05)
    clock.require(limit_j=figure_j + 0.1, step_w=700, node="n2")


def test_a_nodes_clock_widens_the_joules_of_a_span_by_the_steps_at_its_ends() -> None:
    """A GPU goes from 100 to 700 W as a span begins; the round trip of 40 ms goes one way, which nobody can see."""
    random = np.random.default_rng(7)
    exchanges = [
        each._replace(received_ns=each.sent_ns, replied_ns=each.sent_ns)
        for each in Link(there_s=0.0, back_s=0.04).exchanges(random, 30)
    ]
    clock = NodeClock.of(exchanges)
    gpu = stepped_power("GPU-b", [(15.0, 100.0), (15.0, 700.0)])
    converted = on_this_clock(Timeline("nvml", 0, 1, {"GPU-b": gpu}), clock, "n2", 1)["GPU-b"]
    assert (converted.node, converted.clock_std_s) == ("n2", clock.std_s)
    start_ns, end_ns = (round(at_s * NS_PER_S) for at_s in (15.0, 20.0))
    true, found = (EnergyCurve(of).between(start_ns, end_ns) for of in (gpu, converted))
    assert None not in (true.energy_j, found.energy_j, true.timing_j, found.timing_j)
    error_j = abs((found.energy_j or 0) - (true.energy_j or 0))
    assert error_j == pytest.approx(600 * 0.02, rel=0.2)
    assert error_j < NORMAL95 * (found.timing_j or 0)
    clock_j = np.sqrt((found.timing_j or 0) ** 2 - (true.timing_j or 0) ** 2)
    assert 600 * clock.std_s / np.sqrt(2) < clock_j < 600 * clock.std_s * 1.1
    # Many spans at once cost the same.
    spans = [Span("", start_ns, end_ns), Span("", start_ns + NS_PER_S, end_ns)]
    together = EnergyCurve(converted).measured(spans)
    assert (together[0].energy_j, together[0].timing_j) == pytest.approx((found.energy_j, found.timing_j))


def test_everything_of_a_timeline_comes_over() -> None:
    """Instants of changes, series, processes and events; process numbers stay apart from this host's."""
    link = Link(offset_s=3 * 86_400.0)
    clock = NodeClock.of(link.exchanges(np.random.default_rng(8), 10))
    gpu = stepped_power("GPU-b", [(10.0, 100.0)])
    moved = round((5e5 + link.offset_s) * NS_PER_S)
    there = replace(
        gpu,
        ticks=replace(gpu.ticks, **{name: at + moved for name, at in vars(gpu.ticks).items() if name != "energy_mj"}),
        processes=(ProcessSample(moved + NS_PER_S, (GpuProcess(7, "compute", 1),)),),
        events=(MeterEvent(moved + NS_PER_S, "gap", moved + 2 * NS_PER_S),),
    )
    here = on_this_clock(Timeline("nvml", 0, 1, {"GPU-b": there}), clock, "n2", 1)["GPU-b"]
    most_ns = clock.bound_s * NS_PER_S
    assert np.abs(here.ticks.after_end_ns - gpu.ticks.after_end_ns).max() <= most_ns
    assert (here.ticks.energy_mj == gpu.ticks.energy_mj).all()
    assert here.processes[0].processes[0].pid == pid_here(7, 1) > 1 << 22
    assert abs(here.processes[0].at_ns - NS_PER_S) <= most_ns
    assert abs((here.events[0].end_ns or 0) - 2 * NS_PER_S) <= most_ns
