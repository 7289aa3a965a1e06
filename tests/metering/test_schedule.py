from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from wattdock.metering.schedule import TickSchedule

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
        passed = sum(tick <= sampled_ns for tick in ticks_ns)
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
