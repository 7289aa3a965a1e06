"""The verdict: three questions, the gravest answer first, and one line that says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from golden.replay import analysed, load
from make.audit_world import World, launched, result_of
from make.outcomes import known

from wattdock.analysis import Audit, Check
from wattdock.records import Failure

if TYPE_CHECKING:
    from pathlib import Path

BUDGET: Any = SimpleNamespace(expanded=0.0123)


def check(name: str, question: str | None = "wrong", status: str = "fail", **declared: str) -> Check:
    return Check.model_validate({"name": name, "status": status, "figure": "1", "question": question, **declared})


IMAGE = check("image", "repeat", threshold="a digest", remedy="lock it")
WIDE = check("uncertainty", "known", threshold="± 2 %")
HOT = check("throttling", threshold="0.1%")


@pytest.mark.parametrize(
    ("checks", "summary"),
    [
        ([check("clock", status="pass")], "publishable, ± 1.23%"),
        ([HOT], "not publishable: throttling: 1 (limit: 0.1%)"),
        ([WIDE], "not publishable: uncertainty: 1 (limit: ± 2 %)"),
        ([IMAGE, WIDE, HOT], "not publishable: throttling: 1 (limit: 0.1%) (and 2 more)"),
        ([IMAGE], "known to ± 1.23%, cannot be repeated: image: 1 (limit: a digest)"),
        (
            [IMAGE, check("weights", "repeat")],
            "known to ± 1.23%, cannot be repeated: image: 1 (limit: a digest); weights: 1",
        ),
    ],
)
def test_the_first_line_says_how_well_a_figure_is_known_or_the_gravest_thing_against_it(
    checks: list[Check], summary: str
) -> None:
    """What cannot be repeated is a figure all the same."""
    found = Audit.of(checks, BUDGET)
    assert (found.summary, found.publishable) == (summary, summary.startswith("publishable"))


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
    assert audit.summary == "not publishable: completion: the runner died"
    assert known(audit.failure("throttling")).status == "fail"


def test_without_a_gpu_there_is_one_reason(library: Path) -> None:
    """Instead of one for each check of GPUs, meter and figure."""
    result = result_of(World(used=((),) * 3), library)
    [reason] = known(result.audit).reasons
    assert (reason.question, reason.name, reason.found) == ("wrong", "meter", "no GPU was used: no GPU")
    assert known(reason.remedy).startswith("measure on a machine with an NVIDIA GPU")


def test_a_laptops_reasons_are_the_gpu_and_what_cannot_be_repeated() -> None:
    """A recording of a plain process on busy CPUs."""
    case = load("pytorch-cpu")
    result, _ = analysed(case.facts, case.restarts)
    told = {reason.name: reason for reason in known(result.audit).reasons}
    assert list(told) == ["meter", "CPU use by others", "image"]
    assert "libnvidia-ml.so.1" in told["meter"].found
    assert all(reason.remedy for reason in told.values())


def test_a_sound_figure_of_a_plain_process_is_known_and_cannot_be_repeated(library: Path) -> None:
    """And a fault of the GPU is told first."""
    alone, hot = (
        known(result_of(World(launch=launched(None), gpu=gpu), library).audit)
        for gpu in ({}, {"thermal_above_w": 400.0})
    )
    assert alone.summary.startswith("known to ± 0.21%, cannot be repeated: image: sha256:1111")
    assert [(reason.question, reason.name) for reason in alone.reasons] == [("repeat", "image")]
    assert [(reason.question, reason.name) for reason in hot.reasons] == [("wrong", "throttling"), ("repeat", "image")]
    assert hot.summary.startswith("not publishable: throttling: ")
    assert hot.summary.endswith("(and 1 more)")
