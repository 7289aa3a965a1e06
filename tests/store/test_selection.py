"""Which stored results a name means, and what is read to know it."""

from __future__ import annotations

import shutil
import tarfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from stored_results import bundled, opener, stored

from wattdock.errors import ConfigError, StoreError
from wattdock.store import find_results

if TYPE_CHECKING:
    from pathlib import Path


def chosen(*named: Path) -> list[str]:
    with ExitStack() as unpacked:
        return [row.folder.name for row in find_results([str(path) for path in named], named[0], opener(unpacked))]


def test_the_folder_of_a_bundle_is_used_once_every_byte_of_it_was_checked(tmp_path: Path) -> None:
    """Named itself, or by the folder that it alone lies in; one that was measured in it since is named by its own."""
    result = stored(tmp_path / "results")
    around = tmp_path / "around"
    around.mkdir()
    with tarfile.open(bundled(result, tmp_path / "b.tar").path) as file:
        file.extractall(around, filter="data")
    bundle = around / "b"
    for named in (bundle, around):
        assert chosen(named) == [result.name]
    (bundle / "results" / result.name / "restarts/0/requests.parquet").write_bytes(b"other")
    for named in (bundle, around):
        with pytest.raises(StoreError, match=r"not as it was bundled: changed: .*requests\.parquet"):
            chosen(named)
    assert chosen(bundle / "results" / result.name) == [result.name]


def test_a_folder_of_results_may_hold_other_files(tmp_path: Path) -> None:
    """Such as the log that the run's standard error was redirected to."""
    result = stored(tmp_path / "results")
    (tmp_path / "results/runner.log").write_text("loaded\n")
    assert chosen(tmp_path / "results") == [result.name]
    (result / "result.json").unlink()
    with pytest.raises(StoreError, match=r"result\.json: is missing"):
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
    with pytest.raises(ConfigError, match="mine: no results of this study in"):
        chosen(moved)


def test_a_beginning_of_several_names_lists_results_before_studies(tmp_path: Path) -> None:
    """Studies are marked, since their names look like results'."""
    study = "20260101T000000-two-0123abcd"
    for name in ("20260101T000001-pytorch-aaaaaaaa", "20260101T000002-pytorch-bbbbbbbb"):
        stored(tmp_path, name=name, study={"study_id": study, "attempt": 1})
    listed = f"begins the names of 20260101T000001-pytorch-aaaaaaaa, 20260101T000002-pytorch-bbbbbbbb, study {study};"
    with pytest.raises(ConfigError, match=listed):
        find_results(["2026"], tmp_path, opener(ExitStack()))


def test_other_files_beside_the_restarts_are_no_restarts(tmp_path: Path) -> None:
    """An editor or a person may leave a copy there."""
    result = stored(tmp_path / "results")
    (result / "restarts/0.bak").mkdir()
    (result / "restarts/0~").touch()
    [found] = find_results([str(result)], tmp_path, opener(ExitStack()))
    assert len(found.restarts()) == 1
