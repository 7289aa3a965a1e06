"""The verdict: three questions, the gravest answer first, and one line that says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from golden.replay import analysed, load
from make.audit_world import World, launched, result_of
from make.outcomes import known
from make.rows import document

from wattdock.analysis import Audit, Check, ExperimentResult
from wattdock.audit import audit
from wattdock.records import Failure

if TYPE_CHECKING:
    from pathlib import Path

BUDGET: Any = SimpleNamespace(unit="output tokens", energy_per_unit_j=0.36852, expanded=0.0046)
ONE_RESTART: Any = SimpleNamespace(unit="output tokens", energy_per_unit_j=0.36852, expanded=None)
FIGURE = "0.3685 J/output token ± 0.46 %"


def check(name: str, question: str | None = "wrong", status: str = "fail", **declared: str) -> Check:
    """Return a check that found "1"."""
    return Check.model_validate({"name": name, "status": status, "figure": "1", "question": question, **declared})


IMAGE = check("image", "repeat", threshold="a digest", remedy="lock it")
WIDE = check("uncertainty", "known", threshold="± 0.3 %")
HOT = check("throttling", threshold="0.1%")
CHANGED = check("environment of the restarts", "repeat", "unknown")


@pytest.mark.parametrize(
    ("checks", "budget", "summary"),
    [
        ([check("clock", status="pass")], BUDGET, f"publishable: {FIGURE}"),
        ([HOT], BUDGET, "not publishable: something is wrong: throttling: 1"),
        ([WIDE], BUDGET, "not publishable: not known well enough: ± 0.46 % (limit ± 0.3 %)"),
        ([check("uncertainty", "known", "unknown")], ONE_RESTART, "not publishable: unknown: uncertainty: 1"),
        ([IMAGE, WIDE, HOT], BUDGET, "not publishable: something is wrong: throttling: 1 (and 2 more)"),
        ([check("clock", status="unknown")], BUDGET, "not publishable: unknown: clock: 1"),
        ([check("meter")], None, "not publishable: 1"),
        ([check("meter", status="unknown")], BUDGET, "not publishable: unknown: meter: 1"),
        ([IMAGE], BUDGET, f"{FIGURE}; cannot be repeated: image"),
        ([CHANGED, IMAGE], BUDGET, f"{FIGURE}; cannot be repeated: image, environment of the restarts"),
        ([CHANGED], BUDGET, f"{FIGURE}; unknown whether it can be repeated: environment of the restarts"),
        ([IMAGE], ONE_RESTART, "0.3685 J/output token without an interval; cannot be repeated: image"),
    ],
)
def test_the_first_line_says_the_figure_or_the_gravest_thing_against_it(
    checks: list[Check], budget: Any, summary: str
) -> None:
    """What cannot be repeated is a figure all the same."""
    found = Audit.of(checks, budget)
    assert (found.summary, found.publishable) == (summary, summary.startswith("publishable"))


@pytest.mark.parametrize("name", ["throttling", "work sent against work declared", "meter"])
def test_a_long_finding_is_cut_between_words(name: str) -> None:
    """The line has 120 characters at most where that leaves 50 of the finding."""
    summary = Audit.of([check(name).model_copy(update={"figure": "a word " * 50}), IMAGE], BUDGET).summary
    assert summary.endswith(" … (and 1 more)")
    assert 110 <= len(summary) <= (120 if len(name) < 20 else 140)
    assert set(summary.partition(f"{name}: ")[2].split()) <= {"a", "word", "…", "(and", "1", "more)"}


def test_wrong_comes_before_not_known_before_not_repeatable_and_failed_before_unknown() -> None:
    """Where two are as grave, in the order of the checks."""
    checks = (IMAGE, check("a", status="unknown"), WIDE, check("b"), check("c"), check("d", "known", "unknown"))
    reasons = Audit.of(checks, BUDGET).reasons
    assert [(reason.question, reason.name) for reason in reasons] == [
        *(("wrong", name) for name in "bca"),
        ("known", "uncertainty"),
        ("known", "d"),
        ("repeat", "image"),
    ]


def test_a_warning_and_a_check_without_a_question_stand_against_nothing() -> None:
    """A reader is told."""
    checks = [check("a", status="warn"), check("b", None), check("c", status="info")]
    assert Audit.of(checks, BUDGET).publishable


def test_a_reason_says_question_finding_limit_and_what_mends_it() -> None:
    """In one line, the same everywhere."""
    [reason] = Audit.of([IMAGE], BUDGET).reasons
    assert str(reason) == "cannot be repeated: image: 1 (limit: a digest) → lock it"


def test_nothing_but_the_failure_is_told_of_a_run_that_did_not_complete(library: Path) -> None:
    """Nobody can mend the rest before."""
    died = Failure(kind="RunnerError", message="the runner died", stage="pass 1/1", exit_code=5)
    result = result_of(World(failure=died, launch=launched(None), gpu={"thermal_above_w": 400.0}), library)
    audit = known(result.audit)
    assert [(reason.question, reason.name, reason.found) for reason in audit.reasons] == [
        ("wrong", "completion", "the runner died")
    ]
    assert audit.summary == "not publishable: the runner died"
    assert known(audit.failure("throttling")).status == "fail"


def test_without_a_gpu_there_is_one_reason(library: Path) -> None:
    """Instead of one for each check of GPUs, meter and figure."""
    result = result_of(World(used=((),) * 3), library)
    audit = known(result.audit)
    [reason] = audit.reasons
    assert (reason.question, reason.name, reason.found) == ("wrong", "meter", "no GPU was used: no GPU")
    assert audit.summary == "not publishable: no GPU was used: no GPU"
    assert known(reason.remedy).startswith("measure on a machine with an NVIDIA GPU")


def test_a_laptops_reasons_are_the_gpu_and_what_cannot_be_repeated() -> None:
    """A recording of a plain process on busy CPUs."""
    case = load("pytorch-cpu")
    result, _ = analysed(case.facts, case.restarts)
    told = {reason.name: reason for reason in known(result.audit).reasons}
    assert list(told) == ["meter", "CPU use by others", "measured window", "software"]
    assert "libnvidia-ml.so.1" in told["meter"].found
    assert all(reason.remedy for reason in told.values())


def test_a_sound_figure_of_a_plain_process_is_known_and_cannot_be_repeated(library: Path) -> None:
    """And a fault of the GPU is told first."""
    results = [result_of(World(launch=launched(None), gpu=gpu), library) for gpu in ({}, {"thermal_above_w": 400.0})]
    (alone, hot), budget = (known(result.audit) for result in results), known(results[0].budget)
    figure = f"{budget.energy_per_unit_j:.4g} J/output token ± {100 * known(budget.expanded):.2f} %"
    assert alone.summary == f"{figure}; cannot be repeated: software"
    assert [(reason.question, reason.name) for reason in alone.reasons] == [("repeat", "software")]
    assert [(reason.question, reason.name) for reason in hot.reasons] == [
        ("wrong", "throttling"),
        ("repeat", "software"),
    ]
    assert hot.summary.startswith("not publishable: something is wrong: throttling: ")
    assert hot.summary.endswith(" of the worst pass (thermal on … (and 1 more)")


@pytest.mark.parametrize(("duration_s", "remedy"), [(4.0, "make passes longer: workload.min_duration_s"), (30.0, None)])
def test_passes_too_short_to_hold_power_against_the_counter_are_told_so(duration_s: float, remedy: str | None) -> None:
    """Of a longer pass the counter or the power itself is missing, which more seconds would not give."""
    made = document()
    made["energy"]["passes"] = [each | {"duration_s": duration_s} for each in made["energy"]["passes"]]
    made["gpus"] = {uuid: gpu | {"power_over_counter": None} for uuid, gpu in made["gpus"].items()}
    checks = audit(ExperimentResult.model_validate(made)).checks
    [check] = [check for check in checks if check.name == "two readings"]
    assert (check.status, check.remedy) == ("unknown", remedy)
