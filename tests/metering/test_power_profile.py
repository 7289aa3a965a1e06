"""Energy between changes of a counter, and its uncertainty, where both follow by hand."""

from __future__ import annotations

import numpy as np
import pytest
from seams.metering import EnergyInterpolation, LagModel, Series, Ticks, tick_instants

from wattdock.metering import GpuTimeline

MS = 1_000_000
NO_LAG = LagModel(mean_s=0.0, std_s=0.0)


def changes(at_ms: list[int], energy_mj: list[int]) -> Ticks:
    """Changes at instants that are known exactly."""
    at_ns = np.array(at_ms, dtype=np.int64) * MS
    return Ticks(at_ns, at_ns, at_ns, at_ns, np.array(energy_mj, dtype=np.int64))


def curve(ticks: Ticks, *, sampled_ms: list[int] | None = None, second_w: float = 100.0) -> EnergyInterpolation:
    """Return the curve of a counter without lag, and of samples that end 4 ms before these instants: of 100 W, the
    second of others."""
    at_ns = np.array(sampled_ms or [], dtype=np.int64) * MS
    sampled_w = np.where(np.arange(len(at_ns)) == 1, second_w, 100.0)
    series = {"power_sample_w": Series(at_ns, sampled_w)} if sampled_ms else {}
    return EnergyInterpolation(GpuTimeline(uuid="", energy_source="counter", ticks=ticks, series=series), NO_LAG)


def test_a_change_is_as_uncertain_as_its_bracket_and_the_reads_at_either_end() -> None:
    """Uniform over 10 ms between the middles of reads, each of which shows an instant anywhere inside itself."""
    ticks = Ticks(*(np.array([ms * MS]) for ms in (0, 2, 9, 13, 5)))
    at_s, std_s, _ = tick_instants(ticks, 0)
    assert at_s == pytest.approx(0.006)
    assert std_s == pytest.approx(np.sqrt(0.010**2 / 12 + (0.002**2 + 0.004**2) / 36))


def test_a_change_comes_no_sooner_than_half_a_period_after_the_one_before() -> None:
    """Of a bracket from 20 to 60 ms after it, the part from 50 ms on."""
    at_ns = np.array([0, 100, 200, 300, 400], dtype=np.int64) * MS
    before_ns, after_ns = at_ns - MS, at_ns + MS
    before_ns[2], after_ns[2] = 120 * MS, 160 * MS
    at_s, _, period_s = tick_instants(Ticks(before_ns, before_ns, after_ns, after_ns, at_ns), 0, 0.1)
    assert at_s[2] == pytest.approx(0.155)
    assert period_s == 0.1


def test_a_coarse_counter_costs_its_step_over_the_root_of_twelve_at_each_end() -> None:
    """Steady power, at the instants of its changes: nothing else is unknown."""
    steps_of_10_j = curve(changes([100 * n for n in range(12)], [10_000 * n for n in range(1, 13)]))
    energy_j, std_j = steps_of_10_j.between(300 * MS, 800 * MS)
    assert energy_j == pytest.approx(50)
    assert std_j == pytest.approx(np.sqrt(2 * 10**2 / 12))


def test_half_way_between_two_changes_the_course_is_uncertain_by_its_neighbours() -> None:
    """From 100 over 350 to 600 W: 0.4 of 100 ms at 250 W, half of which is left half way."""
    power_w = [100] * 6 + [350] + [600] * 6
    energy_mj = 1 + np.cumsum([0, *(100 * watts for watts in power_w)])
    _, std_j = curve(changes([100 * n for n in range(14)], energy_mj.tolist())).between(200 * MS, 650 * MS)
    assert std_j == pytest.approx(0.4 * 0.1 * 250 / 2, rel=1e-3)


@pytest.mark.parametrize(("start_ms", "end_ms", "counts"), [(100, 500, 40 / 104), (-50, 350, 1 - 44 / 104)])
def test_an_error_of_the_samples_counts_by_the_share_of_energy_on_the_other_side(
    start_ms: int, end_ms: int, counts: float
) -> None:
    """Of 104 J between two changes; a sample of 300 W among those of 100 W has two ends, each known to 4.5 ms."""
    at_ms, sampled_ms = [-60, 940], [4 + ms for ms in range(-40, 1_020, 20)]
    _, std_j = curve(changes(at_ms, [1, 104_001]), sampled_ms=sampled_ms, second_w=300.0).between(
        start_ms * MS, end_ms * MS
    )
    assert std_j == pytest.approx(counts * np.sqrt(2) * 0.0045 * 200, rel=1e-3)


def test_a_lost_sample_has_the_mean_of_its_neighbours_and_adds_their_standard_deviation() -> None:
    """Between 300 and 100 W: 200 W for 20 ms, so that 40 ms have 150 W; the window has 40 J of 106."""
    sampled_ms = [4 + ms for ms in range(-40, 1_020, 20) if ms]
    sampled = curve(changes([-60, 940], [1, 106_001]), sampled_ms=sampled_ms, second_w=300.0)
    assert sampled.between(-20 * MS, 20 * MS)[0] == pytest.approx(6)
    _, std_j = sampled.between(100 * MS, 500 * MS)
    ends_j2 = 0.0045**2 * (200**2 + 150**2 + 50**2)
    assert std_j == pytest.approx(40 / 106 * np.sqrt(ends_j2 + 0.02**2 * np.var([300, 150, 100])), rel=1e-3)


@pytest.mark.parametrize(("gap_ms", "known"), [(10_000, True), (10_100, False)])
def test_where_samples_tell_the_course_the_counter_may_be_unseen_for_ten_seconds(gap_ms: int, *, known: bool) -> None:
    """At an end of a span; longer, and nobody knows that it went on."""
    at_ms = [*range(0, 5_000, 1_000), 4_000 + gap_ms, 5_000 + gap_ms]
    sampled = curve(changes(at_ms, [100 * ms + 1 for ms in at_ms]), sampled_ms=list(range(4, 17_000, 20)))
    why_not = sampled.why_not(1_500 * MS, 8_000 * MS)
    assert ("10.1 s" in str(why_not), why_not is None) == (not known, known)


@pytest.mark.parametrize(("start_ms", "end_ms", "known"), [(4, 996, True), (2, 996, False), (4, 998, False)])
def test_where_samples_tell_the_course_a_span_lies_within_the_changes(
    start_ms: int, end_ms: int, *, known: bool
) -> None:
    """Give or take 3 ms; samples begin 50 ms after the first change and end 40 ms before the last one."""
    at_ms = list(range(0, 1_100, 100))
    sampled = curve(changes(at_ms, [100 * ms + 1 for ms in at_ms]), sampled_ms=[4 + ms for ms in range(70, 970, 20)])
    why_not = sampled.why_not(start_ms * MS, end_ms * MS)
    assert (why_not is None, str(why_not).endswith("not inside the recorded counter changes")) == (known, not known)


@pytest.mark.parametrize(("missing", "hole_w", "hole_j"), [(2, 600, 12.0), (3, 600, 36.0), (3, -50, 0.0)])
def test_from_three_missing_samples_on_the_counter_stands_for_them(missing: int, hole_w: int, hole_j: float) -> None:
    """The hole drew 600 W beside 100 W: without them the counter's energy is shared out by the samples around it.

    Where these hold more than the counter's, nothing is left for the hole.
    """
    hole_ms = 20 * missing
    at_ms = list(range(0, 1_100, 100))
    energy_mj = [100 * ms + 1 + ((hole_w - 100) * hole_ms if ms > 500 else 0) for ms in at_ms]
    sampled_ms = [4 + ms for ms in range(0, 1_020, 20) if not 500 < ms <= 500 + hole_ms]
    energy_j, _ = curve(changes(at_ms, energy_mj), sampled_ms=sampled_ms).between(500 * MS, (500 + hole_ms) * MS)
    assert energy_j == pytest.approx(hole_j, abs=0.01)


def test_before_the_first_sample_and_after_the_last_the_counter_stands_for_them() -> None:
    """From 0 to 80 and from 920 to 1,000 ms 600 W, where there are none; 100 W otherwise, 300 W in a sample."""
    at_ms = list(range(0, 1_100, 100))
    energy_mj = [1 + 100 * ms + 40_000 * (ms > 0) + 4_000 * (ms > 100) + 40_000 * (ms > 900) for ms in at_ms]
    sampled = curve(changes(at_ms, energy_mj), sampled_ms=[4 + ms for ms in range(100, 921, 20)], second_w=300.0)
    assert sampled.why_not(5 * MS, 995 * MS) is None
    for start_ms, end_ms, energy_j in ((10, 50, 24), (70, 90, 7), (102, 118, 4.8), (905, 915, 1), (930, 990, 36)):
        assert sampled.between(start_ms * MS, end_ms * MS)[0] == pytest.approx(energy_j, abs=0.01)


@pytest.mark.parametrize("apart_ms", [100, 1_000])
@pytest.mark.parametrize("gain", [1.0, 1.03])
@pytest.mark.parametrize(
    ("first_ms", "last_ms", "begin_ms", "end_ms"),
    [(5, 3_945, 3_945, 4_000), (15, 3_995, 3_995, 4_000), (25, 4_005, 0, 5), (75, 4_015, 0, 55)],
)
def test_a_moment_without_samples_at_either_end_drew_what_the_counter_says(
    apart_ms: int, gain: float, first_ms: int, last_ms: int, begin_ms: int, end_ms: int
) -> None:
    """700 W, where the first sample begins after the first change or the last one ends before the last change.

    Samples say 100 W of all the rest, at a gain of their own. How power ran in that moment is unknown.
    """
    at_ms, rest_w = list(range(0, 4_100, apart_ms)), 100 / gain
    energy_mj = [1 + round(rest_w * ms + (700 - rest_w) * (np.clip(ms, begin_ms, end_ms) - begin_ms)) for ms in at_ms]
    sampled = curve(changes(at_ms, energy_mj), sampled_ms=[4 + ms for ms in range(first_ms, last_ms + 1, 20)])
    middle_ms = (begin_ms + end_ms) // 2
    for from_ms, until_ms, power_w in ((begin_ms, middle_ms, 700), (60, 2_000, rest_w), (2_000, 3_940, rest_w)):
        energy_j, _ = sampled.between(from_ms * MS, until_ms * MS)
        assert energy_j == pytest.approx(power_w * (until_ms - from_ms) / 1e3, abs=0.02)
    _, std_j = sampled.between(*sorted((2_000 * MS, middle_ms * MS)))
    assert std_j >= 0.4 * (end_ms - begin_ms) / 1e3 * 600 / 2 / np.sqrt(2)


def test_two_changes_are_enough_where_samples_tell_the_course_between_them() -> None:
    """100 J in a second, which samples spread evenly."""
    sampled = curve(changes([0, 1_000], [1, 100_001]), sampled_ms=list(range(4, 1_100, 20)))
    assert sampled.why_not(100 * MS, 900 * MS) is None
    assert sampled.between(100 * MS, 900 * MS)[0] == pytest.approx(80)
    assert curve(changes([0], [1]), sampled_ms=list(range(4, 1_100, 20))).why_not(100 * MS, 900 * MS) is not None
