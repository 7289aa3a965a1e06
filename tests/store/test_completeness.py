"""What is said of a study whose results are not all there."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from make.stored import bundled, stored
from seams.store import once, readable_results

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
    made = study("bundle", "create", "three", "-o", "b.tar", "--json")
    assert json.loads(made.stdout)["missing"] == ["a result of three, which the study declares"]
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


def test_a_copy_of_a_result_counts_once(study: Called) -> None:
    """It would stand for more restarts; beside the original, in another folder of results, or in a bundle."""
    one, _ = sorted(RESULTS.glob("*-fake-*"))
    bundled(one, Path("b.tar"))
    copy = shutil.copytree(one, RESULTS / f"{one.name}-copy")
    shutil.copytree(one, Path("backup") / one.name)
    Path("link").symlink_to(RESULTS)
    for words, place in (
        ("show three", copy),
        ("show three backup", f"backup/{one.name}"),
        ("show three b.tar", "b.tar:one"),
        (f"show {one} {one.absolute()} link/{one.name}", ""),
    ):
        done = study(*words.split(), "--json")
        named = [result["config"]["name"] for result in json.loads(done.stdout)]
        assert (named.count("one"), f"{place} is a copy of {one}, and counts once" in done.stderr) == (1, bool(place))
        assert "not here" not in done.stderr
    for words in ("list --json", "query 'FROM results' --json"):
        done = study("results", *shlex.split(words))
        assert (len(json.loads(done.stdout)), done.stderr.count("is a copy of")) == (2, 1)


def test_a_result_that_goes_while_it_is_listed_is_no_error(study: Called) -> None:
    """Another user's cleaning may come between the reading of a result and a look at its folder."""
    results = list(readable_results(sorted(RESULTS.glob("*-fake-*")), print))
    shutil.rmtree(results[0].folder)
    assert len(list(once([(result, result.row) for result in results], print))) == len(results)


def test_two_results_of_one_attempt_are_told(study: Called) -> None:
    """Studies that began in one second on two machines have one name; a changed copy of a result is one, too."""
    one, two = sorted(RESULTS.glob("*-fake-*"))
    other = shutil.copytree(one, RESULTS / f"{one.name}-other")
    content = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps(content | {"started_utc": "2026-01-01T00:00:01+00:00"}))
    for words in ("show three", "results list"):
        said = study(*words.split()).stderr
        assert f"{one} and {other} are two results of one attempt" in said
        assert two.name not in said
