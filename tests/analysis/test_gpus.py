"""What is said of a GPU from its readings around a pass at 10 to 20 s: just within each limit, and just beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, timeline
from seams.analysis import gpu_results, listed_processes
from seams.metering import ProcessSample, Series

from wattdock.clock import NS_PER_S
from wattdock.host import GpuProcess
from wattdock.metering import Span
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seams.analysis import GpuResult

    from wattdock.metering import GpuTimeline

GPU = "GPU-a"
PASS = measured(0, 10, 20, (request(0, 10, 11, 20, 100),))
RUNNER, STRANGER = 7, 8
IDLE = Span("idle-empty", 2 * NS_PER_S, 8 * NS_PER_S)


def series(at_s: Sequence[float], values: Sequence[float]) -> Series:
    return Series(np.round(np.array(at_s) * NS_PER_S).astype(np.int64), np.array(values, dtype=float))


def listing(at_s: float, *processes: tuple[int, int | None]) -> ProcessSample:
    """Return a list of processes: pid and bytes."""
    return ProcessSample(
        round(at_s * NS_PER_S), tuple(GpuProcess(pid, "compute", size, "u", "c") for pid, size in processes)
    )


def restart(gpu: GpuTimeline, **changes: Any) -> RestartRecord:
    recorded = RestartRecord(0, passes=(PASS,), timeline=timeline(gpu), runner_pids=frozenset({RUNNER}), spans=(IDLE,))
    return replace(recorded, **changes)


def result(*, used: bool = True, **changes: Any) -> GpuResult:
    """Return what is said of a GPU of 100 W with these readings, used or not."""
    gpu = replace(constant_power(GPU, 100, start_s=0, end_s=40), **changes)
    uuids: Any = {"used": [GPU]} if used else {"used": [], "bystanders": [GPU]}
    return gpu_results(experiment(restart(gpu), **uuids))[GPU]


@pytest.mark.parametrize(
    ("at_s", "values_ns", "share"),
    [
        # 3 s grown in 12 s; readings next to the pass count, not those beyond them.
        ([5, 9, 15, 21, 30], [0, 1e9, 2e9, 4e9, 9e9], 3 / 12),
        # A reading at an end is next to it.
        ([9, 10, 20, 21], [0, 1e9, 2e9, 9e9], 1 / 10),
        # Without readings on the outside the nearest inside are taken, up to 2 s away.
        ([12, 18], [1e9, 2e9], 1 / 6),
        ([12.1, 18], [1e9, 2e9], None),
        ([12, 17.9], [1e9, 2e9], None),
        # What was read more than 2 s before or after is no reading of this pass.
        ([8, 22], [1e9, 2e9], 1 / 14),
        ([7.9, 22], [1e9, 2e9], None),
        ([8, 22.1], [1e9, 2e9], None),
        # It began anew.
        ([9, 21], [2e9, 1e9], None),
        ([15], [1e9], None),
        ([1, 2], [1e9, 2e9], None),
    ],
)
def test_a_throttling_counter_is_read_around_the_pass(
    at_s: list[float], values_ns: list[float], share: float | None
) -> None:
    """Its growth over the time between the readings; a pass that was not covered has none."""
    found = result(series={"violation_power_ns": series(at_s, values_ns)})
    assert found.throttled_share == (None if share is None else {"power": pytest.approx(share)})
    assert found.worst_pass_throttled_share == found.throttled_share


@pytest.mark.parametrize(
    ("at_s", "limits_w"), [([9, 14, 19], (400, 600)), ([9, 14.1, 19], None), ([9, 14, 19, 24.1], (400, 600))]
)
def test_a_state_is_known_where_it_was_sampled_every_five_seconds(
    at_s: list[float], limits_w: tuple[float, float] | None
) -> None:
    """A limit that somebody set in between must not pass unseen."""
    found = result(series={"power_limit_w": series(at_s, [500, 600, 400, 100][: len(at_s)])})
    assert found.power_limits_w == limits_w


@pytest.mark.parametrize(
    ("lists", "unlisted", "foreign_bytes"),
    [
        ((listing(10, (RUNNER, 5)), listing(20, (RUNNER, 7))), 0, 3),
        # As a pass begins, and up to 5 s after its end.
        ((listing(5, (RUNNER, 5)), listing(25, (RUNNER, 7))), 0, 3),
        ((listing(4.9, (RUNNER, 5)), listing(25.1, (RUNNER, 7))), 2, None),
        ((listing(10, (RUNNER, 5)), listing(26, (RUNNER, 7))), 1, 5),
        ((listing(10, (STRANGER, 5)), listing(20, (RUNNER, 7), (STRANGER, 1))), 1, 3),
        # Two processes of the runner, and one whose memory the driver does not tell.
        ((listing(10, (RUNNER, 3), (RUNNER, 4)), listing(20)), 1, 3),
        ((listing(10, (RUNNER, None)), listing(20, (RUNNER, 7))), 0, None),
        ((), 2, None),
    ],
)
def test_memory_beyond_the_runners_is_foreign_and_a_list_without_the_runner_shows_nothing(
    lists: tuple[ProcessSample, ...], unlisted: int, foreign_bytes: float | None
) -> None:
    """10 bytes are in use at most, and the runner had more at the end than at the begin, or the other way round."""
    used = series([9, 12, 16, 21], [8, 10, 9, 8])
    found = result(series={"memory_used_bytes": used}, processes=lists)
    assert (found.unlisted_ends, found.foreign_bytes) == (unlisted, foreign_bytes)
    assert found.process_lists == len(lists)
    assert found.runner_lists == sum(any(process.pid == RUNNER for process in listed.processes) for listed in lists)
    assert result(series={}, processes=lists).foreign_bytes is None


@pytest.mark.parametrize(
    ("lists", "unlisted", "foreign_bytes"),
    [
        # It took memory after the first list, and freed some before the last: what is in use is its own.
        ((listing(12, (RUNNER, 2)), listing(18, (RUNNER, 4))), 0, 0),
        # Another one had 3 bytes at 18 s, also where a change at that instant hides one of them.
        ((listing(12, (RUNNER, 2)), listing(18, (RUNNER, 1))), 0, 3),
        ((listing(12, (RUNNER, 2)), listing(14.5, (RUNNER, 6))), 0, 0),
        # What it has freed, and its list has no more, is in use for up to a second; beyond, it is another's.
        ((listing(15.2, (RUNNER, 4)),), 0, 0),
        ((listing(14.6, (RUNNER, 4)),), 0, 2),
        ((listing(9, (RUNNER, 2)), listing(21, (RUNNER, 2))), 2, None),
        ((listing(12, (RUNNER, None)), listing(18, (RUNNER, 4))), 0, None),
    ],
)
def test_memory_beyond_a_command_s_is_that_in_use_at_each_list(
    lists: tuple[ProcessSample, ...], unlisted: int, foreign_bytes: float | None
) -> None:
    """Its memory comes and goes in its run: 2 bytes at first, 9 at most, 4 at last."""
    gpu = constant_power(GPU, 100, start_s=0, end_s=40)
    used = series([9, 11, 13, 14, 15, 15.5, 16, 19, 21], [0, 2, 2, 6, 9, 9, 4, 4, 0])
    recorded = restart(replace(gpu, series={"memory_used_bytes": used}, processes=lists))
    told = experiment(recorded, used=[GPU], backend="measure", measure={"command": ["true"]})
    found = gpu_results(told)[GPU]
    assert (found.unlisted_ends, found.foreign_bytes) == (unlisted, foreign_bytes)


@pytest.mark.parametrize(("name", "lag_s"), [("power_sample_w", 0.004), ("power_w", 0.08)])
def test_sampled_power_is_compared_with_the_counter_s_away_from_the_pass_s_ends(name: str, lag_s: float) -> None:
    """At 110 W by the samples, late as they are, and 100 W by the counter, they differ by a tenth."""
    at_s = np.arange(0, 30, 0.05)
    inside = (at_s > 11 + lag_s) & (at_s < 19 + lag_s)
    found = result(series={name: series(at_s.tolist(), np.where(inside, 110.0, 900.0).tolist())})
    assert found.power_over_counter == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("until_s", "known"), [(17.1, True), (16.9, False)])
def test_power_that_was_sampled_for_three_quarters_of_the_time_is_compared(until_s: float, *, known: bool) -> None:
    """Of the eight seconds from 11 to 19; less is no mean of a pass."""
    at_s = np.arange(11.0, until_s, 0.05)
    found = result(series={"power_w": series(at_s.tolist(), [100.0] * len(at_s))})
    assert (found.power_over_counter is not None) == known


@pytest.mark.parametrize(("end_s", "known"), [(17.0, True), (16.9, False)])
def test_a_pass_is_compared_from_seven_seconds_on(end_s: float, *, known: bool) -> None:
    """Five of them between the margins."""
    at_s = np.arange(9, 21, 0.05)
    gpu = constant_power(GPU, 100, start_s=0, end_s=40)
    gpu = replace(gpu, series={"power_w": series(at_s.tolist(), [100.0] * len(at_s))})
    short = restart(gpu, passes=(measured(0, 10, end_s, ()),))
    assert (gpu_results(experiment(short, used=[GPU]))[GPU].power_over_counter is not None) == known


def test_a_gpu_that_nobody_used_is_known_by_its_power_above_idle() -> None:
    """100 W without a runner and in the pass; nothing is said of memory or lists."""
    found = result(used=False)
    assert found.above_idle_w == pytest.approx(0, abs=0.1)
    assert (found.unlisted_ends, found.foreign_bytes) == (0, None)
    assert result().above_idle_w is None


def test_what_is_worst_over_restarts_is_told_of_those_with_passes() -> None:
    """A restart that failed before its first pass says nothing."""
    gpu = constant_power(GPU, 100, start_s=0, end_s=40)
    twice = replace(gpu, processes=(listing(10, (RUNNER, 5)), listing(20, (RUNNER, 5))))
    once = replace(gpu, processes=(listing(10, (RUNNER, 5)),))
    unbegun = restart(gpu, passes=())
    found = gpu_results(experiment(restart(twice), restart(once), unbegun, used=[GPU]))[GPU]
    assert (found.process_lists, found.runner_lists, found.unlisted_ends) == (1, 1, 1)
    assert found.counter_changes == len(gpu.ticks.energy_mj)


def test_a_process_is_listed_once_with_all_that_is_known_of_it() -> None:
    """First and last instant, most memory, and the runner's where one list says so."""
    gpu = constant_power(GPU, 100, start_s=0, end_s=40)
    named, unnamed = GpuProcess(RUNNER, "compute", 5, "u", "c"), GpuProcess(RUNNER, "compute", None, None, None)
    grown, other = GpuProcess(RUNNER, "compute", 9, None, None), GpuProcess(RUNNER, "graphics", 1, "v", "d")
    rows = [(3, named), (5, grown), (8, unnamed), (9, other)]
    gpu = replace(gpu, processes=tuple(ProcessSample(at_s * NS_PER_S, (process,)) for at_s, process in rows))
    compute, graphics = listed_processes([restart(gpu)])
    assert (compute.user, compute.command) == ("u", "c")
    assert (compute.of_runner, graphics.kind) == (True, "graphics")
    [stranger, _] = listed_processes([restart(gpu, runner_pids=frozenset({STRANGER}))])
    assert not stranger.of_runner


def test_a_sample_stands_for_half_a_second_at_most() -> None:
    """Samples every 0.6 s cover five sixths of the time, every 0.7 s only five sevenths."""
    for every_s, known in ((0.6, True), (0.7, False)):
        at_s = np.arange(11.1, 19.1, every_s)
        found = result(series={"power_w": series(at_s.tolist(), [100.0] * len(at_s))})
        assert (found.power_over_counter is not None) == known, every_s
