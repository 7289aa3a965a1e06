"""Results that are not as they were stored: a line that names the file, exit code 7, and no traceback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from stored_results import stored

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command


def spoil(folder: Path, kind: str) -> None:
    file = folder / "result.json"
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:500])
    elif kind == "bare":
        document = json.loads(file.read_text())
        del document["config"]["workload"]
        file.write_text(json.dumps(document))
    else:
        (folder / "restarts/0/requests.parquet").write_text("no parquet\n")


@pytest.mark.parametrize(
    ("kind", "said", "verbs"),
    [
        ("cut", "is no JSON", ("show one", "report one", "agreement one one")),
        ("bare", "(workload: Field required)", ("show one", "scaling one", "plot batch one -o b.svg")),
        ("requests", "cannot be read: ", ("show one", "agreement one one")),
    ],
)
def test_a_spoiled_result_is_one_line_and_its_file(
    wattdock: Command, kind: str, said: str, verbs: tuple[str, ...]
) -> None:
    """Whatever reads it."""
    spoil(stored(wattdock.folder / "results", name="one"), kind)
    for verb in verbs:
        words = ["results", *verb.split()] if verb.startswith("agreement") else verb.split()
        done = wattdock(*words)
        assert done.returncode == 7, verb
        assert done.stderr.count("\n") == 1, verb
        assert said in done.stderr
        assert "results/one/re" in done.stderr


def test_a_table_whose_column_has_gone_is_named_where_a_run_is_analysed_anew(wattdock: Command) -> None:
    """A byte that changed in a file's head can rename a column."""
    file = stored(wattdock.folder / "results", name="one") / "restarts/0/timeline.parquet"
    table = pq.read_table(file)
    pq.write_table(table.rename_columns([name.replace("value", "Value") for name in table.column_names]), file)
    done = wattdock("show", "one", "--window", "drained")
    assert done.returncode == 7
    assert "restarts/0 does not hold what was measured" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_result_and_no_bundle_is_named_as_neither(wattdock: Command) -> None:
    """Such as the study's own YAML file."""
    (wattdock.folder / "study.yaml").write_text("model: shape:tiny-llama\n")
    done = wattdock("report", "study.yaml")
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "study.yaml: is no bundle, which ends in .tar, and no result.json" in done.stderr


def test_a_study_with_a_row_that_cannot_be_read_is_refused_with_the_file(wattdock: Command) -> None:
    """Two rows of three would look like a study of two; each row by itself is still to be had."""
    results, study_id = wattdock.folder / "results", "20260101T000000-three-0123abcd"
    study = {"study_id": study_id, "attempt": 1}
    for number in range(3):
        stored(results, name=f"20260101T00000{number}-fake-{number}", study=study, experiment_id=f"{number}" * 64)
    (results / "studies" / study_id).mkdir(parents=True)
    (results / "studies" / study_id / "journal.jsonl").touch()
    spoil(results / "20260101T000001-fake-1", "cut")
    for verb in (
        *("show three", "report three", f"report results/studies/{study_id} -o f.html", "scaling three"),
        *("compare three 20260101T000000-fake-0", "plot table three -o t.csv", "bundle create three -o b.tar"),
    ):
        done = wattdock(*verb.split())
        assert (done.returncode, done.stderr.count("\n")) == (7, 1), verb
        assert "results/20260101T000001-fake-1/result.json is no JSON; was it cut short?" in done.stderr
    assert wattdock("show", "20260101T000002-fake-2").returncode == 0
