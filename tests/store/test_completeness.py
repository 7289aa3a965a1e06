"""What is said of a study whose results are not all there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from make.stored import stored

if TYPE_CHECKING:
    from conftest import Called

RESULTS = Path("results")
STUDY = "20260101T000000-three-1"
JOURNAL = RESULTS / "studies" / STUDY / "journal.jsonl"
IDS = {name: letter * 64 for name, letter in zip(("one", "two", "three"), "123", strict=True)}


def journal(*events: tuple[str, str]) -> str:
    head = {"event": "study", "study_id": STUDY, "experiments": {key: {"name": name} for name, key in IDS.items()}}
    lines = ({"event": event, "experiment": IDS[name], "status": "ok", "folder": name} for event, name in events)
    return "".join(json.dumps(line) + "\n" for line in (head, *lines))


def put(name: str, attempt: int = 1) -> Path:
    folder, part = f"20260101T00000{IDS[name][0]}-fake-{name}{attempt}", {"study_id": STUDY, "attempt": attempt}
    return stored(RESULTS, name=folder, study=part, experiment_id=IDS[name], **{"config.name": name})


@pytest.fixture
def study(called: Called) -> Called:
    """A study of three experiments in the current folder, the last one not measured yet."""
    JOURNAL.parent.mkdir(parents=True)
    JOURNAL.write_text(journal(("stored", "one"), ("stored", "two")))
    for name in ("one", "two"):
        put(name)
    return called


LEFT = "three-1 lacks the results of 1 of 3 declared experiments; not measured: three"
LOST = "three-1 lacks the results of 2 of 3 declared experiments; stored, but not here: two; not measured: three"


def test_a_study_says_which_declared_experiments_have_no_result(study: Called) -> None:
    """On every command that takes its name, its folder, its bundle or folder of results; not on one experiment's."""
    assert study("bundle", "create", "three", "-o", "b.tar").returncode == 0
    for words in ("show three", f"show {JOURNAL.parent}", "show results", "compare three three", "show b.tar"):
        done = study(*words.split())
        assert (done.returncode, LEFT in done.stderr) == (0, True), words
    for words in ("show three:one", "results list"):
        done = study(*words.split())
        assert (done.returncode, "lacks" in done.stderr) == (0, False), words
    shown = json.loads(study("show", "three", "--json").stdout)
    assert [result["study"]["without_result"] for result in shown] == [["three"], ["three"]]


def test_a_result_that_its_study_stored_and_that_is_gone_is_missed(study: Called) -> None:
    """In lists of all results, too, and on the page."""
    [folder] = RESULTS.glob("*-two1")
    shutil.rmtree(folder)
    assert LOST in study("show", "three").stderr
    assert LOST.partition("; not")[0].replace("2 of", "1 of") in study("results", "list").stderr
    assert "not here: two" in study("results", "query", "SELECT count(*) FROM results").stderr
    assert LOST in study("report", "three", "-o", "page.html").stderr
    assert "Declared in the study, and without a result: two, three." in Path("page.html").read_text()


def test_the_loss_of_a_later_attempt_is_told_where_the_earlier_one_is_shown(study: Called) -> None:
    """Its figures are those that the study replaced."""
    stored_lines = [("stored", name) for name in ("one", "two", "three")]
    JOURNAL.write_text(journal(*stored_lines, ("retried", "two"), ("stored", "two")))
    put("three")
    assert "stored, but not here: two" in study("show", "three").stderr
    put("two", attempt=2)
    assert "lacks" not in study("show", "three").stderr


@pytest.mark.parametrize("content", ["", "{}\n", "[]\n", '{"event": "study", "experiments": 3}\n', "\x00\n", "no"])
def test_a_journal_that_says_nothing_is_no_loss(study: Called, content: str) -> None:
    """It may be left behind where results were copied from, or be cut off."""
    JOURNAL.write_text(content)
    done = study("show", "three")
    assert (done.returncode, "lacks" in done.stderr) == (0, False)


def test_a_replaced_result_stays_replaced_where_records_are_analysed_again(study: Called) -> None:
    """This version may know an experiment by another id than the one that stored it; a failure keeps the old one."""
    replaced, _ = put("three"), put("three", attempt=2)
    content = json.loads((replaced / "result.json").read_text())
    (replaced / "result.json").write_text(json.dumps(content | {"status": "failed"}))
    shutil.rmtree(replaced / "restarts")
    JOURNAL.write_text(journal(*[("stored", name) for name in ("one", "two", "three", "three")]))
    done = study("results", "list", "--again", "--json")
    assert done.stderr == ""
    assert sorted(row["folder"][-4:] for row in json.loads(done.stdout)) == ["one1", "ree2", "two1"]
