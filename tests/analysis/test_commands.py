"""What a command's marks make of its joules: against constant powers and known instants."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.records import experiment, measured, stepped_power, timeline
from seams.analysis import gpu_results, measured_budget, measured_energy, window_of, work_done
from seams.audit import AuditInput, window_steady
from seams.metering import Series
from seams.records import Marked, TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seams.analysis import Measured

GPU = "GPU-a"
IDLE_W, BUSY_W = 100.0, 400.0
START_S, BUSY_S, EPOCH_S, END_S = 5, 35, 40, 60


POWER = ((BUSY_S, IDLE_W), (END_S - BUSY_S, BUSY_W), (5, IDLE_W))


def command(
    name: str,
    spans_s: Sequence[tuple[float, float]],
    ranks_s: Sequence[float] = (0,),
    power: Sequence[tuple[float, float]] = POWER,
) -> Measured:
    """Return runs from 5 to 60 s whose GPU works from 35 s on; 4 samples of each rank each half second from 40 s on.

    Args:
        ranks_s: By how much each rank is late.
        power: Seconds and watts, one behind the other.
    """
    steps_s = np.arange(EPOCH_S + 0.5, END_S, 0.5)
    at_ns = np.sort(np.add.outer(steps_s, ranks_s).ravel() * NS_PER_S).astype(np.int64)
    read_ns = (np.arange(0.5, 65) * NS_PER_S).astype(np.int64)
    busy = Series(read_ns, np.where(read_ns > BUSY_S * NS_PER_S, 100.0, 0.0))
    gpu = replace(
        stepped_power(GPU, power),
        series={"gpu_utilization_percent": busy},
    )
    marked = Marked(name, len(spans_s), tuple((round(a * NS_PER_S), round(b * NS_PER_S)) for a, b in spans_s))
    samples = 4 * np.arange(1, len(at_ns) + 1)
    done = replace(
        measured(0, START_S, END_S, ()),
        tokens=TokenSeries(at_ns, samples),
        output_tokens=int(samples[-1]),
        units={"samples": int(samples[-1])},
        marked=(marked,),
    )
    idle = Span("idle-empty", 1 * NS_PER_S, 4 * NS_PER_S)
    runs = [RestartRecord(number, passes=(done,), timeline=timeline(gpu), spans=(idle,)) for number in range(3)]
    settings = {"command": ["train"], "work": {"unit": "samples", "within": "epoch"}}
    return experiment(*runs, backend="measure", measure=settings)


def test_first_seconds_are_those_of_the_gpus_work_not_of_imports_before_it() -> None:
    """The epoch begins 35 s into the run, and 5 s after the GPU began to work: 1 % × exp(−5 ÷ 15)."""
    run = command("epoch", [(EPOCH_S, END_S - 0.25)])
    budget = measured_budget(run)
    assert budget is not None
    [entry] = [entry for entry in budget.entries if entry.name == "first seconds"]
    assert entry.standard_uncertainty == pytest.approx(0.01 * np.exp(-5 / 15), rel=0.03)
    assert entry.found == "5 s of work before the first window"
    assert budget.measured == pytest.approx(BUSY_W * (END_S - 0.25 - EPOCH_S) / 156, rel=0.005)


def test_conditions_and_joules_above_idle_are_of_the_spans_that_count() -> None:
    """Of 55 s of a run the GPU was idle in 30; in the 19.75 s of the epoch never. Without one, the run counts."""
    for name, seconds, watts, busy in (("epoch", 19.75, BUSY_W, 1), ("load", 55, 13_000 / 55, 25 / 55)):
        run = command(name, [(EPOCH_S, END_S - 0.25)])
        gpu, energy = gpu_results(run)[GPU], measured_energy(run)
        assert (gpu.mean_power_w, gpu.worst_pass_busy_share) == pytest.approx((watts, busy), rel=0.01)
        assert energy.net_j == pytest.approx(3 * seconds * (watts - IDLE_W), rel=0.01)


@pytest.mark.parametrize("ranks_s", [[0, 2e-6], [0.001 * rank for rank in range(8)], [0, 1e-3, 2e-3, 0.1]])
def test_blocks_hold_whole_steps_of_all_ranks(ranks_s: list[float]) -> None:
    """Each of the ten of 1.98 s holds four, or one more or less, also where a rank is a fifth of a step late."""
    run = command("epoch", [(EPOCH_S, END_S - 0.25)], ranks_s)
    (restart, done), figure = run.passes[0], run.headline[0]
    steps = window_of(run, restart, done, figure).block_tokens / (4 * len(ranks_s))
    assert (len(steps), steps.sum(), {*steps} <= {3, 4, 5}) == (10, 39, True)


def test_marks_outside_the_spans_that_count_change_no_block() -> None:
    """An evaluation that marks nothing for 20 s, and two compilations before it: steps are those within the spans."""
    run = command("epoch", [(EPOCH_S, END_S - 0.25)])
    (restart, done), figure = run.passes[0], run.headline[0]
    at_ns, counts = done.tokens.at_ns, done.tokens.output_tokens
    outside_ns = np.array([START_S + 1, START_S + 20]) * NS_PER_S
    around_ns = np.concatenate((outside_ns, at_ns, [at_ns[-1] + 20 * NS_PER_S]))
    around = replace(done, tokens=TokenSeries(around_ns, np.concatenate(([0, 0], counts, counts[-1:]))))
    blocks = [window_of(run, restart, each, figure).block_tokens.tolist() for each in (done, around)]
    assert len(blocks[0]) == 10
    assert blocks[0] == blocks[1]


def test_the_interval_of_spans_holds_what_their_ends_hide_and_spans_that_hide_all_have_no_joules() -> None:
    """Three equal runs differ by nothing; one over the step of power is off by what a tick hides, a short one all."""
    run = command("step", [(BUSY_S - 10, BUSY_S + 10)])
    [step] = work_done(run).marked
    assert step.interval_j is not None
    assert step.timing_j is not None
    each_j = 10 * (IDLE_W + BUSY_W)
    assert step.energy_per_span_j == pytest.approx(each_j, rel=0.01)
    assert step.interval_j.high - each_j == pytest.approx(1.96 * step.timing_j / 3, rel=0.05)
    run = command("communication", [(BUSY_S - 0.001, BUSY_S + 0.001)])
    [short] = work_done(run).marked
    assert (short.count, short.total_j, short.interval_j) == (3, None, None)
    assert short.reason == "its spans are shorter than the meter resolves; mark larger parts"


@pytest.mark.parametrize(
    ("epochs_s", "share"),
    [
        ([(40, 60)], 0.3),
        ([(40.25, 41.15), (50, 50.95)], (0.05 + 0.15 + 0.3) / (0.9 + 0.95)),
        ([(40, 40.3), (41.5, 42)], 0.3 / 0.8),
        ([(10, 20)], 0),
        ([], None),
    ],
)
def test_communication_counts_within_the_spans_that_count(
    epochs_s: list[tuple[float, float]], share: float | None
) -> None:
    """The first 0.3 of each second from 20 s to 65 s, warm-up included; of an epoch in too many places nothing."""
    run = command("epoch", epochs_s)
    [epoch] = run.passes[0][1].marked
    begins_ns = [second * NS_PER_S for second in range(20, 65)]
    talks = Marked("communication", 45, tuple((begin_ns, begin_ns + 300_000_000) for begin_ns in begins_ns))
    passes = (replace(run.passes[0][1], marked=(epoch, talks)),)
    told = work_done(replace(run, restarts=[replace(restart, passes=passes) for restart in run.restarts]))
    assert [part.share_within for part in told.marked][1] == pytest.approx(share)
    assert told.marked[1].share == pytest.approx(45 * 0.3 / 55)


SPANS = "from the first marked span that counts to the last"
LATER = "let the spans that count (--within) begin later: J/sample has not settled"


@pytest.mark.parametrize(
    ("fall", "length_s", "status", "figure", "remedy"),
    [
        (0, 19.5, "pass", f"{SPANS}; J/sample changes by +0.00% ", None),
        (0.1, 19.5, "fail", f"{SPANS}; J/sample changes by -35.", LATER),
        # Two blocks do not tell, and of a command that is no fault.
        (0.1, 4, "pass", SPANS, None),
    ],
)
def test_spans_that_count_must_not_get_cheaper_or_dearer(
    fall: float, length_s: float, status: str, figure: str, remedy: str | None
) -> None:
    """400 W fall to 360 W in 9 steps of 2 s, in which samples come as ever: 2.2 of 380 W a second."""
    falling = [(2, BUSY_W * (1 - fall * step / 9)) for step in range(10)]
    power = [(BUSY_S, IDLE_W), (EPOCH_S - BUSY_S, BUSY_W), *falling, (5, IDLE_W)]
    run = command("epoch", [(EPOCH_S, EPOCH_S + length_s)], power=power)
    parts = {"budget": measured_budget(run), "energy": measured_energy(run)}
    result: Any = SimpleNamespace(config=run.config, environment="", procedure="", **parts)
    check = window_steady(AuditInput(result)).named("measured window")
    assert (check.status, check.figure[: len(figure)], check.remedy) == (status, figure, remedy)


def test_the_number_of_gpus_is_the_real_one_in_arguments_too() -> None:
    """An argument called gpus hides it nowhere."""
    words = ["train", "{gpus}", "{share}"]
    settings = {"command": words, "args": {"share": "--batch={gpus}", "gpus": 7}}
    command = experiment(backend="measure", measure=settings).config.command
    assert command is not None
    assert command.filled_in(2)[0] == ["train", "2", "--batch=2"]
