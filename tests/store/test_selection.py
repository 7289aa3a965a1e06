"""Which stored results a name means, and what is read to know it."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

from make.stored import bundled, opener, stored, unpacked
from refused import raises

from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.store import find_results

if TYPE_CHECKING:
    from pathlib import Path


def chosen(*named: Path) -> list[str]:
    with ExitStack() as unpacked:
        return [row.folder.name for row in find_results([str(path) for path in named], named[0], opener(unpacked))]


def test_the_folder_of_a_bundle_is_used_once_every_byte_of_it_was_checked(tmp_path: Path) -> None:
    """A result that was measured in it since is named by its own folder."""
    result = stored(tmp_path / "results")
    bundle = unpacked(bundled(result, tmp_path / "b.tar").path, tmp_path / "around")
    assert chosen(bundle) == [result.name]
    (bundle / "results" / result.name / "restarts/0/requests.parquet").write_bytes(b"other")
    with raises(StoreError, "requests.parquet", cause=Cause.DAMAGED):
        chosen(bundle)
    assert chosen(bundle / "results" / result.name) == [result.name]


def test_a_folder_of_results_may_hold_other_files(tmp_path: Path) -> None:
    """Such as the log that the run's standard error was redirected to."""
    result = stored(tmp_path / "results")
    (tmp_path / "results/runner.log").write_text("loaded\n")
    assert chosen(tmp_path / "results") == [result.name]
    (result / "result.json").unlink()
    with raises(StoreError, "result.json", cause=Cause.MISSING):
        chosen(result)


def test_a_studys_folder_away_from_its_results_is_one_line(tmp_path: Path) -> None:
    """It holds the study's journal and none of its results."""
    study = "20260101T000000-alone-0123abcd"
    stored(tmp_path / "results", study={"study_id": study, "attempt": 1})
    folder = tmp_path / "results/studies" / study
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    assert len(chosen(folder)) == 1
    moved = shutil.copytree(folder, tmp_path / "backup/mine")
    with raises(ConfigError, "mine"):
        chosen(moved)


def test_a_beginning_of_several_names_is_answered_with_what_to_type_for_each(tmp_path: Path) -> None:
    """Studies are marked, since their names look like results'."""
    study = "20260101T000000-two-1"
    for name in ("20260101T000001-pytorch-aaaaaaaa", "20260101T000002-pytorch-bbbbbbbb"):
        stored(tmp_path, name=name, study={"study_id": study, "attempt": 1})
    with raises(ConfigError, "two-1 (a study), pytorch-aaaaaaaa, pytorch-bbbbbbbb"):
        find_results(["2026"], tmp_path, opener(ExitStack()))


def test_a_whole_name_means_one_run_of_a_study_though_it_begins_others(tmp_path: Path) -> None:
    """mine-2 is neither mine-20 nor the result of a backend that is called so; what is alike is typed with its time.

    Nor is it the second run of mine where mine-2 was run, too: nobody can know which is meant.
    """
    for number, study in enumerate(("mine-1", "mine-2", "mine-20")):
        part = {"study_id": f"20260101T00000{number}-{study}", "attempt": 1}
        stored(tmp_path, name=f"20260101T00010{number}-mine-2{number}", study=part)
    [found] = find_results(["mine-2"], tmp_path, opener(ExitStack()))
    assert found.result.study
    assert found.result.study.study_id.endswith("-mine-2")
    other = {"study_id": "20260103T000000-mine-2-1", "attempt": 1}
    stored(tmp_path, name="20260103T000100-mine-23", study=other)
    with raises(ConfigError, "20260101T000001-mine-2", "mine-2-1"):
        find_results(["mine-2"], tmp_path, opener(ExitStack()))
    [found] = find_results(["mine-2-1"], tmp_path, opener(ExitStack()))
    assert found.folder.name.endswith("-mine-23")
    shutil.rmtree(found.folder)
    stored(tmp_path, name="20260102T000000-mine-2", study={"study_id": "20260102T000000-other-1", "attempt": 1})
    with raises(ConfigError, "20260101T000001-mine-2", "20260102T000000-mine-2"):
        find_results(["mine-2"], tmp_path, opener(ExitStack()))


def test_a_study_is_its_latest_run_and_its_experiments_go_by_their_names(tmp_path: Path) -> None:
    """It is said which run; an attempt that was replaced stands in nobody's way."""
    said: list[str] = []

    def found(*texts: str) -> list[str]:
        return [one.folder.name for one in find_results(texts, tmp_path, opener(ExitStack()), said.append)]

    for number, (attempt, name) in enumerate(((1, "x"), (2, "x"), (1, "y"))):
        study = {"study_id": "20260102T000000-mine-2", "attempt": attempt}
        folder = stored(tmp_path, name=f"20260102T00000{number}-fake-{name * 8}-{number}", study=study)
        rename(folder, name)
    stored(tmp_path, name="20260101T000000-fake-0", study={"study_id": "20260101T000000-mine-1", "attempt": 1})
    x, y = "20260102T000001-fake-xxxxxxxx-1", "20260102T000002-fake-yyyyyyyy-2"
    assert found("mine") == [x, y]
    assert said == ["mine: mine-2, the latest of 2 runs"]
    assert (found("mine:y", "mine-2:x"), found("fake-xxxxxxxx")) == ([y, x], [x])
    with raises(ConfigError, "mine:z"):
        found("mine:z")


def rename(folder: Path, name: str) -> None:
    """Give a stored result's experiment this name, and an id of its own."""
    result = json.loads((folder / "result.json").read_text())
    result["config"]["name"] = name
    (folder / "result.json").write_text(json.dumps(result | {"experiment_id": f"{ord(name):x}" * 32}))


def test_other_files_beside_the_restarts_are_no_restarts(tmp_path: Path) -> None:
    """An editor or a person may leave a copy there."""
    result = stored(tmp_path / "results")
    (result / "restarts/0.bak").mkdir()
    (result / "restarts/0~").touch()
    [found] = find_results([str(result)], tmp_path, opener(ExitStack()))
    assert len(found.restarts()) == 2
