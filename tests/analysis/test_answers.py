"""Answers whose lengths nothing declares: the figure is of their long run, and as uncertain as their draw."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.outcomes import known
from make.records import experiment
from make.traffic import JOULES, LENGTHS, ClosedLoop, KnownJoules, closed_loop
from seams.analysis import CONTEXT, PROMPTS, SECONDS, Answers, Budget, Measured, measured_budget, undeclared_answers
from seams.records import DeclaredWork, Lines

from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

IN_FLIGHT, PROMPT, ANSWER, MANY = 64, 512, 800, 10**6


def restarts_of(loop: ClosedLoop, *, lines: Lines | None = None, declared: DeclaredWork | None = None) -> Measured:
    """Return three restarts with the same pass, of a file of prompts whose answers end by themselves."""
    requests = tuple(replace(each, prompt_hash=each.index) for each in loop.record.requests)
    record = replace(loop.record, requests=requests, declared=declared or DeclaredWork(lines=lines))
    workload = {"arrival": "closed", "batch_size": IN_FLIGHT, "prompts": {"source": "chats.jsonl"}}
    warmup = {"profile": "lead-in", "lead_in_s": 20, "window_lifetimes": 3}
    made_up = experiment(*(RestartRecord(n, passes=(record,)) for n in range(3)), workload=workload, warmup=warmup)
    return replace(made_up, energy=KnownJoules(loop, np.random.default_rng(0)))


def long_run_j(lengths: str) -> float:
    """Return the true joules per output token of a full engine, by a million requests."""
    draw = np.random.default_rng(99)
    prompts, answers = (np.ceil(LENGTHS[lengths](draw, mean, MANY)) for mean in (PROMPT, ANSWER))
    contexts = prompts * answers + answers * (answers - 1) / 2
    amounts = (prompts.mean(), answers.mean(), answers.mean() / IN_FLIGHT, contexts.mean())
    return float(np.dot(JOULES, amounts) / answers.mean())


@pytest.mark.parametrize("lengths", ["lognormal", "bimodal"])
def test_a_window_before_the_longest_answers_end_has_the_figure_of_all(lengths: str) -> None:
    """The engine begins with fresh requests; after 20 s, contexts of the longest answers are still growing."""
    figures, true_j = [], long_run_j(lengths)
    for seed in range(20):
        draw = np.random.default_rng(seed)
        loop = closed_loop(
            75, draw, in_flight=IN_FLIGHT, lengths=lengths, prompt=PROMPT, output=ANSWER, staggered=False
        )
        made_up = restarts_of(loop)
        assert made_up.windows.headline == "steady_state", made_up.windows.passes
        figures.append(known(measured_budget(made_up)))
    off = np.array([figure.energy_per_unit_j for figure in figures]) / true_j - 1
    intervals = [known(figure.interval) for figure in figures]
    assert sum(interval.low <= true_j <= interval.high for interval in intervals) >= 18
    assert abs(off.mean()) < 2.5 * off.std() / len(off) ** 0.5
    # As uncertain as it is, and not more.
    told = np.median([figure.part(Budget.ANSWERS) for figure in figures])
    assert 0.7 < told / off.std() < 1.5
    uncorrected = np.array([figure.measured for figure in figures]) / true_j - 1
    assert (lengths != "lognormal") or uncorrected.mean() < -0.01


def test_declared_answers_are_no_draw() -> None:
    """What the settings say stands, whatever the requests of a pass show."""
    loop = closed_loop(95, np.random.default_rng(1), in_flight=IN_FLIGHT, lengths="lognormal", output=ANSWER)
    declared = DeclaredWork(prompt_tokens=PROMPT, output_tokens=ANSWER, context_tokens=PROMPT * ANSWER)
    made_up = restarts_of(loop, declared=declared)
    assert undeclared_answers(made_up).mean_tokens is None
    found = known(measured_budget(made_up))
    assert (found.entry(Budget.ANSWERS), found.answers_sketch) == (None, [])


def sent(prompts: Floats, answers: Floats, lines: Lines) -> Measured:
    """Return one restart whose requests have these lengths."""
    loop = closed_loop(50, np.random.default_rng(1), in_flight=IN_FLIGHT, lengths="fixed")
    lengths = zip(loop.record.requests, prompts.tolist(), answers.tolist(), strict=False)
    requests = tuple(
        replace(each, prompt_tokens=int(prompt), output_tokens=int(answer)) for each, prompt, answer in lengths
    )
    record = replace(loop.record, requests=requests, declared=DeclaredWork(lines=lines))
    workload = {"arrival": "closed", "batch_size": IN_FLIGHT, "prompts": {"source": "chats.jsonl"}}
    return experiment(RestartRecord(0, passes=(record,)), workload=workload)


def draws(spread: float) -> Callable[[np.random.Generator], tuple[Floats, Floats, int]]:
    """Return what makes a file of 150 lines and sends 60 of them twice; answers to a line differ by `spread`."""
    lines = np.random.default_rng(7)
    prompts, means = lines.uniform(20, 400, 150).round(), lines.uniform(20, 600, 150)

    def of(random: np.random.Generator) -> tuple[Floats, Floats, int]:
        chosen = np.tile(random.permutation(150)[:60], 2)
        return prompts[chosen], np.ceil(means[chosen] * random.lognormal(0, spread, 120) + 1e-9), 60

    return of


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_two_stages_of_sampling_are_as_uncertain_as_a_thousand_draws_scatter(spread: float) -> None:
    """Two fifths of a file's lines, each twice: part of the file is known, what else a line may be answered is not."""
    draw, of = np.random.default_rng(3), draws(spread)
    rates, told = [], []
    slopes = {PROMPTS: 0.3, CONTEXT: 0.2}
    for trial in range(1000):
        prompts, answers, listed = of(draw)
        contexts = (answers - 1) * (prompts + answers / 2)
        rates.append([prompts.mean() / answers.mean(), contexts.mean() / answers.mean()])
        if trial % 50 == 0:
            found = undeclared_answers(sent(prompts, answers, Lines(first=0, listed=listed, total=150)))
            told.append(found.error(slopes)[0])
    relative = np.array(rates) / np.mean(rates, axis=0)
    assert np.median(told) == pytest.approx((relative @ [0.3, 0.2]).std(), rel=0.25)


def test_a_whole_file_with_the_same_answers_is_no_draw() -> None:
    """Sixty lines twice: what is sent is all there is."""
    prompts, answers = np.tile(np.arange(60) * 7.0 + 9, 2), np.tile(np.arange(60)[::-1] * 9.0 + 9, 2)
    found = undeclared_answers(sent(prompts, answers, Lines(first=0, listed=60, total=60)))
    assert found.error({PROMPTS: 0.5, CONTEXT: 0.5, SECONDS: 0.5})[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("common", [0, 500, 1000])
def test_sketches_tell_what_two_lists_differ_by(common: int) -> None:
    """Of a thousand draws each, so many are in both; signs hang on the prompt alone."""
    draw, ratios = np.random.default_rng(5), []
    for _ in range(40):
        values = draw.lognormal(0, 1.5, 2000) / 1000
        keys = draw.integers(0, 2**63, 2000)
        first, second = np.arange(1000), np.arange(1000 - common, 2000 - common)
        sketches = [answers_of(values[at], keys[at]).error({PROMPTS: 1.0})[1] for at in (first, second)]
        seen = float(np.mean(np.square(np.subtract(sketches[0], sketches[1]))))
        true = float(np.sum(np.square(values[np.setxor1d(first, second)])))
        ratios.append(seen / true if true else seen)
    assert np.mean(ratios) == pytest.approx(float(common < 1000), abs=0.12)


def answers_of(values: Floats, keys: NDArray[np.int64]) -> Answers:
    """Return answers whose only draws are these prompts, by the hashes that tell them apart."""
    loop = closed_loop(1, np.random.default_rng(1), in_flight=len(values), lengths="fixed", output=2)
    named = zip(loop.record.requests, keys.tolist(), strict=False)
    record = replace(loop.record, requests=tuple(replace(each, prompt_hash=key) for each, key in named))
    found = undeclared_answers(experiment(RestartRecord(0, passes=(record,))))
    return found._replace(of_prompts={PROMPTS: values}, of_answers={PROMPTS: np.zeros(1)})
