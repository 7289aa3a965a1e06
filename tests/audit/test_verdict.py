"""The verdict names causes: what follows from another reason is folded under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from golden.replay import analysed, load
from make.audit_world import World, launched, result_of
from seams.analysis import GROUPS

from wattdock.analysis import Audit, Check
from wattdock.config import ExperimentConfig

if TYPE_CHECKING:
    from pathlib import Path

    from seams.analysis import Reason


def reasons(*checks: Check, loose: dict[str, str] | None = None) -> list[tuple[str, str, list[str]]]:
    """Return group, name and followers of each reason."""
    found = Audit.of(checks, loose or {}).reasons
    return [(reason.group, reason.name, reason.follows) for reason in found]


def failed(name: str, **declared: object) -> Check:
    return Check.model_validate({"name": name, "status": "fail", "figure": "1", **declared})


def test_a_laptops_reasons_are_five_at_most_and_each_names_what_mends_it() -> None:
    """One each for the GPU, the settings, the image and the busy CPUs, instead of one for each of 19 checks."""
    case = load("pytorch-cpu")
    result, _ = analysed(case.facts, case.restarts)
    assert result.audit is not None
    told = {reason.name: reason for reason in result.audit.reasons}
    assert {"GPUs", "settings", "image"} <= told.keys()
    assert len(told) <= 5
    assert len(told["GPUs"].follows) > 10
    assert "libnvidia-ml.so.1" in told["GPUs"].found
    assert "repeats.restarts=2" in told["settings"].found
    assert all(told[name].remedy for name in ("GPUs", "settings", "image"))


def test_what_follows_through_several_checks_is_told_once_under_the_first_cause() -> None:
    """The second check follows from the first, the third from the second."""
    chain = (failed("a"), failed("b", causes=("a",)), failed("c", causes=("x", "b")))
    assert reasons(*chain) == [("unverified", "a", ["b", "c"])]


def test_what_needs_a_check_that_passed_is_a_reason_of_its_own() -> None:
    """A need that was met explains nothing."""
    passed = Check(name="a", status="pass", figure="1")
    assert reasons(passed, failed("b", causes=("a",))) == [("unverified", "b", [])]


def test_what_was_seen_is_a_reason_though_what_it_would_need_to_pass_is_missing() -> None:
    """A stranger on a GPU is one also where idle power is not known; only what is unknown follows from that."""
    idle = Check(name="idle", status="unknown", figure="none")
    seen, unseen = failed("seen", group="wrong", needs=("idle",)), failed("unseen", needs=("idle",))
    found = reasons(idle, seen, unseen.model_copy(update={"status": "unknown"}))
    assert found == [("wrong", "seen", []), ("unverified", "idle", ["unseen"])]


def test_what_makes_a_figure_wrong_is_told_beside_the_cause_that_it_follows_from() -> None:
    """A quick warm-up alone would leave the figure unverified."""
    drift = failed("drift", group="wrong", causes=("warm-up",))
    [reason] = Audit.of([failed("warm-up"), drift], {}).reasons
    assert (reason.group, reason.found) == ("wrong", "1; drift: 1")


def test_everything_follows_from_a_run_that_did_not_complete() -> None:
    """Nobody can mend the rest before."""
    assert reasons(failed("b"), failed("completion", group="wrong")) == [("wrong", "completion", ["b"])]


def test_only_checks_whose_own_setting_is_loose_are_folded_under_the_settings() -> None:
    """A steady warm-up that did not converge is not mended by more restarts."""
    checks = (failed("restarts", setting="a"), failed("warm-up", setting="b"), failed("interval", causes=("restarts",)))
    loose = {"a": "a=1 instead of 3", "other": "other=1 instead of 2"}
    found = Audit.of(checks, loose).reasons
    assert [(reason.name, reason.follows) for reason in found] == [
        ("settings", ["restarts", "interval"]),
        ("warm-up", []),
    ]
    assert found[0].found == "those of a first try: a=1 instead of 3"


def test_wrong_comes_before_unverified_before_irreproducible_and_more_followers_first() -> None:
    """Unknown is never wrong, whatever a failure would mean."""
    checks = (
        failed("image", group="irreproducible"),
        failed("b"),
        failed("c"),
        failed("d", causes=("c",)),
        failed("e", group="wrong"),
        Check(name="f", status="unknown", figure="?", group="wrong"),
    )
    assert [name for _, name, _ in reasons(*checks)] == ["e", "c", "b", "f", "image"]


def test_a_reason_says_group_finding_limit_what_depends_on_it_and_what_mends_it() -> None:
    """In one line, the same everywhere."""
    cause = failed("clock", group="wrong", threshold="0", remedy="mend it")
    [reason] = Audit.of([cause, failed("b", causes=("clock",))], {}).reasons
    assert str(reason) == "figure is wrong: clock: 1 (limit: 0); 1 more check depends on it → mend it"


def declared(library: Path) -> dict[str, Check]:
    result = result_of(World(restarts=1), library)
    assert result.audit is not None
    return {check.name: check for check in result.audit.checks}


def test_what_a_check_needs_is_a_check_and_its_setting_is_one_that_publication_needs(library: Path) -> None:
    """A name that is spelt wrong would fold nothing."""
    checks = declared(library)
    assert {name for check in checks.values() for name in (*check.causes, *check.needs)} <= checks.keys()
    settings = {check.setting for check in checks.values() if check.setting}
    assert settings <= ExperimentConfig.PUBLICATION.keys()
    assert Audit.COMPLETION in checks


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_no_check_follows_from_itself_in_a_circle(library: Path, status: str) -> None:
    """Where everything fails, there is one cause, and where only the first passes, each cause is found."""
    every = [check.model_copy(update={"status": status}) for check in declared(library).values()]
    assert [name for _, name, _ in reasons(*every)] == [Audit.COMPLETION]
    most = [check for check in every if check.name != Audit.COMPLETION]
    told = [(name, *follows) for _, name, follows in reasons(*most)]
    assert sorted(name for names in told for name in names) == sorted(check.name for check in most)


def test_a_plain_process_and_a_fault_of_the_gpu_are_reasons_of_two_groups(library: Path) -> None:
    """The worse first."""
    world = World(recordings=3, launch=launched(None), gpu={"thermal_above_w": 400.0})
    result = result_of(world, library)
    assert result.audit is not None
    found: list[Reason] = result.audit.reasons
    assert [(reason.group, reason.name) for reason in found] == [("wrong", "throttling"), ("irreproducible", "image")]
    assert list(GROUPS) == ["wrong", "unverified", "irreproducible"]
