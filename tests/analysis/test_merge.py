"""From made-up passes and timelines to the figures of a result."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.outcomes import known
from make.records import constant_power, experiment, measured, request, speed_of, timeline
from seams.analysis import SPEED, Restarts, by_restart, measured_energy, multi_gpu, since_arrival_s, tpot_s
from seams.metering import HBM_POWER, Series

from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seams.analysis import EnergyResult

    from wattdock.records import RequestRecord

PASS = measured(0, 10, 30, (request(0, 10, 10.5, 20.5, 101), request(1, 10, 11.0, 29.0, 99)))
BUSY, IDLE = constant_power("GPU-busy", 600, start_s=0, end_s=40), constant_power("GPU-idle", 80, start_s=0, end_s=40)
RESTART = RestartRecord(
    0, spans=(Span("load", 2 * NS_PER_S, 4 * NS_PER_S),), passes=(PASS,), timeline=timeline(BUSY, IDLE)
)
BOTH = ("GPU-busy", "GPU-idle")


def energy_of(restart: RestartRecord = RESTART, *, used: Sequence[str] = ("GPU-busy",)) -> EnergyResult:
    """Return the energy of one restart on these GPUs; the others are bystanders."""
    return measured_energy(experiment(restart, used=used, bystanders=[uuid for uuid in BOTH if uuid not in used]))


def test_joules_per_output_token_count_the_gpus_used_and_keep_bystanders_apart() -> None:
    """20 s at 600 W for 200 tokens are 60 J/token; the idle neighbour's 1,600 J are told, not added."""
    energy = energy_of()
    assert energy.total_j == pytest.approx(12_000, rel=1e-3)
    assert energy.measured_per_output_token_j == pytest.approx(60, rel=1e-3)
    assert energy.bystander_j["GPU-idle"] == pytest.approx(1_600, rel=1e-3)
    assert energy.source == "counter"


def test_joules_per_request_without_a_window_are_those_of_whole_passes() -> None:
    """12,000 J over 2 requests; with a window see `test_window_of_requests`."""
    assert energy_of().energy_per_request_j == pytest.approx(6_000, rel=1e-3)


def test_two_gpus_used_are_summed_and_their_imbalance_is_told() -> None:
    """680 W over both; the larger share is 600 ÷ 340 of the mean."""
    energy = energy_of(used=BOTH)
    shared = multi_gpu(energy)
    assert shared is not None
    assert shared.gpu_count == 2
    assert shared.load_imbalance == pytest.approx(600 / 340, rel=1e-3)
    assert energy.measured_per_output_token_j == pytest.approx(68, rel=1e-3)
    assert "NVSwitch" in energy.boundary_statement


def test_the_memory_of_all_gpus_used_is_summed_and_unknown_where_one_is_unknown() -> None:
    """40 W and 20 W for 20 s, off alike; nothing is added to the boards' joules."""
    at_ns = (np.arange(0, 40, 0.1) * NS_PER_S).astype(np.int64)
    busy, idle = (
        dataclasses.replace(gpu, series={HBM_POWER: Series(at_ns, np.linspace(hbm_w - 1, hbm_w + 1, 400))})
        for gpu, hbm_w in ((BUSY, 40.0), (IDLE, 20.0))
    )
    whole, partial = (
        energy_of(dataclasses.replace(RESTART, timeline=timeline(*gpus)), used=BOTH)
        for gpus in ((busy, idle), (busy, IDLE))
    )
    assert whole.hbm_j == pytest.approx(1_200, rel=2e-3)
    assert whole.mean_hbm_power_w == pytest.approx(60, rel=2e-3)
    assert whole.hbm_timing_j is not None
    assert (whole.total_j, whole.hbm_reason) == (partial.total_j, None)
    assert (partial.hbm_j, partial.hbm_timing_j, partial.mean_hbm_power_w) == (None, None, None)
    assert partial.hbm_reason == "GPU-idle: the driver does not report the memory's power"


def test_one_gpu_that_cannot_be_read_makes_the_sum_unknown_not_smaller() -> None:
    """A missing part must not look like efficiency."""
    energy = energy_of(used=("GPU-busy", "GPU-gone"))
    assert energy.total_j is None
    assert energy.measured_per_output_token_j is None
    assert "GPU-gone" in (energy.reason or "")
    assert energy.per_gpu_j["GPU-busy"] == pytest.approx(12_000, rel=1e-3)


def on_time(requests: Sequence[RequestRecord]) -> tuple[RequestRecord, ...]:
    """Return requests that enter the engine when they were to arrive."""
    return tuple(dataclasses.replace(record, intended_ns=record.submitted_ns) for record in requests)


def test_latencies_count_from_the_intended_arrival() -> None:
    """A request that had to queue outside the engine waited all the same."""
    late = dataclasses.replace(request(0, 12, 13, 15, 3), intended_ns=10 * NS_PER_S)
    assert since_arrival_s(late, late.first_token_ns) == pytest.approx(3)
    assert tpot_s(late) == pytest.approx(1)


def test_an_engine_that_serves_half_of_what_is_offered_ends_half_a_pass_behind() -> None:
    """10 requests/s are offered for 20 s and 5/s served: at the end the schedule is 10 s ahead."""
    served = [request(i, 10 + i / 5, 10 + i / 5, 30, 1) for i in range(100)]
    offered = [
        dataclasses.replace(record, intended_ns=10 * NS_PER_S + i * NS_PER_S // 10) for i, record in enumerate(served)
    ]
    done = speed_of(dataclasses.replace(measured(0, 10, 30, tuple(offered)), arrivals_due=198))
    assert done.requests_per_s == pytest.approx(5)
    assert done.offered_rate_per_s == pytest.approx(10)
    assert done.schedule_lag_share == pytest.approx(9.9 / 20)
    assert done.backlog_slope == pytest.approx(1)
    assert done.arrivals_min == 100
    # The last one enters after 19.8 s.
    assert done.arrivals_due == 198
    assert done.arrivals_left_out
    closed = speed_of(PASS)
    assert closed.schedule_lag_share is None
    assert (closed.offered_rate_per_s, closed.arrivals_due, closed.arrivals_left_out) == (None, None, None)


@pytest.mark.parametrize(("served_per_s", "lag_share"), [(10, 0.0), (5, 0.375)])
def test_an_engine_that_takes_everything_in_at_once_falls_behind_inside(served_per_s: int, lag_share: float) -> None:
    """10 requests/s enter on time; served at 5/s, the last quarter takes 7.5 s longer than the first, in 20 s."""
    requests = [request(i, 10 + i / 10, 11 + i / served_per_s, 11 + i / served_per_s, 1) for i in range(100)]
    done = speed_of(dataclasses.replace(measured(0, 10, 30, on_time(requests)), arrivals_due=102))
    assert done.schedule_lag_share == pytest.approx(lag_share, abs=1e-6)
    # However slowly, nearly all were served.
    assert done.arrivals_left_out is None


@pytest.mark.parametrize(("finished", "lag_share"), [(30, (40 - 1) / 40), (0, 1.0), (38, 0.0)])
def test_an_engine_whose_last_requests_never_finish_has_not_kept_up(finished: int, lag_share: float) -> None:
    """1 request/s enters on time and takes 1 s; most of the last ten never finish: they last all the pass."""
    requests = [request(i, 10 + i, 11 + i, 11 + i, 1) for i in range(40)]
    requests[finished:] = [dataclasses.replace(record, finished_ns=None) for record in requests[finished:]]
    done = speed_of(measured(0, 10, 50, on_time(requests)))
    assert done.schedule_lag_share == pytest.approx(lag_share)


def test_latencies_that_grow_inside_an_engine_are_a_backlog_s_slope() -> None:
    """Everything enters on time, and each second's requests take 40 ms longer: 3 % of the pass behind, and growing."""
    requests = [request(i, 10 + i / 10, 11 + i / 10, 11 + 1.04 * i / 10, 1) for i in range(190)]
    done = speed_of(measured(0, 10, 31, on_time(requests)))
    assert done.schedule_lag_share == pytest.approx(0.027, abs=1e-3)
    assert done.backlog_slope == pytest.approx(0.04)


def test_one_pass_without_a_schedule_leaves_all_that_is_said_of_arrivals_unknown() -> None:
    """What the runner does not tell of one pass is not that of the others; the checks are there, and do not pass."""
    untold = tuple(request(i, 10 + i, 11 + i, 12 + i, 1) for i in range(9))
    done = speed_of(measured(0, 10, 31, on_time(untold)), measured(1, 10, 31, untold))
    assert (done.schedule_lag_share, done.backlog_slope) == (None, None)


def test_requests_that_were_all_to_arrive_at_once_have_no_slope() -> None:
    """There is no line through one instant."""
    requests = [dataclasses.replace(request(i, 12 + i, 13, 30, 1), intended_ns=10 * NS_PER_S) for i in range(3)]
    done = speed_of(measured(0, 10, 30, tuple(requests)))
    assert done.backlog_slope is None


def test_an_excerpt_of_a_timeline_gives_the_same_joules() -> None:
    """Cutting away what is far from a span must not change the span's energy."""
    whole = energy_of().total_j
    part = timeline(BUSY, IDLE).excerpt([PASS.span])
    cut = energy_of(dataclasses.replace(RESTART, timeline=part))
    assert len(part.gpus["GPU-busy"].ticks.energy_mj) < len(BUSY.ticks.energy_mj)
    assert cut.total_j == pytest.approx(whole, rel=1e-9)


def test_a_restart_is_its_tokens_over_its_seconds_not_a_mean_of_ratios() -> None:
    """A long pass weighs more than a short one: 210 tokens by 25 s, where the passes have 10 and 2 tokens/s."""
    passes = (PASS, measured(1, 30, 35, (request(0, 30, 31, 35, 10),)))
    energy = energy_of(dataclasses.replace(RESTART, passes=passes))
    spread = Restarts.of_groups(by_restart(known(energy.windows).of_headline()), SPEED)
    assert spread.values == [pytest.approx(210 / 25)]
    assert spread.interval is None
