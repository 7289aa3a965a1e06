"""Results and studies by their names, as `run` prints them and as a user types them again."""

from __future__ import annotations

import json

import pytest
from command import SMALL, Command
from stored_results import stored
from unprivileged import give_to_user, user_home

STUDY = """\
name: two sizes
defaults: {workload: {max_output_tokens: 4}, repeats: {passes: 2}}
sweep: {workload.batch_size: [1, 2]}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A study of two experiments and a single one, with what `run` printed in `run.txt`."""
    home = user_home(tmp_path_factory.mktemp("names"))
    folder = home / "work"
    folder.mkdir()
    give_to_user(folder)
    command = Command(home, folder)
    (folder / "study.yaml").write_text(STUDY)
    done = command("run", "study.yaml", *SMALL[:4], "--quiet")
    assert done.returncode == 0, done.stderr
    (folder / "run.txt").write_text(done.stdout)
    assert command("run", *SMALL, "--set", "workload.seed=7", "--quiet").returncode == 0
    return command


def names(command: Command) -> list[str]:
    return sorted(file.parent.name for file in (command.folder / "results").glob("*/result.json"))


def test_a_run_ends_with_its_study_and_what_takes_that_name(measured: Command) -> None:
    """The last line can be typed as it stands."""
    last = (measured.folder / "run.txt").read_text().splitlines()[-1]
    said, command = last.split("; draw: wattdock ")
    assert said.startswith("2 results in results, study 2")
    study = said.split("study ")[1]
    assert (measured.folder / "results/studies" / study / "journal.jsonl").exists()
    done = measured(*command.split(), "-o", "study.html")
    assert (done.returncode, done.stdout.startswith("2 results in study.html")) == (0, True), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("report", "two-sizes"),
        ("show", "two-sizes"),
        ("compare", "two-sizes", "two-sizes"),
        ("plot", "table", "two-sizes", "-o", "t.csv"),
        ("bundle", "create", "two-sizes", "-o", "b.tar"),
    ],
    ids=lambda words: words[0],
)
def test_the_beginning_of_a_studys_name_means_its_results(measured: Command, words: tuple[str, ...]) -> None:
    """With its time or without; every command by the same rule, and two experiments each."""
    done = measured(*words)
    assert done.returncode == 0, done.stderr
    assert "batch_size=1" in done.stdout or "2 results" in done.stdout


def test_scaling_finds_the_study_too(measured: Command) -> None:
    """It has no curve to show of it, and says why instead of that there is no such study."""
    done = measured("scaling", "two-sizes")
    assert done.returncode == 2
    assert "none of 2 results can be compared" in done.stderr


def test_a_result_is_shown_by_its_name_or_the_beginning(measured: Command) -> None:
    """The whole name too, and the id that its table begins with; a window counts passes from 1, as progress does."""
    name = names(measured)[-1]
    shown_id = measured("show", name).stdout.split()[0]
    for written in (name, name[:-3], name.partition("-")[2], shown_id):
        shown = measured("show", written, "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["config"]["workload"]["seed"] == 7
    first = names(measured)[0]
    table = measured("show", first, "--window", "all").stdout
    assert [line.split()[1:3] for line in table.splitlines() if line.startswith("drained")] == [["1", "1"], ["1", "2"]]


def test_a_beginning_of_several_names_is_refused_with_them_and_an_unknown_one_too(measured: Command) -> None:
    """Exit codes 2 and 7, a line each, and nothing is written."""
    several = measured("report", "2", "-o", "several.html")
    assert several.returncode == 2
    assert names(measured)[0] in several.stderr
    nothing = measured("report", "nothing", "-o", "several.html")
    assert (nothing.returncode, "whose name begins so; `wattdock results list`" in nothing.stderr) == (7, True)
    window = measured("show", "two-sizes", "--window", "all")
    assert (window.returncode, "takes one result, and two-sizes is 2" in window.stderr) == (2, True)
    assert not (measured.folder / "several.html").exists()


def test_a_bundle_is_not_put_into_a_folder_that_is_not_there(measured: Command) -> None:
    """As tar does: nobody meant to make one by a typing mistake."""
    done = measured("bundle", "create", "two-sizes", "-o", "missing/deep/b.tar")
    assert (done.returncode, "there is no folder missing/deep; make it" in done.stderr) == (7, True)
    assert not (measured.folder / "missing").exists()


def test_a_study_is_found_where_only_its_results_were_copied_to(wattdock: Command) -> None:
    """Its own folder may have stayed behind; elsewhere than in ./results, --output-dir says where."""
    for number in (1, 2):
        study = {"study_id": "20260101T000000-copied-0123abcd", "attempt": 1}
        stored(wattdock.folder / "copies", name=f"20260101T00000{number}-fake-{number}", study=study)
    done = wattdock("show", "copied", "--output-dir", "copies", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 2


def test_a_study_is_a_list_in_json_though_it_is_of_one_result(wattdock: Command) -> None:
    """A script that reads studies must not meet another form when one has a single row; a result itself is no list."""
    study = {"study_id": "20260101T000000-alone-0123abcd", "attempt": 1}
    name = stored(wattdock.folder / "results", name="20260101T000001-fake-1", study=study).name
    for written, kind in (("alone", list), ("2026", list), ("results", list), (name, dict), ("fake-", dict)):
        done = wattdock("show", written, "--json")
        assert isinstance(json.loads(done.stdout), kind), written
