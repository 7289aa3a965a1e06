"""Which part of a pass counts: definitions on made-up passes whose truth is known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from make.outcomes import known
from make.records import constant_power, experiment, measured, request, stepped_power, timeline
from seams.analysis import is_long_enough, measured_energy, performance
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig
from wattdock.records import PassRecord, RestartRecord

if TYPE_CHECKING:
    from seams.analysis import Measured, WindowFigure

    from wattdock.metering import GpuTimeline
    from wattdock.records import RequestRecord

GPU = "GPU-a"


def closed_loop(*, slots: int, seconds: float, lifetime_s: float, staggered: bool) -> PassRecord:
    """Slots that take a new request as soon as one ends, 10 tokens each; the pass begins at 10 s."""
    requests: list[RequestRecord] = []
    for slot in range(slots):
        at_s = 10.0
        length_s = lifetime_s * (slot + 1) / slots if staggered else lifetime_s
        while at_s < 10 + seconds:
            end_s = at_s + length_s
            requests.append(request(len(requests), at_s, at_s + 0.1, end_s, 10))
            at_s, length_s = end_s, lifetime_s
    end_s = max((record.finished_ns or 0) / NS_PER_S for record in requests)
    done = measured(0, 10, end_s, tuple(requests))
    at_ns = np.sort([record.finished_ns or 0 for record in requests])
    tokens = TokenSeries(at_ns, 10 * np.arange(1, len(requests) + 1))
    return dataclasses.replace(done, tokens=tokens)


def in_slots(done: PassRecord, gpu: GpuTimeline, in_flight: int, arrival: str = "closed") -> Measured:
    restart = RestartRecord(0, passes=(done,), timeline=timeline(gpu))
    return experiment(restart, workload={"batch_size": in_flight, "arrival": arrival})


def figure(done: PassRecord, name: str, *, in_flight: int) -> WindowFigure:
    gpu = constant_power(GPU, 500, start_s=0, end_s=120)
    summary = in_slots(done, gpu, in_flight).windows
    return next(entry for entry in summary.passes if entry.window == name)


def test_a_steady_state_runs_from_the_first_full_engine_to_the_last_request_that_came() -> None:
    """Eight slots of 4 s each: two requests a second, 20 tokens/s, 500 W: 25 J/token, whatever the ends do."""
    done = closed_loop(slots=8, seconds=60, lifetime_s=4, staggered=True)
    steady = figure(done, "steady_state", in_flight=8)
    assert steady.reason is None
    # The first tokens of the last slot are there at 10.1 s, and the step that goes on then ends at 10.5 s.
    assert steady.start_ns == pytest.approx(10.5 * NS_PER_S)
    assert steady.end_ns is not None
    assert 69 * NS_PER_S < steady.end_ns < 71 * NS_PER_S
    assert steady.measured_per_output_token_j == pytest.approx(25, rel=1e-4)


@pytest.mark.parametrize("spread_s", [0, 0.005])
@pytest.mark.parametrize("step_s", [0.1, 0.44, 0.96])
def test_a_window_holds_the_joules_and_tokens_of_whole_steps(step_s: float, spread_s: float) -> None:
    """Steps of 8 tokens, which a server may hand over one by one; at 500 W a step costs 500 J a second."""
    of_step_s = 10 + step_s * np.arange(1, int(90 / step_s))
    requests: list[RequestRecord] = []
    for slot in range(8):
        # Each step ends one request of 8 tokens.
        for begin in range(slot - 8, len(of_step_s) - 8, 8):
            submitted_s, first_s = (of_step_s[max(at, 0)] if at > 0 else 10.0 for at in (begin, begin + 1))
            requests.append(request(len(requests), submitted_s, max(first_s, submitted_s), of_step_s[begin + 8], 8))
    marks_s = (of_step_s[:, None] + np.linspace(0, spread_s, 8)).ravel()
    tokens = TokenSeries(np.round(marks_s * NS_PER_S).astype(np.int64), np.arange(1, len(marks_s) + 1))
    requests.sort(key=lambda each: each.submitted_ns)
    done = dataclasses.replace(measured(0, 10, float(of_step_s[-1]) + 0.1, tuple(requests)), tokens=tokens)
    restart = RestartRecord(0, passes=(done,), timeline=timeline(constant_power(GPU, 500, start_s=0, end_s=120)))
    workload = {"batch_size": 8, "arrival": "closed"}
    # It is over within a step.
    warmup = {"profile": "lead-in", "lead_in_s": 12.345}
    [_, steady] = experiment(restart, workload=workload, warmup=warmup).windows.passes
    assert steady.reason is None
    assert steady.measured_per_output_token_j == pytest.approx(500 * step_s / 8, rel=1e-4)


def test_pauses_between_requests_do_not_shorten_a_window() -> None:
    """Bursts of eight requests of a second each every 25 s: where no token comes is no step, and the window stays."""
    at_s = np.concatenate([10 + 25 * burst + np.arange(8) for burst in range(5)])
    requests = [request(i, at, at + 0.1, at + 0.9, 10) for i, at in enumerate(at_s.tolist())]
    requests = [dataclasses.replace(each, intended_ns=each.submitted_ns) for each in requests]
    marks_ns = np.round((at_s[:, None] + np.linspace(0.1, 0.9, 10)).ravel() * NS_PER_S).astype(np.int64)
    tokens = TokenSeries(marks_ns, np.arange(1, len(marks_ns) + 1))
    done = dataclasses.replace(measured(0, 10, 120, tuple(requests)), tokens=tokens)
    restart = RestartRecord(0, passes=(done,), timeline=timeline(constant_power(GPU, 500, start_s=0, end_s=130)))
    workload = {"batch_size": 8, "arrival": "poisson", "rate_per_s": 0.4}
    made_up = experiment(restart, workload=workload, warmup={"profile": "lead-in", "lead_in_s": 20})
    [_, steady] = made_up.windows.passes
    assert (steady.start_ns, steady.end_ns) == pytest.approx((30 * NS_PER_S, 117 * NS_PER_S))


def in_turns(*, chunks: int, chunk_s: float, lead_in_s: float) -> tuple[float, float, float]:
    """An engine that computes the prompts of 160 slots at 700 W, some after the others, then their answers at 300 W.

    The answers have 8 tokens, and their steps take a tenth of a chunk. The run ends as soon as it may, which is asked
    each 0.5 s. Return the window's joules per token and prompts per token, and the joules per token of a round.
    """
    warmup = {"profile": "lead-in", "lead_in_s": lead_in_s}
    workload = {"batch_size": 160, "arrival": "closed", "min_duration_s": 40}
    config = ExperimentConfig.model_validate({"backend": "fake", "workload": workload, "warmup": warmup})
    requests: list[RequestRecord] = []
    steps, marks, at_s, has_ended = [(10.0, 100.0)], list[tuple[float, int]](), 10.0, False
    prefill_s, decode_s = chunks * chunk_s, 0.7 * chunk_s
    while not has_ended:
        has_ended = any(
            is_long_enough(config, elapsed_s=beat_s, finished=len(requests), in_flight_s=160 * beat_s)
            for beat_s in np.arange(at_s - 10, at_s - 10 + prefill_s + decode_s, 0.5).tolist()
        )
        firsts_s = at_s + chunk_s * (np.arange(160) * chunks // 160 + 1)
        end_s = at_s + prefill_s + decode_s
        requests += [request(len(requests) + slot, at_s, first, end_s, 8) for slot, first in enumerate(firsts_s)]
        marks += [(first, 1) for first in firsts_s]
        marks += [(at_s + prefill_s + chunk_s * step / 10, 160) for step in range(1, 8)]
        steps += [(prefill_s, 700.0), (decode_s, 300.0)]
        at_s = end_s
    marks_s, gained = np.array(marks).T
    tokens = TokenSeries(np.round(marks_s * NS_PER_S).astype(np.int64), np.cumsum(gained).astype(np.int64))
    done = dataclasses.replace(measured(0, 10, at_s + 0.1, tuple(requests)), tokens=tokens)
    restart = RestartRecord(0, passes=(done,), timeline=timeline(stepped_power(GPU, [*steps, (20, 100.0)])))
    [_, steady] = experiment(restart, workload=workload, warmup=warmup).windows.passes
    assert steady.measured_per_output_token_j
    assert steady.output_tokens
    prompts = sum(steady.holds(each.first_token_ns) for each in requests) / steady.output_tokens
    return steady.measured_per_output_token_j, prompts, (700 * prefill_s + 300 * decode_s) / (8 * 160)


@pytest.mark.parametrize(("chunks", "chunk_s"), [(1, 1.0), (15, 0.075), (10, 0.46), (10, 0.52), (10, 0.6)])
@pytest.mark.parametrize("lead_in_s", [20.05, 20.5, 20.83])
def test_a_window_holds_the_prompts_of_its_answers_where_an_engine_computes_one_after_the_other(
    chunks: int, chunk_s: float, lead_in_s: float
) -> None:
    """Wherever in a round the lead-in ends, and at whatever lifetime: cut anywhere, up to 160 prompts lack answers."""
    measured_j, prompts, true_j = in_turns(chunks=chunks, chunk_s=chunk_s, lead_in_s=lead_in_s)
    assert prompts == pytest.approx(1 / 8, rel=1e-9)
    assert measured_j == pytest.approx(true_j, rel=2e-3)


@pytest.mark.parametrize(
    ("done", "in_flight", "reason"),
    [
        (closed_loop(slots=7, seconds=60, lifetime_s=4, staggered=True), 8, "7 of 8 requests in flight"),
    ],
)
def test_a_pass_without_a_steady_state_has_none_and_the_reason(done: PassRecord, in_flight: int, reason: str) -> None:
    """Not full: no figure is better than one of something else."""
    steady = figure(done, "steady_state", in_flight=in_flight)
    assert steady.measured_per_output_token_j is None
    assert reason in (steady.reason or "")


def test_an_absent_definition_stays_absent() -> None:
    """The whole pass has a figure all the same."""
    short = closed_loop(slots=8, seconds=15, lifetime_s=2, staggered=True)
    gpu = constant_power(GPU, 500, start_s=0, end_s=120)
    summary = in_slots(short, gpu, 8).windows
    assert list(summary.measured_per_output_token_j) == ["drained", "steady_state"]
    assert summary.measured_per_output_token_j["steady_state"] is None
    assert summary.measured_per_output_token_j["drained"]


@pytest.mark.parametrize(
    ("arrival", "seconds", "headline"),
    [("closed", 60, "steady_state"), ("closed", 15, "drained"), ("batch", 60, "drained")],
)
def test_the_headline_is_the_steady_state_where_requests_overlap_and_there_is_one(
    arrival: Literal["closed", "batch"], seconds: float, headline: str
) -> None:
    """Tokens/s and watts are of the same part; totals are of everything until the engine had drained."""
    done = closed_loop(slots=8, seconds=seconds, lifetime_s=4, staggered=True)
    power = [(10.1, 200), (60, 500), (9.9, 200), (40, 100)]
    made_up = in_slots(done, stepped_power(GPU, power), 8, arrival)
    energy = measured_energy(made_up)
    speed = performance(made_up)
    assert energy.windows is not None
    assert speed is not None
    assert energy.windows.headline == headline
    assert energy.measured_per_output_token_j == energy.windows.measured_per_output_token_j[headline]
    [measured] = energy.passes
    assert measured.total_j == pytest.approx(energy.total_j)
    assert energy.measured_per_output_token_j is not None
    assert energy.mean_power_w == pytest.approx(known(speed.output_tokens_per_s) * energy.measured_per_output_token_j)
    if headline == "steady_state":
        assert energy.mean_power_w == pytest.approx(500, rel=1e-3)
        assert measured.total_j != pytest.approx(500 * measured.duration_s, rel=0.02)
