"""Results on disk: whole, never overwritten, and read back."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from make.records import constant_power, experiment, measured, request, timeline
from make.rows import document
from refused import raises
from seams.analysis import measured_energy
from seams.records import TIMELINE
from seams.store import readable_results

from wattdock.analysis import ExperimentResult
from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, StoreError
from wattdock.records import RestartRecord, disk
from wattdock.store import load_result, store_result

if TYPE_CHECKING:
    from pathlib import Path


PASS = measured(0, 10, 30, (request(0, 10, 10.5, 20.5, 101),))
RESTART = RestartRecord(0, passes=(PASS,), timeline=timeline(constant_power("GPU-a", 600, start_s=0, end_s=40)))


def result() -> ExperimentResult:
    energy = measured_energy(experiment(RESTART))
    return ExperimentResult.bare(ExperimentConfig(), None, started_utc="2026-01-02T03:04:05.678+00:00", energy=energy)


def test_a_result_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Every figure, to the last bit."""
    folder = store_result(result(), [(RESTART, None)], log=tmp_path / "none", output_dir=tmp_path / "out")
    assert folder.name == f"20260102T030405-pytorch-{result().experiment_id[:8]}"
    assert load_result(folder) == result()


def test_the_same_result_twice_is_two_folders(tmp_path: Path) -> None:
    """Two runs of one experiment can end in the same second."""
    folders = {
        store_result(result(), [(RESTART, None)], log=tmp_path / "none", output_dir=tmp_path / "out") for _ in range(3)
    }
    assert len(folders) == 3
    assert not list((tmp_path / "out").glob(".*"))


def test_counter_changes_are_stored_with_their_brackets_and_their_pass(tmp_path: Path) -> None:
    """Any span can be computed again from the file."""
    folder = store_result(result(), [(RESTART, None)], log=tmp_path / "none", output_dir=tmp_path / "out")
    rows = pq.read_table(folder / "restarts/0" / TIMELINE, partitioning=None).to_pylist()
    counter = [row for row in rows if row["series"] == "energy_counter_mj"]
    assert len(counter) == 400
    assert all(row["before_start_ns"] < row["before_end_ns"] <= row["after_start_ns"] for row in counter)
    inside = [row for row in counter if 10e9 <= row["at_ns"] <= 30e9]
    assert {row["pass"] for row in inside} == {0}
    assert {row["pass"] for row in counter if row not in inside} == {None}


def test_a_folder_that_is_no_result_is_named(tmp_path: Path) -> None:
    """What was seen, and where."""
    (tmp_path / "result.json").write_text('{"schema_version": 99}')
    with raises(StoreError, "result.json", "99", cause=Cause.MALFORMED):
        load_result(tmp_path)


def test_the_version_of_a_result_is_judged_before_its_other_fields(tmp_path: Path) -> None:
    """A result of an older version lacks nothing; it needs the wattdock that wrote it."""
    older = ExperimentResult.SCHEMA_VERSION - 1
    changed = {"colour": "blue", "config.colour": "blue", "schema_version": older}
    (tmp_path / "result.json").write_text(json.dumps(document(changed)))
    with raises(StoreError, f"version {older}", "the wattdock that wrote it"):
        load_result(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_storing_takes_no_room_for_records_where_files_can_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Elsewhere they are copied."""
    measured_before, out = tmp_path / "record", tmp_path / "out"
    disk.write(RESTART, measured_before)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    folder = store_result(result(), [(RESTART, measured_before)], log=tmp_path / "none", output_dir=out)
    for file in measured_before.iterdir():
        stored = folder / "restarts/0" / file.name
        assert (stored.samefile(file), stored.read_bytes()) == (links, file.read_bytes())


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize(("place", "value"), [("performance.requests", 2**63), ("spans.0.end_ns", 10**400)])
def test_a_number_that_no_table_holds_is_refused_where_a_result_is_read(tmp_path: Path, place: str, value: int) -> None:
    """Tables of results have columns of 64 bits, and no instant or count needs more."""
    (tmp_path / "result.json").write_text(json.dumps(document({place: value})))
    with raises(StoreError, "64", cause=Cause.MALFORMED):
        load_result(tmp_path)
    said: list[str] = []
    assert not list(readable_results([tmp_path], said.append))
    assert [str(tmp_path) in line for line in said] == [True]


def test_joules_per_token_as_measured_have_an_earlier_name_and_are_never_left_out(tmp_path: Path) -> None:
    """Kept results have the other name; one with neither is named, instead of failing where it is shown."""
    kept = document()
    windows, name = kept["energy"]["windows"], "measured_per_output_token_j"
    windows["energy_per_output_token_j"] = figures = windows.pop(name)
    (tmp_path / "result.json").write_text(json.dumps(kept))
    energy = load_result(tmp_path).energy
    assert energy
    assert energy.windows
    assert energy.windows.measured_per_output_token_j == figures
    del windows["energy_per_output_token_j"]
    (tmp_path / "result.json").write_text(json.dumps(kept))
    with raises(StoreError, name, cause=Cause.MALFORMED):
        load_result(tmp_path)


def test_a_result_that_is_far_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """JSON takes many times its size in memory: 40 MB of `{}` ended a process that had 1 GB."""
    with (tmp_path / "result.json").open("w") as file:
        file.truncate(16_000_001)
    with raises(StoreError, "16,000,000"):
        load_result(tmp_path)
