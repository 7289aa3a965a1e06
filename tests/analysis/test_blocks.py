"""Blocks of windows: they share out what the whole window has, and hold the work that requests did in them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.outcomes import known
from make.records import constant_power, experiment, measured, request, timeline
from make.traffic import START_S, ClosedLoop, KnownJoules, closed_loop
from seams.analysis import (
    CONTEXT,
    PROMPTS,
    SECONDS,
    SPEED,
    Budget,
    Instants,
    Joules,
    Measured,
    Restarts,
    Window,
    draw_of_speed,
    measured_budget,
    window_of,
)
from seams.metering import Series
from seams.records import NOTHING_DECLARED, DeclaredWork, Lines, TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig
from wattdock.inputs import load_prompts
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    from wattdock.metering import GpuTimeline, Span, Timeline
    from wattdock.records import PassRecord

GPU, OTHER = "GPU-a", "GPU-b"
LEAD_IN = {"profile": "lead-in", "lead_in_s": 10}


class ExactJoules(KnownJoules):
    """The same by a meter without errors."""

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str], *, hbm: bool = False) -> Joules:
        edges_s = np.array([span.start_ns, span.end_ns]) / NS_PER_S
        return Joules(float(np.diff(np.interp(edges_s, self._loop.at_s, self._loop.energy_j))[0]), {})


def window(made_up: Measured) -> Window:
    """Return the window of the only pass, as the headline has it."""
    [(restart, run_pass)], summary = made_up.passes, made_up.windows
    assert summary.headline == "steady_state", summary.passes
    [figure] = summary.of_headline()
    return window_of(made_up, restart, run_pass, figure)


def of_loop(loop: ClosedLoop, in_flight: int, declared: DeclaredWork = NOTHING_DECLARED) -> Measured:
    """Return what an exact meter sees of a loop behind a lead-in of 10 s."""
    done = replace(loop.record, declared=declared)
    workload = {"arrival": "closed", "batch_size": in_flight}
    made_up = experiment(RestartRecord(0, passes=(done,)), workload=workload, warmup=LEAD_IN)
    return replace(made_up, energy=ExactJoules(loop, np.random.default_rng(0)))


def work_between(done: PassRecord, low_ns: float, high_ns: float) -> tuple[float, float]:
    """Return prompt tokens of the first tokens in a span, and positions before its other tokens, one by one."""
    steps_ns = done.tokens.at_ns
    prompts = context = 0
    for each in done.requests:
        assert each.first_token_ns is not None
        assert each.finished_ns is not None
        assert each.prompt_tokens is not None
        own_ns = steps_ns[(steps_ns >= each.first_token_ns) & (steps_ns <= each.finished_ns)]
        is_inside = (own_ns > low_ns) & (own_ns <= high_ns)
        prompts += each.prompt_tokens * bool(is_inside[0])
        context += int((each.prompt_tokens + np.arange(len(own_ns)))[1:][is_inside[1:]].sum())
    return prompts, context


@pytest.mark.parametrize(("lengths", "in_flight"), [("fixed", 5), ("lognormal", 1), ("lognormal", 16), ("bimodal", 8)])
def test_blocks_share_out_the_window_and_hold_what_requests_did_in_them(lengths: str, in_flight: int) -> None:
    """Joules and tokens add up to the window's; prompts and contexts are counted here request by request."""
    loop = closed_loop(45, np.random.default_rng(in_flight), in_flight=in_flight, lengths=lengths)
    found = window(of_loop(loop, in_flight))
    # The step that goes on at 10 s ends within 0.1 s, and a balanced start comes within a lifetime.
    lifetime_s = Instants.of(loop.record).lifetime_ns / NS_PER_S
    assert 10 <= found.lead_in_s < 10.1 + lifetime_s
    assert found.block_j.sum() == pytest.approx(found.total_j)
    assert found.block_tokens.sum() == found.output_tokens
    # About two seconds each: whole steps, of some ten milliseconds.
    assert found.block_s == pytest.approx(np.full(len(found.block_s), 2), abs=0.2)
    assert found.work[SECONDS].tolist() == found.block_s.tolist()
    edges_ns = (START_S + found.lead_in_s + np.concatenate(([0], np.cumsum(found.block_s)))) * NS_PER_S
    # A step's own instant is inside the block that it ends.
    counted = [
        work_between(loop.record, *edge_ns) for edge_ns in zip(edges_ns[:-1] + 500, edges_ns[1:] + 500, strict=True)
    ]
    prompts, context = np.array(counted).T
    assert found.work[PROMPTS].tolist() == prompts.tolist()
    assert found.work[CONTEXT] == pytest.approx(context, rel=1e-9)


@pytest.mark.parametrize(
    ("prompts_of", "lines", "alike", "widened", "one_length"),
    [
        (lambda restart, index: index, None, 3, 1, False),  # every restart sends the same part
        (lambda restart, index: 1000 * restart + index, None, 1, 1, False),  # drawn anew
        (lambda restart, index: 1000 * restart + index, "older", 3, 1, False),  # a file's lengths: ids are drawn anew
        (lambda restart, index: 1000 * restart + index, (0, 10**6, 10**6), 3, 1, False),
        (
            lambda restart, index: 1000 * restart + index,
            (7, 5, 5),
            1,
            1,
            False,
        ),  # each window holds all lines
        (
            lambda restart, index: index % 5,
            (3, 5, 10),
            3,
            11.2,
            False,
        ),  # half of a file, again and again
        (lambda restart, index: index % 5, (0, 5, 10**6), 3, 22.4, False),  # five lines of many
        (lambda restart, index: None, None, 1, 1, False),  # a runner that does not tell
        (lambda restart, index: index % 5, None, 3, 22.4, False),  # five random ones, again and again
        (lambda restart, index: 5 * restart + index % 5, None, 1, 22.4, False),  # five drawn anew, again and again
        (lambda restart, index: index % 5, None, 1, 1, True),  # random ones that are all the same work
    ],
)
def test_prompts_that_all_restarts_send_are_one_draw_of_their_list(
    prompts_of: Callable[[int, int], int | None],
    lines: tuple[int, int, int] | str | None,
    alike: int,
    widened: float,
    one_length: bool,
) -> None:
    """In each of three restarts the same loop, whose prompts are named anew."""
    loop, restarts = closed_loop(45, np.random.default_rng(4), in_flight=4, lengths="lognormal"), []
    first, listed, total = lines if isinstance(lines, tuple) else (0, 1, 1)
    told = Lines(first=first, listed=listed, total=total) if isinstance(lines, tuple) else None
    for number in range(3):
        length: dict[str, Any] = {"prompt_tokens": 9, "output_tokens": 9} if one_length else {}
        requests = loop.record.requests
        named = (replace(each, prompt_hash=prompts_of(number, each.index), **length) for each in requests)
        # A declared length, but no mix of work to correct.
        declared = DeclaredWork(lines=told, output_tokens=9)
        restarts.append(RestartRecord(number, passes=(replace(loop.record, requests=tuple(named), declared=declared),)))
    prompts = {"source": "lengths.jsonl" if lines else "synthetic"}
    workload = {"arrival": "closed", "batch_size": 4, "prompts": prompts}
    made_up = experiment(*restarts, workload=workload, warmup=LEAD_IN)
    made_up = replace(made_up, energy=ExactJoules(loop, np.random.default_rng(0)))
    found = measured_budget(made_up)
    assert found
    own = found.entry("restarts")
    assert own
    # 112 requests of five prompts each are five draws of their restart: the root of 22.4 as uncertain.
    assert own.standard_uncertainty == pytest.approx(0.0049 * widened**0.5, rel=0.01)
    # Of five lines, 112 requests hold two once more than the others.
    assert found.part(Budget.PROMPTS) == pytest.approx((alike - 1) ** 0.5 * own.standard_uncertainty, abs=0.001)
    assert bool((draw_of_speed(made_up) or 0) > 0.001) == (alike > 1)


def test_tokens_per_second_are_as_uncertain_as_the_list_that_all_restarts_send() -> None:
    """Three equal restarts, which scatter by nothing, of each of 60 lists: most intervals hold the speed of all."""
    figures, draws = [], []
    for seed in range(60):
        loop = closed_loop(60, np.random.default_rng(seed), in_flight=4, lengths="lognormal")
        named = tuple(replace(each, prompt_hash=each.index) for each in loop.record.requests)
        record = replace(loop.record, requests=named)
        workload = {"arrival": "closed", "batch_size": 4, "prompts": {"source": "lengths.jsonl"}}
        made_up = experiment(*(RestartRecord(n, passes=(record,)) for n in range(3)), workload=workload, warmup=LEAD_IN)
        restarts = Restarts.of_groups([[window] for window in made_up.windows.of_headline()], SPEED)
        interval = restarts.interval_beside(draw_of_speed(made_up))
        assert interval
        figures.append((restarts.value, interval))
        draws.append(known(draw_of_speed(made_up)))
    mean = float(np.mean([value for value, _ in figures]))
    # As uncertain as it is: no part of it is in what the restarts scatter by.
    assert np.median(draws) == pytest.approx(np.std([value for value, _ in figures]) / mean, rel=0.1)
    assert sum(interval.low <= mean <= interval.high for _, interval in figures) >= 50
    assert all(interval.high / interval.low < 1.3 for _, interval in figures)


def test_joules_per_token_of_blocks_follow_the_work_in_them() -> None:
    """A regression of the blocks' joules on their work finds what each kind costs."""
    loop = closed_loop(90, np.random.default_rng(3), in_flight=16, lengths="lognormal")
    found = window(of_loop(loop, 16))
    # A full engine's steps are as many as its tokens ÷ 16.
    table = np.column_stack((found.work[PROMPTS], found.block_tokens, found.work[CONTEXT]))
    fitted = np.linalg.lstsq(table, found.block_j, rcond=None)[0]
    # Of a first token the simulated engine reads the whole prompt, which counts as its prompt's here.
    assert fitted == pytest.approx([0.015 + 2e-5, 0.03 + 2.4 / 16, 2e-5], rel=0.01)


LOGNORMAL = {"distribution": "lognormal", "mean": 300, "std": 250, "min": 8, "max": 2000}
UNIFORM = {"distribution": "uniform", "min": 1, "max": 64}


@pytest.mark.parametrize(
    ("prompt", "answer"), [(120, 40), (LOGNORMAL, 40), (120, UNIFORM), (LOGNORMAL, UNIFORM), (UNIFORM, LOGNORMAL)]
)
def test_declared_amounts_are_those_of_long_streams(prompt: Any, answer: Any) -> None:
    """Of 20,000 requests, whose lengths are drawn, within three standard errors of the ratio."""
    settings = {
        "backend": "fake",
        "model": "shape:tiny-llama",
        "workload": {
            "prompts": {"source": "synthetic", "input_tokens": prompt, "count": 20_000},
            "max_output_tokens": answer,
        },
    }
    drawn = load_prompts(ExperimentConfig.model_validate(settings), pass_index=0, vocab_size=100)
    prompts = np.array([len(item) for item in drawn.items if not isinstance(item, str)], dtype=float)
    answers = np.array([limit or answer for limit in drawn.max_output_tokens], dtype=float)
    contexts = prompts * (answers - 1) + answers * (answers - 1) / 2
    mean_prompt, mean_answer = drawn.means
    for amounts, declared in ((prompts, mean_prompt), (contexts, drawn.context_tokens)):
        assert declared is not None
        ratio = declared / mean_answer
        error = (amounts - ratio * answers).std() / mean_answer / len(answers) ** 0.5
        assert abs(amounts.mean() / answers.mean() - ratio) <= 3 * error + 1e-9 * ratio


def test_declared_amounts_of_a_file_are_the_means_over_all_of_it(tmp_path: Path) -> None:
    """Prompts of 4,808 and 110 tokens with answers of 10 and 27, whichever of them a pass sends."""
    lengths = ({"input_tokens": 4808, "output_tokens": 10}, {"input_tokens": 110, "output_tokens": 27})
    (tmp_path / "lengths.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in lengths))
    settings = {"backend": "fake", "workload": {"prompts": {"source": str(tmp_path / "lengths.jsonl"), "count": 1}}}
    found = load_prompts(ExperimentConfig.model_validate(settings), pass_index=0, vocab_size=100)
    assert found.means == ((4808 + 110) / 2, (10 + 27) / 2)
    assert found.context_tokens == (4808 * 9 + 10 * 9 / 2 + 110 * 26 + 27 * 26 / 2) / 2


def test_a_window_knows_the_declared_amounts_per_token_and_what_nobody_declared_it_does_not() -> None:
    """Without the length of answers there is no amount per token; only an open loop sets the seconds."""
    loop = closed_loop(35, np.random.default_rng(1), in_flight=4, lengths="fixed")
    told = window(of_loop(loop, 4, DeclaredWork(512.0, 250.0, 512.0 * 249 + 250 * 249 / 2)))
    assert told.declared == {PROMPTS: 2.048, CONTEXT: pytest.approx(0.996 * 637)}
    assert abs(told.off_by(CONTEXT)) < 0.02
    assert window(of_loop(loop, 4, DeclaredWork(None, 250.0))).declared == {}
    assert window(of_loop(loop, 4, DeclaredWork(512.0))).declared == {}
    # A trace is replayed from its first line: no restart shows the rate of the whole.
    assert window(of_loop(loop, 4, DeclaredWork(None, 250.0, gap_s=0.5))).declared == {SECONDS: 0.5 / 250}


def at(seconds: ArrayLike, values: ArrayLike) -> Series:
    return Series(np.round(np.array(seconds) * NS_PER_S).astype(np.int64), np.array(values, dtype=float))


def static_rounds(count: int, *, silent: bool = False) -> PassRecord:
    """Return rounds of two requests of 3 s, each 3.5 s, from 10 s on; two tokens come at each tenth of a second.

    Args:
        silent: Nobody knows when the first tokens came.
    """
    begins_s = 10 + 3.5 * np.arange(count)
    requests = [request(index, begin, begin + 0.1, begin + 3, 30) for index, begin in enumerate(np.repeat(begins_s, 2))]
    if silent:
        requests = [replace(each, first_token_ns=None) for each in requests]
    tokens_s = (begins_s[:, None] + np.arange(1, 31) / 10).ravel()
    series = TokenSeries(np.round(tokens_s * NS_PER_S).astype(np.int64), 2 * np.arange(1, len(tokens_s) + 1))
    return replace(measured(0, 10, float(begins_s[-1] + 3), tuple(requests)), tokens=series)


def in_rounds(done: PassRecord, *gpus: GpuTimeline, lead_in_s: float = 4.0) -> Measured:
    restart = RestartRecord(0, passes=(done,), timeline=timeline(*gpus))
    return experiment(
        restart,
        used=[gpu.uuid for gpu in gpus],
        workload={"batch_size": 2, "min_duration_s": 10},
        warmup={"profile": "lead-in", "lead_in_s": lead_in_s},
    )


STEADY = constant_power(GPU, 300, start_s=0, end_s=60)


def test_blocks_of_static_batches_are_whole_rounds() -> None:
    """A round has the joules of its own tokens: 3.5 s of 300 W for 60 of them, and 3 s of the last."""
    found = window(in_rounds(static_rounds(8), STEADY))
    assert found.lead_in_s == 7
    assert found.block_s == pytest.approx([3.5] * 5 + [3])
    assert found.block_tokens.tolist() == [60] * 6
    assert found.block_j == pytest.approx([1050] * 5 + [900], rel=1e-3)
    assert found.work[PROMPTS].tolist() == [20] * 6
    assert found.work[CONTEXT] == pytest.approx([2 * (10 * 29 + 30 * 29 / 2)] * 6)


def test_an_open_loop_declares_the_seconds_of_a_token() -> None:
    """Two arrivals a second of 30 tokens each: a sixtieth of a second."""
    begins_s = 10 + np.arange(60) / 2
    requests = [
        replace(request(index, begin, begin + 0.1, begin + 1, 30), intended_ns=round(begin * NS_PER_S))
        for index, begin in enumerate(begins_s)
    ]
    series = TokenSeries(np.round((begins_s + 1) * NS_PER_S).astype(np.int64), 30 * np.arange(1, 61))
    done = replace(measured(0, 10, 41, tuple(requests)), tokens=series, declared=DeclaredWork(output_tokens=30.0))
    made_up = experiment(
        RestartRecord(0, passes=(done,), timeline=timeline(STEADY)),
        workload={"arrival": "poisson", "rate_per_s": 2.0},
        warmup={"profile": "lead-in", "lead_in_s": 5},
    )
    found = window(made_up)
    assert found.declared == {SECONDS: pytest.approx(1 / 60)}
    assert found.off_by(SECONDS) == pytest.approx(0, abs=0.03)
    assert found.block_tokens.sum() == found.output_tokens == 30 * 49


def test_a_block_has_the_mean_temperature_of_the_gpus_used_in_its_middle() -> None:
    """One reads 40 °C and a degree more each second, one 70 °C."""
    seconds = np.arange(60)
    first = replace(STEADY, series={"temperature_c": at(seconds, 40 + seconds)})
    second = replace(constant_power(OTHER, 100, start_s=0, end_s=60), series={"temperature_c": at([20, 40], [70, 70])})
    middles_s = 17 + np.array([1.75, 5.25, 8.75, 12.25, 15.75, 19])
    found = window(in_rounds(static_rounds(8), first, second))
    assert found.knows_warmth is False, "20 s lie between two readings"
    close = replace(second, series={"temperature_c": at(seconds[::5], np.full(12, 70.0))})
    assert window(in_rounds(static_rounds(8), first, close)).block_c == pytest.approx((40 + middles_s + 70) / 2)
    assert np.isnan(window(in_rounds(static_rounds(8), first, replace(second, series={}))).block_c).all()


@pytest.mark.parametrize(("last_s", "known"), [(31, True), (30.9, False)])
def test_a_temperature_reaches_five_seconds(last_s: float, *, known: bool) -> None:
    """The last block's middle is 36 s; the blocks before have readings anyhow."""
    gpu = replace(STEADY, series={"temperature_c": at([*range(30), last_s], [50.0] * 31)})
    found = window(in_rounds(static_rounds(8), gpu))
    assert np.isfinite(found.block_c).tolist() == [True] * 5 + [known]


def test_without_instants_or_joules_of_its_parts_a_window_is_one_block() -> None:
    """Its joules and tokens are known all the same, and no work is told."""
    made_up = in_rounds(static_rounds(8, silent=True), STEADY)
    [(restart, done)], [figure] = made_up.passes, made_up.headline
    blind = window_of(made_up, restart, done, figure)
    assert (figure.window, blind.lead_in_s) == ("drained", 0)
    assert (blind.block_j.tolist(), blind.block_tokens.tolist()) == ([figure.total_j], [480])
    assert (dict(blind.work), dict(blind.declared)) == ({}, {})
    # A second GPU, which the meter lost before the window was over.
    whole = in_rounds(static_rounds(8), STEADY)
    [(restart, done)], [figure] = whole.passes, whole.headline
    lost = replace(whole, energy=KnownTotal(figure.total_j or 0.0))
    only = window_of(lost, restart, done, figure)
    assert (only.block_j.tolist(), only.block_tokens.tolist(), dict(only.work)) == ([figure.total_j], [360], {})


class KnownTotal(ExactJoules):
    """Joules of whole windows, whose parts nobody knows."""

    def __init__(self, total_j: float) -> None:
        self._total_j = total_j

    def of(self, timeline: Timeline | None, span: Span, uuids: Sequence[str], *, hbm: bool = False) -> Joules:
        return Joules(None, {}) if span.name == "block" else Joules(self._total_j, {})


def test_a_budget_is_of_all_windows_of_each_restart_and_without_joules_there_is_none() -> None:
    """Restarts of 300, 300 and 303 W; the second one has two passes, so its windows count twice."""
    done = static_rounds(8)
    restarts = [
        RestartRecord(
            number, passes=(done,) * passes, timeline=timeline(constant_power(GPU, watts, start_s=0, end_s=60))
        )
        for number, (passes, watts) in enumerate([(1, 300), (2, 300), (1, 303)])
    ]
    made_up = replace(in_rounds(done, STEADY), restarts=restarts)
    found = measured_budget(made_up)
    assert found is not None
    # 20.5 s and 360 tokens of each.
    assert found.per_restart == pytest.approx([300 * 20.5 / 360, 300 * 20.5 / 360, 303 * 20.5 / 360], rel=1e-3)
    assert found.measured == pytest.approx(300.75 * 20.5 / 360, rel=1e-3)
    blind = replace(made_up, restarts=[*restarts[:2], replace(restarts[2], timeline=None)])
    assert measured_budget(blind) is None
    empty = replace(made_up, restarts=[])
    assert measured_budget(empty) is None
