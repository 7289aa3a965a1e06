"""Questions of `quality:` through a study: after the measured passes, in the row, and never at their cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.outcomes import known
from make.stored import bundled
from seams.metering import Ticks
from seams.quality import questions
from seams.study import PassStarted, TokensSeen

from wattdock.audit import audited
from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, RunnerError
from wattdock.execution import measure
from wattdock.metering import MeterEvent, Span
from wattdock.planning import eta
from wattdock.quality import Score, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from conftest import Called
    from seams.study import Event

    from wattdock.metering import Timeline
    from wattdock.quality import Engine
    from wattdock.records import PassRecord
    from wattdock.runner import PassRequest


# Figures of answers that came later than the others.
NEW = ("asked", "cut", "score_if_right")
WORK: dict[str, Any] = {"batch_size": 4, "max_output_tokens": 10}
ASKED: dict[str, Any] = {
    "quality": {"tasks": ["arithmetic", "retrieval"], "limit": 20, "max_output_tokens": 10},
    "workload": WORK,
}


@dataclass
class KnowingRunner(VirtualRunner):
    """Answers questions of the bundled tasks, rightly where `knows` says so of the item's place."""

    knows: Callable[[int], bool] = lambda _: True
    faults: int = 0
    wrong: str = "I do not know"
    cut: Callable[[int], bool] = lambda _: False
    limit: int = ASKED["quality"]["max_output_tokens"]

    def run_program(self, source: str, *, timeout_s: float) -> int:
        command = [sys.executable, "-I", "-c", source]
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode

    def generate(self, request: PassRequest, **options: Any) -> PassRecord:
        solutions = {each.prompt: each.solution for task in questions().values() for each in task}
        asked = [solutions.get(str(item)) for item in request.prompts.items]
        if asked[0] is not None and self.faults:
            raise RunnerError("the runner died during a pass: exited with code 70", cause=Cause.RUNNER)
        record = super().generate(request, **options)
        texts = (solution if self.knows(at) else self.wrong for at, solution in enumerate(asked))
        answered = tuple(
            replace(each, text=text, finish_reason="length" if self.cut(at) else "stop", max_output_tokens=self.limit)
            for at, (each, text) in enumerate(zip(record.requests, texts, strict=False))
        )
        return replace(record, requests=answered or record.requests) if asked[0] is not None else record


@dataclass
class KnowingMachine(VirtualMachine):
    """Its runners know some answers.

    Attributes:
        knows: Whether a runner, by its number from 1, knows the answer at a place.
        dies: The runners that die of the first question.
        cut: Whether an answer reaches its limit of tokens.
        limit: That limit.
    """

    knows: Callable[[int, int], bool] = lambda _, at: at % 4 != 0
    dies: tuple[int, ...] = ()
    wrong: str = "I do not know"
    cut: Callable[[int], bool] = lambda _: False
    limit: int = ASKED["quality"]["max_output_tokens"]

    def launch(self, spec: object) -> VirtualRunner:
        self.launches += 1
        number, knows = self.launches, self.knows
        told: dict[str, Any] = {
            "faults": number in self.dies,
            "wrong": self.wrong,
            "cut": self.cut,
            "limit": self.limit,
        }
        return KnowingRunner(self.clock, knows=lambda at: knows(number, at), **told)


@pytest.fixture
def machine(tmp_path: Any) -> KnowingMachine:
    return KnowingMachine(tmp_path / "machine", {"GPU-1": lambda _: 300.0})


def test_questions_follow_every_measured_pass_of_the_session_and_cost_joules_of_their_own(
    machine: KnowingMachine,
) -> None:
    """300 W for 5 rounds of a second: 1500 J for each task of 20 items, of which 15 are right: 100 J each."""
    of_seeds = [
        experiment(name, **ASKED | {"repeats": {"restarts": 3}, "workload": WORK | {"seed": seed}})
        for seed, name in enumerate("ab")
    ]
    stored = machine.run(study(*of_seeds)).results
    found, records = stored[0].result.quality, [each.restarts() for each in stored]

    assert [each.result.error for each in stored] == [None, None]
    assert machine.launches == 3
    assert found
    assert found.overall
    assert found.overall.energy_per_correct_j == pytest.approx(100, rel=0.01)
    assert found.overall.energy_per_item_j == pytest.approx(75, rel=0.01)
    assert found.overall.interval
    assert found.overall.interval.low < 100 < found.overall.interval.high
    assert (found.overall.items, found.overall.score, found.failures) == (40, 0.75, [])
    assert [(task.name, task.score) for task in found.tasks] == [("arithmetic", 0.75), ("retrieval", 0.75)]
    for of_session in zip(*records, strict=True):
        asked = [run_pass for record in of_session for each in record.evaluations for run_pass in each.passes]
        assert [run_pass.index for run_pass in asked] == [-1, -2] * 2
        last_ns = max(run_pass.span.end_ns for record in of_session for run_pass in record.passes)
        assert last_ns <= min(run_pass.span.start_ns for run_pass in asked)
    # What a plan expects of the next run: passes with their share of the questions.
    spans = stored[0].result.spans
    assert [span.name for span in spans].count("questions") == 6
    took_s, measured_s = (
        [(span.end_ns - span.start_ns) / NS_PER_S for span in spans if span.name in names]
        for names in (("pass", "warm-up", "questions"), ("pass",))
    )
    expected = {of_seeds[0].experiment_id: pytest.approx(sum(took_s) / len(measured_s))}
    assert eta.earlier_pass_s([of_seeds[0]], machine.results) == expected


def test_a_category_has_scores_and_no_joules(machine: KnowingMachine, called: Called) -> None:
    """Its prompts may cost what the others' do not: only of the whole task joules are known, 75 J an item."""
    stored = machine.run(study(experiment("a", **ASKED | {"repeats": {"restarts": 3}}))).results[0]
    found = known(stored.result.quality)
    parts = [part for part in found.categories if part.name.startswith("arithmetic: ")]
    arithmetic, tasks = found.tasks[0], found.tasks
    assert [part.energy_per_item_j for part in tasks] == pytest.approx([75, 75], rel=0.01)
    assert len(parts) > 1
    assert sum(part.score * part.items for part in parts) == pytest.approx(arithmetic.score * arithmetic.items)
    assert {(part.energy_j, part.energy_per_item_j, part.energy_per_correct_j, part.interval) for part in parts} == {
        (None, None, None, None)
    }
    lines = called("show", stored.folder).stdout.splitlines()
    assert {"J/item" in line for line in lines if "quality: arithmetic: " in line} == {False}
    assert {"J/item" in line for line in lines if "quality: arithmetic " in line} == {True}


def test_questions_change_no_figure_of_the_measured_passes(machine: KnowingMachine) -> None:
    """The same passes, with and without questions after them."""
    with_questions, without = (
        machine.run(study(experiment(name, **settings))).results[0].result
        for name, settings in {"a": ASKED, "b": {"workload": WORK}}.items()
    )
    assert with_questions.quality
    assert without.quality is None
    assert with_questions.energy
    assert without.energy
    assert with_questions.energy.total_j == pytest.approx(without.energy.total_j, rel=1e-6)
    assert with_questions.performance
    assert without.performance
    assert with_questions.performance.output_tokens == without.performance.output_tokens


@pytest.mark.parametrize(
    ("dies", "failures"),
    [
        ((1, 2, 3), ["arithmetic, restart 1: the runner died", "retrieval, restart 1: the runner died"]),
        ((2,), ["arithmetic, restart 2: the runner died"]),
    ],
)
def test_runner_that_dies_of_a_question_costs_no_measured_pass(
    machine: KnowingMachine, dies: tuple[int, ...], failures: list[str]
) -> None:
    """The row has its joules per token, scores of the restarts that answered, and why others have none."""
    machine.dies = dies
    stored = machine.run(study(experiment("a", **ASKED | {"repeats": {"restarts": 3}}))).results[0]
    found = stored.result.quality
    assert (stored.result.status, stored.row.score) == ("ok", None if len(dies) == 3 else 0.75)
    assert stored.result.energy_figure
    assert stored.result.energy_figure.interval
    assert found
    for line in failures:
        assert any(failure.startswith(line) for failure in found.failures)


@pytest.mark.parametrize("wrong", ["exit()", "raise SystemExit", "import os\nos._exit(0)"])
def test_program_that_ends_before_its_checks_is_wrong(machine: KnowingMachine, wrong: str) -> None:
    """Its exit code is 0, as that of one whose checks all held; 15 of 20 are right."""
    machine.wrong = wrong
    asked = ASKED | {"quality": {"tasks": ["code"], "limit": 20, "run_code": True}}
    assert machine.run(study(experiment("a", **asked))).results[0].row.score == 0.75


def test_restart_with_other_prompts_is_told_and_left_out(machine: KnowingMachine) -> None:
    """Item by item, restarts are put side by side only where each was asked the same."""
    stored = machine.run(study(experiment("a", **ASKED | {"repeats": {"restarts": 3}}))).results[0]
    records = stored.restarts()
    first, *others = records[2].evaluations
    changed = replace(first, version="changed", scores=tuple(replace(each, score=0.0) for each in first.scores))
    asked = [*records[:2], replace(records[2], evaluations=(changed, *others))]
    found = audited(stored.result.config, asked).quality
    assert found
    assert [task.score for task in found.tasks] == [0.75, 0.75]
    assert found.failures == ["arithmetic, restart 3: its items or prompts have changed"]
    assert [bool(task.interval) for task in found.tasks] == [False, True]
    audits = [known(each.audit) for each in (stored.result, audited(stored.result.config, asked))]
    [same], [other] = ([check for check in audit.checks if check.name == "questions"] for audit in audits)
    assert (same.status, other.status, other.figure) == ("pass", "warn", found.failures[0])
    assert f"arithmetic {first.version}, 20 items, prompts " in same.figure


def test_joules_while_others_may_have_measured_are_unknown_with_the_reason(machine: KnowingMachine) -> None:
    """Scores stay. An answer without a token still has its share of its pass's joules."""
    stored = machine.run(study(experiment("a", **ASKED))).results[0]
    [record] = stored.restarts()
    [first, second] = record.evaluations
    silent = tuple(replace(each, output_tokens=0) for each in first.passes[0].requests)
    empty = replace(first, passes=(replace(first.passes[0], requests=silent, output_tokens=0),))
    shared = replace(second, passes=(replace(second.passes[0], lease_fault="a lease was lost"),))
    found = audited(stored.result.config, [replace(record, evaluations=(empty, shared))]).quality
    assert found
    assert found.tasks[0].energy_j == pytest.approx(1500, rel=0.01)
    assert (found.tasks[1].energy_j, found.tasks[1].reason, found.tasks[1].score) == (None, "a lease was lost", 0.75)


@pytest.mark.parametrize(
    ("cut", "said", "status"),
    [
        (lambda _: False, "", "pass"),
        # Right all the same; no other score could have come of it.
        (lambda at: at == 1, "6 of 120 answers were cut at their limit of tokens", "pass"),
        # The quarter that is wrong: 0.75, or up to 1.
        (
            lambda at: at % 4 == 0,
            "30 of 120 answers were cut at their limit of tokens: the score is a lower bound, at most 1.000",
            "warn",
        ),
    ],
)
def test_answers_cut_at_their_limit_are_counted_and_many_make_the_score_a_lower_bound(
    machine: KnowingMachine, called: Called, cut: Callable[[int], bool], said: str, status: str
) -> None:
    """In the row, the table, the page and the audit; two tasks of 20 items in three restarts."""
    machine.cut = cut
    experiments = [experiment(name, **ASKED | {"repeats": {"restarts": 3}}) for name in "ab"]
    stored = machine.run(study(experiments[0])).results[0]
    overall = known(known(stored.result.quality).overall)
    assert stored.row.answers_cut == overall.cut == int((said or "0").split()[0])
    [check] = [check for check in known(stored.result.audit).checks if check.name == "questions"]
    assert (check.status, "raise quality.max_output_tokens" in (check.remedy or "")) == (status, status == "warn")
    whole = called("show", stored.folder).stdout
    assert (said in whole, "were cut" in whole) == (True, bool(said))
    machine.run(study(experiments[1]))
    both = called("show", machine.results).stdout
    assert ("answers cut" in both, both.count(f": {said}") >= 2 if said else "were cut" in both) == (bool(said),) * 2
    compared = called("compare", stored.folder, stored.folder).stdout
    assert (f"; A: {said}" in compared and f"; B: {said}" in compared, "were cut" in compared) == (bool(said),) * 2
    assert called("report", stored.folder, "-o", machine.results / "page.html").returncode == 0
    page = (machine.results / "page.html").read_text("utf-8")
    assert (f'<span class="profile">{said}' in page) == bool(said)


def test_an_answer_that_reaches_a_shorter_limit_of_its_task_is_not_cut(machine: KnowingMachine) -> None:
    """No higher `quality.max_output_tokens` gives it more room."""
    machine.cut, machine.limit = (lambda at: at % 4 == 0), 9
    overall = known(known(machine.run(study(experiment("a", **ASKED))).results[0].result.quality).overall)
    assert (overall.cut, overall.is_bound, overall.score_if_right) == (0, False, 0.75)


def test_a_result_of_before_cut_answers_were_counted_says_nothing_of_them(machine: KnowingMachine) -> None:
    """Not counted is not none."""
    found = known(machine.run(study(experiment("a", **ASKED))).results[0].result.quality)
    told = known(found.overall).model_dump(mode="json")
    before = type(known(found.overall)).model_validate({k: v for k, v in told.items() if k not in NEW})
    assert (before.cut, before.is_bound, before.cut_text) == (None, False, "")


@pytest.mark.parametrize(("every", "code"), [(4, 0), (2, 9)])
def test_reproduction_asks_the_same_and_a_lower_score_is_none(
    machine: KnowingMachine, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, every: int, code: int
) -> None:
    """At the same joules: three of four right answers, or half of them."""
    machine.run(study(experiment("a", **ASKED | {"repeats": {"restarts": 3}})))
    bundle = bundled(machine.results, tmp_path / "b.tar").path
    other = KnowingMachine(tmp_path / "other", machine.power, knows=lambda _, at: at % every != 0)
    monkeypatch.setattr("wattdock.publish.reproduce.GpuInventory.here", other.inventory)
    monkeypatch.setattr("wattdock.execution.measure", partial(measure, machine=other.access()))
    done = called("reproduce", bundle, "--json")
    assert done.returncode == code, done.stderr
    [pair] = json.loads(done.stdout)["pairs"]
    assert (pair["quality"]["items"], pair["quality"]["fell"]) == (40, {0: None, 9: True}[code])
    assert pair["tests"]["energy_per_output_token_j"]["equivalent"] is True


@pytest.mark.parametrize("kind", ["gpu_lost", "counter_frozen", "broke_off"])
def test_gpu_or_meter_lost_during_questions_costs_their_joules_only(machine: KnowingMachine, kind: Any) -> None:
    """The measured passes keep their joules, the questions their scores, and J per correct answer is null with why."""
    lost_ns = list[int]()

    def unread(timeline: Timeline) -> Timeline:
        if not lost_ns:
            return timeline
        gpu = timeline.gpus["GPU-1"]
        kept = gpu.ticks.after_end_ns < lost_ns[0]
        ticks = Ticks(**{column.name: getattr(gpu.ticks, column.name)[kept] for column in fields(Ticks)})
        values = {"stood_s": 9.0, "mean_w": 300.0}
        end_ns = timeline.end_ns if kind == "counter_frozen" else None
        event = MeterEvent(lost_ns[0], kind, end_ns=end_ns, said="GPU is lost", values=values)
        return replace(timeline, gpus={"GPU-1": replace(gpu, ticks=ticks, events=(event,))})

    def lose(happened: Event) -> None:
        if isinstance(happened, PassStarted) and happened.stage == "quality: arithmetic":
            lost_ns.append(machine.clock.now_ns() + NS_PER_S // 2)

    machine.as_read = machine.at_meter_end = unread
    result = machine.run(study(experiment("a", **ASKED)), on=lose).results[0].result
    energy, overall = known(result.energy), known(known(result.quality).overall)
    assert lost_ns
    assert (result.status, result.error) == ("ok", None)
    assert energy.total_j == pytest.approx(300 * known(result.performance).duration_s, rel=0.02)
    assert (overall.score, overall.energy_per_correct_j) == (0.75, None)
    assert overall.reason


@dataclass(frozen=True)
class GivenAnswers(Task):
    """Compares given answers."""

    def evaluate(self, engine: Engine) -> list[Score]:
        found = engine.likelihoods([("two and two are", " four"), ("one and one are", " two")])
        return [Score(at, "sums", float(each.is_greedy), (each.request,)) for at, each in enumerate(found)]


@pytest.mark.parametrize(("left_out", "scores"), [(0, [1.0, 1.0]), (3, None)])
def test_text_that_has_no_room_is_not_judged_without_its_begin(
    machine: KnowingMachine, monkeypatch: pytest.MonkeyPatch, left_out: int, scores: list[float] | None
) -> None:
    """The task has no score, and says why."""

    def log_likelihoods(runner: KnowingRunner, pairs: Sequence[object], **_: object) -> Any:
        begin_ns = runner.clock.now_ns()
        runner.clock.sleep(1.0)
        told = [SimpleNamespace(log_likelihood=-1.0, is_greedy=True, tokens=1, left_out=left_out) for _ in pairs]
        return told, Span("likelihoods", begin_ns, runner.clock.now_ns())

    monkeypatch.setattr(KnowingRunner, "log_likelihoods", log_likelihoods, raising=False)
    task = GivenAnswers("arithmetic", "1", 0, 2, runs_code=False)
    monkeypatch.setattr("wattdock.execution.evaluation.tasks_of", lambda *_: [task])
    asked = ASKED | {"quality": {"tasks": ["arithmetic"]}}
    found = known(machine.run(study(experiment("a", **asked))).results[0].result.quality)
    assert [task.scores for task in found.tasks] == ([scores] if scores else [])
    assert [failure.partition(" in the")[0] for failure in found.failures] == (
        [] if scores else ["arithmetic, restart 1: 2 of 2 texts have no room"]
    )


def test_interruption_costs_the_score_of_what_was_being_asked(machine: KnowingMachine) -> None:
    """And of what was to be asked after it; the measured passes stay."""

    def interrupt(happened: Event) -> None:
        if isinstance(happened, TokensSeen) and happened.stage == "quality: arithmetic":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        machine.run(study(experiment("a", **ASKED)), on=interrupt)
    [stored] = machine.last.results
    assert known(stored.result.energy).total_j is not None
    assert known(stored.result.quality).failures == [
        "arithmetic, restart 1: interrupted while it was asked",
        "retrieval: not asked in restart 1, whose runner ended before",
    ]
