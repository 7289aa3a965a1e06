from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refused import raises
from seams.metering import SAMPLES, LagModel, Series, Ticks, resolution_mj, tick_instants

from wattdock.metering import EnergyCurve, GpuTimeline, Span

MS = 1_000_000
BASE_NS = 10_000_000_000_000
NO_LAG = LagModel(mean_s=0.0, std_s=0.0)


def timeline(intervals: list[tuple[int, int]], *, base_ns: int = BASE_NS, first_mj: int = 5_000_001) -> GpuTimeline:
    """A counter whose changes are `intervals` apart: (milliseconds, millijoules)."""
    at_ns = base_ns + np.cumsum([0, *(length for length, _ in intervals)]) * MS
    energy_mj = first_mj + np.cumsum([0, *(energy for _, energy in intervals)])
    ticks = Ticks(at_ns - MS, at_ns - MS, at_ns + MS, at_ns + MS, energy_mj)
    return GpuTimeline(uuid="GPU-a", energy_source="counter", ticks=ticks)


def joules(gpu: GpuTimeline, start_ns: int, end_ns: int) -> float:
    got = EnergyCurve(gpu, NO_LAG).between(start_ns, end_ns)
    assert got.energy_j is not None, got.reason
    return got.energy_j


def why_none(gpu: GpuTimeline, start_ns: int, end_ns: int) -> str:
    """Return why a span has no energy: null with a reason, never zero."""
    got = EnergyCurve(gpu).between(start_ns, end_ns)
    assert (got.energy_j, got.timing_j, got.mean_power_w) == (None, None, None)
    assert got.reason is not None
    return got.reason


def timing_j(gpu: GpuTimeline, start_ms: int, end_ms: int, lag: LagModel = NO_LAG) -> float:
    timing = EnergyCurve(gpu, lag).between(BASE_NS + start_ms * MS, BASE_NS + end_ms * MS).timing_j
    assert timing is not None
    return timing


intervals = st.lists(st.tuples(st.integers(60, 140), st.integers(0, 90_000)), min_size=12, max_size=40)
parts = st.floats(0, 1)


def inside(gpu: GpuTimeline, part: float) -> int:
    """An instant among those that have enough changes on either side."""
    first_ns, last_ns = (int(gpu.ticks.after_end_ns[k]) for k in (3, -4))
    return first_ns + int((last_ns - first_ns) * part)


@given(intervals, parts, parts, parts)
def test_adjacent_spans_add_up(drawn: list[tuple[int, int]], a: float, b: float, c: float) -> None:
    """What is prefill's is not decode's, and nothing is lost between them."""
    gpu = timeline(drawn)
    first, middle, last = sorted(inside(gpu, part) for part in (a, b, c))
    assert joules(gpu, first, middle) + joules(gpu, middle, last) == pytest.approx(joules(gpu, first, last), abs=1e-6)


@given(
    st.lists(st.tuples(st.sampled_from([60, 100, 140, 3000]), st.integers(-1000, 90_000)), min_size=12, max_size=40),
    st.lists(st.tuples(parts, parts), min_size=2, max_size=9),
    st.booleans(),
)
def test_many_spans_at_once_have_what_each_has_alone(
    drawn: list[tuple[int, int]], ends: list[tuple[float, float]], sampled: bool
) -> None:
    """Also where the counter was reset or not seen to change, and outside of what was recorded."""
    gpu = timeline(drawn)
    first_ns, last_ns = int(gpu.ticks.after_end_ns[0]), int(gpu.ticks.after_end_ns[-1])
    if sampled:
        at_ns = np.arange(first_ns, last_ns, 20 * MS)
        gpu = replace(
            gpu, series={SAMPLES: Series(at_ns, np.asarray(300 + at_ns // MS % 7 * 40, dtype=np.float64))}, period_s=0.1
        )
    spans = [Span("", *sorted(first_ns + int((last_ns - first_ns) * part) for part in pair)) for pair in ends]
    curve = EnergyCurve(gpu)
    alone = [curve.between(span.start_ns, span.end_ns).unless_still() for span in spans]
    for got, wanted in zip(curve.measured(spans), alone, strict=True):
        assert got == replace(wanted, energy_j=got.energy_j, timing_j=got.timing_j)
        assert got.energy_j == pytest.approx(wanted.energy_j)
        assert got.timing_j == pytest.approx(wanted.timing_j, abs=1e-6)


@given(intervals, parts, parts)
def test_energy_is_never_negative(drawn: list[tuple[int, int]], a: float, b: float) -> None:
    """However power is taken to have run between two changes, it was not below zero."""
    gpu = timeline(drawn)
    first, last = sorted(inside(gpu, part) for part in (a, b))
    assert joules(gpu, first, last) >= -1e-6


@given(st.integers(0, 700), st.lists(st.integers(72, 140), min_size=12, max_size=40), parts, parts)
@example(1, [72] * 5 + [140] * 7, 0.0, 1.0)
def test_constant_power_is_exact(power_w: int, lengths_ms: list[int], a: float, b: float) -> None:
    """Where nothing changes there is nothing to guess, as long as no interval is shorter than half the period."""
    gpu = timeline([(length_ms, length_ms * power_w) for length_ms in lengths_ms])
    first, last = sorted(inside(gpu, part) for part in (a, b))
    assert joules(gpu, first, last) == pytest.approx(power_w * (last - first) / 1e9, abs=1e-6)


@given(st.integers(0, 700), st.lists(st.integers(60, 140), min_size=12, max_size=40), parts, parts)
@example(1, [60] * 5 + [117] + [120] * 6, 0.0, 1.0)
def test_an_interval_below_half_the_period_costs_no_more_than_a_bracket(
    power_w: int, lengths_ms: list[int], a: float, b: float
) -> None:
    """A change that seems to come too soon is moved inside its bracket, here of 2 ms, at either end of a span."""
    gpu = timeline([(length_ms, length_ms * power_w) for length_ms in lengths_ms])
    first, last = sorted(inside(gpu, part) for part in (a, b))
    assert joules(gpu, first, last) == pytest.approx(power_w * (last - first) / 1e9, abs=2 * power_w * 0.002 + 1e-6)


@given(intervals, parts, parts, st.integers(-9_000_000, 9_000_000))
def test_shifting_all_instants_changes_nothing(drawn: list[tuple[int, int]], a: float, b: float, shift_ms: int) -> None:
    """Uptime must not matter."""
    gpu, moved = timeline(drawn), timeline(drawn, base_ns=BASE_NS + shift_ms * MS)
    first, last = sorted(inside(gpu, part) for part in (a, b))
    here = EnergyCurve(gpu).between(first, last)
    there = EnergyCurve(moved).between(first + shift_ms * MS, last + shift_ms * MS)
    assert here.energy_j == pytest.approx(there.energy_j, abs=1e-6)
    assert here.timing_j == pytest.approx(there.timing_j, abs=1e-6)


@given(intervals, parts, parts, st.integers(1, 10**12))
def test_a_reset_never_gives_energy(drawn: list[tuple[int, int]], a: float, b: float, offset_mj: int) -> None:
    """A span that covers a counter that went down has no energy, whatever stands on either side."""
    gpu = timeline(drawn, first_mj=10**13)
    first, last = sorted(inside(gpu, part) for part in (a, b))
    reset = int(np.searchsorted(gpu.ticks.after_end_ns, (first + last) // 2))
    energy_mj = gpu.ticks.energy_mj.copy()
    energy_mj[reset:] -= energy_mj[reset] - energy_mj[0] + offset_mj
    assert "reset" in why_none(replace(gpu, ticks=replace(gpu.ticks, energy_mj=energy_mj)), first, last)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "known"), [(350, 750, True), (350, 850, False), (1250, 1650, False), (1350, 1650, True)]
)
def test_a_reset_costs_the_energy_of_spans_less_than_three_changes_from_it(
    start_ms: int, end_ms: int, *, known: bool
) -> None:
    """Between the changes at 1 and at 1.1 s: what is further away depends on neither."""
    gpu = timeline([(100, 50_000)] * 19)
    energy_mj = gpu.ticks.energy_mj - 10**6 * (np.arange(20) > 10)
    gpu = replace(gpu, ticks=replace(gpu.ticks, energy_mj=energy_mj))
    got = EnergyCurve(gpu).between(BASE_NS + start_ms * MS, BASE_NS + end_ms * MS)
    assert (got.energy_j is not None, "was reset" in str(got.reason)) == (known, not known)


def test_a_step_inside_an_interval_is_put_where_its_neighbours_say() -> None:
    """With plateaus on both sides its place follows from the interval's energy; a straight line would be 10 J off."""
    steps = [(100, 10_000)] * 6 + [(100, 30_000)] + [(100, 50_000)] * 6
    gpu = timeline(steps)
    middle_ns = BASE_NS + 650 * MS
    got = EnergyCurve(gpu, NO_LAG).between(BASE_NS + 400 * MS, middle_ns)
    assert got.energy_j is not None
    assert got.timing_j is not None
    assert abs(got.energy_j - 25.0) < min(1.0, 2 * got.timing_j)


def test_lag_costs_nothing_between_equal_powers_and_something_between_unequal_ones() -> None:
    """A counter that trails by the same time at both ends moves the window, which matters only if power differs."""
    lag = LagModel(mean_s=0.0, std_s=0.010)
    steady, stepping = timeline([(100, 50_000)] * 13), timeline([(100, 10_000)] * 6 + [(100, 50_000)] * 7)
    for gpu, expected_j in ((steady, 0.0), (stepping, 0.010 * 400)):
        with_lag, without = timing_j(gpu, 350, 850, lag), timing_j(gpu, 350, 850)
        assert (with_lag**2 - without**2) ** 0.5 == pytest.approx(expected_j, abs=0.05)


def test_a_span_outside_the_changes_has_no_energy_and_a_reason() -> None:
    """Nothing is extrapolated."""
    gpu = timeline([(100, 50_000)] * 13)
    assert joules(gpu, BASE_NS + 250 * MS, BASE_NS + 1050 * MS) == pytest.approx(400)
    for start_ms, end_ms in ((-50, 500), (150, 1050), (250, 1150), (500, 1290), (2000, 3000)):
        assert "not inside" in why_none(gpu, BASE_NS + start_ms * MS, BASE_NS + end_ms * MS)


def unread(gpu: GpuTimeline, change: int) -> GpuTimeline:
    """The same where nobody read between the change before this one and it."""
    first_ns, last_ns = gpu.ticks.before_start_ns.copy(), gpu.ticks.before_end_ns.copy()
    first_ns[change] = last_ns[change] = gpu.ticks.after_end_ns[change - 1] + MS
    return replace(gpu, ticks=replace(gpu.ticks, before_start_ns=first_ns, before_end_ns=last_ns))


def test_a_pause_between_reads_inside_a_span_costs_no_joule() -> None:
    """A stalled host: the counter went on, and both ends are where it was read; 2,000 J in 4 s at 500 W."""
    long = [(100, 50_000)] * 12 + [(4000, 2_000_000)] + [(100, 50_000)] * 12
    gpu = unread(timeline(long), 13)
    whole = EnergyCurve(gpu, NO_LAG).between(BASE_NS + 500 * MS, BASE_NS + 5900 * MS)
    assert whole.energy_j == pytest.approx(2_700, abs=1)
    assert whole.timing_j == pytest.approx(0, abs=1)
    assert EnergyCurve(gpu).between(BASE_NS + 950 * MS, BASE_NS + 5450 * MS).energy_j == pytest.approx(2_250, abs=1)
    for start_ms, end_ms in ((1050, 5450), (950, 5350), (1100, 5900), (500, 5300), (500, 3000)):
        # An end depends on changes that nobody saw.
        assert "4.0 s" in why_none(gpu, BASE_NS + start_ms * MS, BASE_NS + end_ms * MS)


def test_a_span_that_ends_before_it_begins_is_refused() -> None:
    """A swapped pair of instants must not become a figure."""
    with raises(ValueError):
        EnergyCurve(timeline([(100, 50_000)] * 13)).between(BASE_NS + 2, BASE_NS + 1)


def test_mean_power_is_energy_over_duration() -> None:
    """And a span of no length has none."""
    curve = EnergyCurve(timeline([(100, 50_000)] * 13))
    assert curve.between(BASE_NS + 500 * MS, BASE_NS + 800 * MS).mean_power_w == pytest.approx(500)
    assert curve.between(BASE_NS + 500 * MS, BASE_NS + 500 * MS).mean_power_w is None


def test_resolution_is_read_from_values_not_from_equal_steps() -> None:
    """A steady load makes all differences equal, which says nothing about the counter's step."""
    assert resolution_mj(timeline([(100, 50_000)] * 5, first_mj=1_234_567).ticks) == 1
    assert resolution_mj(timeline([(100, 50_000), (100, 48_000)], first_mj=6_000).ticks) == 2_000


@pytest.mark.parametrize(("gap_ms", "known"), [(1001, True), (1002, False)])
def test_a_counter_may_be_seen_to_stand_still_for_less_than_a_second(gap_ms: int, *, known: bool) -> None:
    """Longer, and joules may be lost and not only late; where changes are far apart anyway, ten times their period."""
    gpu = timeline([(100, 50_000)] * 12 + [(gap_ms, gap_ms * 500)] + [(100, 50_000)] * 12)
    got = EnergyCurve(gpu, NO_LAG).between(BASE_NS + 700 * MS, BASE_NS + 2800 * MS)
    assert (got.energy_j is not None) == known
    slow = timeline([(500, 250_000)] * 12 + [(4 * gap_ms, gap_ms * 2_000)] + [(500, 250_000)] * 12)
    whole = EnergyCurve(slow, NO_LAG).between(BASE_NS + 2000 * MS, BASE_NS + 14_000 * MS)
    assert whole.energy_j is not None


def test_one_sample_of_the_driver_tells_no_course() -> None:
    """The counter alone does then, for the energy as for what a result says of its source."""
    gpu = timeline([(100, 10_000), (100, 30_000)] * 10)
    sampled = replace(gpu, series={SAMPLES: Series(np.array([BASE_NS + 1000 * MS]), np.array([200.0]))})
    assert sampled.power_courses == gpu.power_courses == ("counter_only",)
    span = BASE_NS + 450 * MS, BASE_NS + 1430 * MS
    assert joules(sampled, *span) == joules(gpu, *span)


def test_without_any_source_there_is_none() -> None:
    """Null with a reason, never zero."""
    gpu = replace(timeline([]), energy_source=None)
    assert why_none(gpu, BASE_NS, BASE_NS + MS) == "no energy counter on GPU-a"


def test_uncertainty_grows_where_power_changes_and_shrinks_when_both_ends_share_their_ticks() -> None:
    """The budget knows what a span hangs on."""
    steady, stepping = (
        timeline([(100, 50_000)] * 13),
        timeline([(100, 10_000)] * 6 + [(100, 30_000)] + [(100, 50_000)] * 6),
    )
    long = timing_j(steady, 450, 850)
    assert timing_j(steady, 610, 640) < long / 2
    assert timing_j(stepping, 350, 650) > 1.5 * long


def test_a_bracket_that_hides_other_changes_is_cut_to_the_last_one() -> None:
    """After a long pause between reads the change seen is the latest, so it lies within one period of the read."""
    ticks = timeline([(100, 50_000)] * 9).ticks
    late = replace(ticks, before_start_ns=ticks.before_start_ns.copy(), before_end_ns=ticks.before_end_ns.copy())
    late.before_start_ns[5:6] = late.before_end_ns[5:6] = ticks.after_end_ns[5] - 350 * MS
    at_s, std_s, period_s = tick_instants(late, BASE_NS)
    assert period_s == pytest.approx(0.1)
    assert 0.4 < at_s[5] < 0.501
    assert std_s[5] < period_s / 12**0.5 + 1e-6
