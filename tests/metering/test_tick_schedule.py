from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pytest
from seams.metering import TickSchedule

if TYPE_CHECKING:
    from collections.abc import Callable

COST_NS = 3_200_000


def watch(
    ticks_ns: list[int], cost_ns: Callable[[], int] = lambda: COST_NS
) -> tuple[list[int], list[int], TickSchedule]:
    """Follow a schedule over known changes; return where it read and how wide each change was bracketed."""
    schedule, now_ns, reads_ns, widths_ns, changes = TickSchedule(0), 0, [], [], 0
    previous_ns = 0
    while now_ns < ticks_ns[-1]:
        took_ns = cost_ns()
        sampled_ns = now_ns + took_ns // 2
        reads_ns.append(now_ns)
        schedule.note_cost(took_ns)
        passed = bisect_right(ticks_ns, sampled_ns)
        if passed > changes and previous_ns:
            widths_ns.append(sampled_ns - previous_ns)
            schedule.note_change(previous_ns, sampled_ns)
        changes, previous_ns = passed, sampled_ns
        now_ns += took_ns
        due_ns = schedule.next_read_ns(now_ns)
        assert due_ns > now_ns, "a read with no pause before it is busy polling"
        now_ns = due_ns
    return reads_ns, widths_ns, schedule


def jittered(count: int, jitter_ns: int, seed: int = 1) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(n * 100_000_000 + rng.uniform(-jitter_ns, jitter_ns)) for n in range(1, count)]


def test_a_steady_counter_is_bracketed_by_neighbouring_reads_with_few_of_them() -> None:
    """Once the period is known, almost all reads fall where they tell something."""
    reads_ns, widths_ns, schedule = watch(jittered(300, 1_500_000))
    assert schedule.period_ns is not None
    assert abs(schedule.period_ns - 100_000_000) < 1_000_000
    assert np.quantile(widths_ns[20:], 0.95) < 6_000_000
    assert len(reads_ns) * COST_NS / 30e9 < 0.2


def test_load_jitter_keeps_reads_below_a_quarter_of_the_time() -> None:
    """Intervals of 74 to 126 ms, as on an H200 under load, must not lead to flat-out polling."""
    reads_ns, widths_ns, _ = watch(jittered(300, 13_000_000))
    assert len(reads_ns) * COST_NS / 30e9 < 0.25
    assert np.quantile(widths_ns[20:], 0.95) < 13_000_000


def test_a_dropped_change_is_found_at_the_next_one() -> None:
    """One missing change must not throw the prediction off."""
    ticks_ns = [tick for n, tick in enumerate(jittered(200, 1_500_000)) if n % 17]
    _, widths_ns, schedule = watch(ticks_ns)
    assert schedule.period_ns is not None
    assert abs(schedule.period_ns - 100_000_000) < 1_000_000
    assert np.quantile(widths_ns[20:], 0.9) < 16_000_000


def test_a_process_that_was_stopped_while_it_learned_goes_on_reading() -> None:
    """Half the intervals are long then, and the middle between short and long ones is like none of them."""
    schedule = TickSchedule(0)
    for tick_s in (0.1, 0.2, 0.3, 2.3, 4.3):
        schedule.note_change(round(tick_s * 1e9) - 1_000_000, round(tick_s * 1e9))
    assert schedule.period_ns is not None
    assert abs(schedule.period_ns - 100_000_000) < 1_000_000


def test_a_counter_that_never_changes_is_read_sparsely() -> None:
    """Nothing to learn is no reason to poll."""
    schedule = TickSchedule(0)
    now_ns = 5_000_000_000
    assert schedule.next_read_ns(now_ns) - now_ns >= 20_000_000


def test_a_period_shorter_than_a_few_reads_does_not_lead_to_flat_out_polling() -> None:
    """A counter may step faster than it can be followed."""
    reads_ns, _, _ = watch([n * 8_000_000 for n in range(1, 2000)])
    learned = [at_ns for at_ns in reads_ns if at_ns > 1_000_000_000]
    assert len(learned) * COST_NS / (learned[-1] - learned[0]) < 0.3


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("cost_ms", [3.2, 8.0, 9.3, 12.0, 14.0, 16.0, 17.7, 17.99, 18.01, 25.0, 60.0])
def test_however_slow_reads_become_the_counter_is_read_again_soon(cost_ms: float, *, varies: bool) -> None:
    """Four coordinators that read the same GPUs made reads take three times as long, and often ten times.

    Pauses of up to 22 s came of it.
    """
    rng = np.random.default_rng(3)
    factor = rng.lognormal(0, 0.7, 100_000) if varies else np.ones(100_000)
    costs_ns = (cost_ms * 1e6 * factor).astype(int)
    drawn = iter(costs_ns.tolist())
    reads_ns, _, _ = watch(jittered(600, 4_000_000), lambda: next(drawn))
    took_ns = costs_ns[: len(reads_ns)]
    learned = np.array(reads_ns) > 2_000_000_000
    pauses_ns = np.diff(reads_ns)[learned[1:]] - took_ns[:-1][learned[1:]]
    assert pauses_ns.max() <= max(100_000_000, 8 * cost_ms * 1e6)
    assert took_ns[learned].sum() / (reads_ns[-1] - 2_000_000_000) < 0.35


MS = 1_000_000


def learned(*, changes: int = 10, cost_ms: float = 3.2, width_ms: float = 2.0) -> TickSchedule:
    """Return a schedule that has seen changes of every 100 ms, with one read for each, each bracketed alike."""
    schedule = TickSchedule(0)
    for number in range(1, changes + 1):
        see(schedule, 100 * number - width_ms / 2, 100 * number + width_ms / 2, cost_ms)
    return schedule


def see(schedule: TickSchedule, before_ms: float, after_ms: float, cost_ms: float = 3.2) -> None:
    schedule.note_cost(round(cost_ms * MS))
    schedule.note_change(round(before_ms * MS), round(after_ms * MS))


def next_ms(schedule: TickSchedule, now_ms: float) -> float:
    return schedule.next_read_ns(round(now_ms * MS)) / MS


@pytest.mark.parametrize(
    ("now_ms", "read_ms"),
    [
        # From 0.28 periods before the change on every 12 ms, from 8 ms before it to 8 ms after it as often as can be.
        *((1000, 1072), (1071, 1072), (1072, 1084), (1085, 1092), (1092, 1093), (1108, 1109), (1109, 1121)),
        # It did not come: until the next one is due.
        *((1130, 1142), (1150, 1162), (1165, 1172), (1172, 1184), (1192, 1193)),
    ],
)
def test_reads_are_rare_between_changes_and_close_around_them(now_ms: int, read_ms: int) -> None:
    """After a change at 1 s, the tenth of every 100 ms."""
    assert next_ms(learned(), now_ms) == read_ms


def test_a_period_is_learned_from_four_intervals_within_a_second_of_quick_reads() -> None:
    """Every 5 ms, then every 20 ms; where only some changes are looked for, from eight intervals on."""
    for changes, opens_ms in ((4, 405), (5, 572)):
        assert next_ms(learned(changes=changes), 100 * changes) == opens_ms
    assert [next_ms(TickSchedule(0), now_ms) - now_ms for now_ms in (999, 1000)] == [5, 20]
    for changes, skips in ((8, False), (9, True)):
        schedule = learned(changes=changes)
        schedule.every_ns = 1000 * MS
        assert schedule.skips == skips


def test_a_change_that_was_not_bracketed_is_taken_to_have_come_when_it_was_expected() -> None:
    """As near to that as the bracket allows; half way would move all predictions after it."""
    for after_ms, next_change_ms in ((1140, 1200), (1095, 1194.55)):
        schedule = learned()
        see(schedule, 1040, after_ms)
        assert next_ms(schedule, after_ms) == pytest.approx(next_change_ms - 28, abs=0.2)


@pytest.mark.parametrize(
    ("cost_ms", "pause_ms"), [(3.2, 1000), (9.0, 1000), (12.0, 1200), (20.0, 2000), (29.0, 2900), (40.0, 3000)]
)
def test_changes_are_looked_for_once_a_second_or_so_that_reads_take_a_hundredth_of_the_time(
    cost_ms: float, pause_ms: float
) -> None:
    """And at least every 3 s; the next one where it is asked for."""
    schedule = learned()
    schedule.every_ns = 1000 * MS
    schedule.want_next()
    see(schedule, 1099, 1101, cost_ms)
    assert next_ms(schedule, 1101) == 1100 + pause_ms - 8
    schedule.want_next()
    assert [next_ms(schedule, now_ms) for now_ms in (1101, 1192)] == [1192, 1193]
    see(schedule, 1199, 1201, 0.0)
    assert next_ms(schedule, 1201) == 2200 - 8
