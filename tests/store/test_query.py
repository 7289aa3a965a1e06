"""Stored results as data."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_results import SAMPLE

import wattdock
from wattdock.analysis import ExperimentResult
from wattdock.errors import ConfigError, StoreError
from wattdock.store import StoredResult, replacement
from wattdock.store.folders import load_result
from wattdock.store.query import Filters, query, select, unreadable, write_table


def put(folder: Path, name: str, **changes: Any) -> None:
    """Store the sample with some values changed, each named by its place: `config__backend`."""
    document = json.loads(SAMPLE.read_text())
    for place, value in changes.items():
        *parents, last = place.split("__")
        part = document
        for parent in parents:
            part = part[parent]
        part[last] = value
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text(json.dumps(document))


def names(folder: Path, **filters: Any) -> list[str]:
    return [Path(one).name for one in select(folder, Filters(**filters))["folder"].to_pylist()]


def test_a_stored_sample_is_a_row_of_the_table(tmp_path: Path) -> None:
    """Whole, with its passes."""
    put(tmp_path, "20260101T000000-fake-1")
    written = json.loads(SAMPLE.read_text())
    result = load_result(tmp_path / "20260101T000000-fake-1")
    assert result.energy is not None
    assert result.energy.total_j == written["energy"]["total_j"]
    [row] = select(tmp_path, Filters()).to_pylist()
    assert row["total_j"] == written["energy"]["total_j"]
    assert row["schema_version"] == ExperimentResult.SCHEMA_VERSION
    assert row["model"] == "shape:tiny-llama"
    assert row["gpus"] == "NVIDIA H200"
    passes = query(tmp_path, 'SELECT restart, "pass", total_j FROM passes ORDER BY 1, 2').to_pylist()
    assert [measured["total_j"] for measured in passes] == [seen["total_j"] for seen in written["energy"]["passes"]]


def test_filters_let_through_what_they_name(tmp_path: Path) -> None:
    """Model, backend, GPU, date, status, verdict."""
    put(tmp_path, "20260101T000000-a", started_utc="2026-01-01T00:00:00+00:00")
    put(tmp_path, "20260201T000000-b", started_utc="2026-02-01T00:00:00+00:00", config__backend="vllm")
    put(tmp_path, "20260301T000000-c", started_utc="2026-03-01T00:00:00+00:00", environment__gpu_names=["NVIDIA L4"])
    put(tmp_path, "20260401T000000-d", started_utc="2026-04-01T00:00:00+00:00", status="failed")
    put(tmp_path, "20260501T000000-e", started_utc="2026-05-01T00:00:00+00:00", audit__publishable=True)
    put(tmp_path, "20260601T000000-f", started_utc="2026-06-01T00:00:00+00:00", config__model__shape="qwen3-8b")
    found = {
        "b": names(tmp_path, backend="vllm"),
        "c": names(tmp_path, gpu="l4"),
        "d": names(tmp_path, status="failed"),
        "e": names(tmp_path, publishable=True),
        "f": names(tmp_path, model="Qwen3"),
    }
    assert {letter: [name[-1] for name in seen] for letter, seen in found.items()} == {one: [one] for one in "bcdef"}
    assert [name[-1] for name in names(tmp_path, since="2026-02-01", until="2026-04-01T00:00")] == ["c", "b"]
    assert len(names(tmp_path, publishable=False)) == 5


def test_a_row_that_a_later_one_of_its_study_stands_for_is_left_out(tmp_path: Path) -> None:
    """An interrupted row and the whole one that the resumed study made of it are one experiment."""
    put(tmp_path, "20260101T000000-a", study={"study_id": "s", "attempt": 1}, status="interrupted")
    put(tmp_path, "20260101T000000-b", study={"study_id": "s", "attempt": 2})
    put(tmp_path, "20260101T000000-c", study={"study_id": "t", "attempt": 1})
    put(tmp_path, "20260101T000000-d", study=None)
    assert [name[-1] for name in names(tmp_path)] == ["d", "c", "b"]
    assert len(names(tmp_path, superseded=True)) == 4
    assert wattdock.load_results(tmp_path).num_rows == 3


def test_a_row_shown_by_name_says_what_stands_for_it_now(tmp_path: Path) -> None:
    """By experiment and study, whatever the folders are called: what was retried has another time in its name."""
    own = {"study_id": "s", "attempt": 1}
    put(tmp_path, "20260101T000000-a", study=own, status="failed")
    put(tmp_path, "20260101T000000-a-2", study=own | {"attempt": 2}, status="interrupted")
    put(tmp_path, "20260102T000000-a", study=own | {"attempt": 3})
    put(tmp_path, "20260103T000000-a", study=own | {"attempt": 4}, experiment_id="f" * 64)
    put(tmp_path, "20260104T000000-a", study={"study_id": "s-2", "attempt": 5})
    put(tmp_path, "20260105T000000-a", study=None)
    folders = sorted(tmp_path.iterdir())
    put(tmp_path, "20260106T000000-a")
    (tmp_path / "20260106T000000-a" / "result.json").write_text("{")
    later = tmp_path / "20260102T000000-a"
    found = [replacement(StoredResult(folder, load_result(folder))) for folder in folders]
    assert found == [later, later, None, None, None, None]
    shown = [sys.executable, "-m", "wattdock", "show", str(tmp_path / "20260101T000000-a")]
    done = subprocess.run(shown, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"a later attempt of its study stands for it: {later}"


def test_one_question_at_a_time(tmp_path: Path) -> None:
    """Of two, the first one's answer would be lost."""
    put(tmp_path, "20260101T000000-a")
    with pytest.raises(ConfigError, match="asks 2 questions"):
        query(tmp_path, "SELECT 1; SELECT 2")
    assert query(tmp_path, "PIVOT results ON backend USING count(*)").num_rows == 1


def test_each_view_holds_only_rows_that_count_and_its_all_view_the_others_too(tmp_path: Path) -> None:
    """A pass that a resumed study took over from its interrupted row must not be averaged twice."""
    put(tmp_path, "20260101T000000-a", study={"study_id": "s", "attempt": 1}, status="interrupted")
    put(tmp_path, "20260101T000000-b", study={"study_id": "s", "attempt": 2})
    for letter in "ab":
        for name in ("requests", "timeline"):
            restart = tmp_path / f"20260101T000000-{letter}" / "restarts/0"
            restart.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"at": [letter]}), restart / f"{name}.parquet")
    for view in ("results", "passes", "requests", "timeline"):
        for prefix, letters in (("", "b"), ("all_", "ab")):
            found = query(tmp_path, f"SELECT DISTINCT folder FROM {prefix}{view} ORDER BY 1")["folder"].to_pylist()
            assert [one[-1] for one in found] == list(letters), prefix + view


def test_a_folder_being_written_or_spoiled_costs_no_other_row(tmp_path: Path) -> None:
    """Hidden folders are not finished; what is no JSON is no result."""
    put(tmp_path, "20260101T000000-a")
    put(tmp_path, ".20260101T000000-b")
    put(tmp_path, "20260101T000000-c")
    (tmp_path / "20260101T000000-c" / "result.json").write_text('{"status": ')
    put(tmp_path, "20260101T000000-d")
    (tmp_path / "20260101T000000-d" / "result.json").write_bytes(b'{"status": "\xff"}')
    assert [name[-1] for name in names(tmp_path)] == ["a"]
    (tmp_path / "20260101T000000-e").mkdir()
    (tmp_path / "20260101T000000-e" / "result.json").symlink_to("nowhere")
    assert [name[-1] for name in names(tmp_path)] == ["a"]
    assert unreadable(tmp_path) == [tmp_path / "20260101T000000-e" / "result.json"]


def spoilt(kind: str, file: Path) -> None:
    """Make a good Parquet file one that was cut short, is empty, or has wrong bytes in its data."""
    data = bytearray(file.read_bytes())
    if kind == "bytes":
        data[8:40] = bytes(255 - one for one in data[8:40])
    contents: dict[str, bytes] = {"cut": bytes(data[:-20]), "empty": b"", "bytes": bytes(data)}
    file.write_bytes(contents[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "bytes"])
def test_a_spoiled_parquet_file_is_named_and_the_rest_answers(tmp_path: Path, kind: str) -> None:
    """On standard error, with exit code 0: one file of thousands is no reason for no answer."""
    for letter in "abc":
        put(tmp_path, f"20260101T000000-{letter}")
        table = pa.table({"text": [f"{letter} {number}" for number in range(1_000)]})
        restart = tmp_path / f"20260101T000000-{letter}" / "restarts/0"
        restart.mkdir(parents=True)
        pq.write_table(table, restart / "requests.parquet")
    spoiled = tmp_path / "20260101T000000-b" / "restarts/0/requests.parquet"
    spoilt(kind, spoiled)
    ask = [sys.executable, "-m", "wattdock", "results", "query", "--output-dir", str(tmp_path), "--json"]
    sql = "SELECT count(*) AS n, max(text) AS last FROM requests"
    done = subprocess.run([*ask, sql], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"n": 2_000, "last": "c 999"}])
    [line] = done.stderr.splitlines()
    assert line.startswith(f"wattdock: {spoiled}: is no whole Parquet file (")
    # A question about something else has nothing to do with it.
    other = subprocess.run([*ask, "SELECT count(*) AS n FROM results"], capture_output=True, text=True, check=True)
    assert (json.loads(other.stdout), other.stderr) == ([{"n": 3}], "")


def test_a_file_that_is_no_result_is_named_with_why(tmp_path: Path) -> None:
    """By the list, which shows the others, and by the library, which warns."""
    put(tmp_path, "20260101T000000-a")
    put(tmp_path, "20260101T000000-b", schema_version=ExperimentResult.SCHEMA_VERSION + 1)
    for letter, content in (("c", '{"status": '), ("d", "[1]"), ("e", "")):
        put(tmp_path, f"20260101T000000-{letter}")
        (tmp_path / f"20260101T000000-{letter}" / "result.json").write_text(content)
    put(tmp_path, "20260101T000000-f")
    words = tmp_path / "20260101T000000-f" / "result.json"
    words.write_text(json.dumps(json.loads(words.read_text()) | {"energy": {"total_j": "many"}}))
    known = ExperimentResult.SCHEMA_VERSION
    newer = f"has schema version {known + 1}, this wattdock reads {known}; "
    newer += "use the wattdock that wrote it"
    cut = "is no JSON; was it cut short?"
    reasons = {"b": newer, "c": cut, "d": "is no result", "e": cut}
    reasons |= {"f": "energy.total_j is no number: many"}
    said = [f"{tmp_path}/20260101T000000-{letter}/result.json: {why}; left out" for letter, why in reasons.items()]
    listed = [sys.executable, "-m", "wattdock", "results", "list", "--json", "--output-dir", str(tmp_path)]
    done = subprocess.run(listed, capture_output=True, text=True, check=False)
    assert (done.returncode, len(json.loads(done.stdout))) == (0, 1)
    assert done.stderr.splitlines() == [f"wattdock: {one}" for one in said]
    with pytest.warns(UserWarning, match="left out") as warned:
        assert wattdock.load_results(tmp_path).num_rows == 1
    assert [str(one.message) for one in warned] == said
    assert warned[0].filename == __file__
    assert query(tmp_path, "SELECT DISTINCT folder FROM all_passes").num_rows == 1


def test_no_view_holds_rows_of_a_file_that_is_no_result(tmp_path: Path) -> None:
    """What is left out is left out of all of them: passes, requests and timeline are counted against each other."""
    for letter in "ab":
        put(tmp_path, f"20260101T000000-{letter}")
        for name in ("requests", "timeline"):
            restart = tmp_path / f"20260101T000000-{letter}" / "restarts/0"
            restart.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"at": [letter]}), restart / f"{name}.parquet")
    (tmp_path / "20260101T000000-b" / "result.json").write_text('{"status": ')
    for view in ("all_results", "all_passes", "all_requests", "all_timeline"):
        found = query(tmp_path, f"SELECT DISTINCT folder FROM {view}")["folder"].to_pylist()
        assert [one[-1] for one in found] == ["a"], view


def test_results_without_their_parquet_files_are_asked_all_the_same(tmp_path: Path) -> None:
    """`requests` is a column of `results`, too."""
    put(tmp_path, "20260101T000000-a")
    assert query(tmp_path, "SELECT requests FROM results").num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "COPY results TO '{}'",
        "SELECT 1; COPY (SELECT 1) TO '{}'; SELECT 2",
        "EXPORT DATABASE '{}'",
        "EXPLAIN ANALYZE COPY (SELECT 42 AS a) TO '{}'",
    ],
)
def test_a_query_that_would_write_is_refused_before_it_does(tmp_path: Path, sql: str) -> None:
    """A stored result is never written over, by no command."""
    put(tmp_path, "20260101T000000-a")
    with pytest.raises(ConfigError, match="is no question"):
        query(tmp_path, sql.format(tmp_path / "written"))
    assert not (tmp_path / "written").exists()
    assert query(tmp_path, "PIVOT results ON status USING count(*)").num_rows >= 1


def test_a_select_cannot_have_its_profile_written_over_a_stored_file(tmp_path: Path) -> None:
    """Settings are functions too, and some of them name a file."""
    put(tmp_path, "20260101T000000-a")
    stored = tmp_path / "20260101T000000-a" / "runner.log"
    stored.write_text("loaded\n")
    with pytest.raises(ConfigError, match="locked"):
        query(tmp_path, f"FROM enable_profiling(save_location = '{stored}')")
    with pytest.raises(ConfigError, match="one at a time"):
        query(tmp_path, f"FROM enable_profiling(save_location = '{stored}'); SELECT 1")
    assert stored.read_text() == "loaded\n"


def test_a_folder_whose_name_looks_like_a_pattern_is_found(tmp_path: Path) -> None:
    """People call folders what they like."""
    put(tmp_path / "re[s]u*lts' ?", "20260101T000000-a")
    assert len(names(tmp_path / "re[s]u*lts' ?")) == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("selec 1", "syntax error"),
        ("SELECT nope FROM results", "nope"),
        ("SELECT 'a'::INT", "a"),
        # Nothing is fetched to answer it: the engine only says what it would need.
        ("FROM read_csv('https://127.0.0.1:9/a.csv')", "Install it first"),
    ],
)
def test_a_query_that_makes_no_sense_is_answered_in_one_line(tmp_path: Path, sql: str, words: str) -> None:
    """With what the engine says of it."""
    put(tmp_path, "20260101T000000-a")
    with pytest.raises(ConfigError, match="the query failed") as caught:
        query(tmp_path, sql)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_results_and_a_date_that_is_none_are_named(tmp_path: Path) -> None:
    """An empty table would look like an answer."""
    with pytest.raises(StoreError, match="no results in"):
        wattdock.load_results(tmp_path)
    put(tmp_path, "20260101T000000-a")
    with pytest.raises(ConfigError, match="'yesterday' is no date"):
        names(tmp_path, since="yesterday")


def test_an_export_holds_every_column_of_every_row(tmp_path: Path) -> None:
    """As CSV and as Parquet."""
    put(tmp_path, "20260101T000000-a")
    put(tmp_path, "20260102T000000-b")
    table = select(tmp_path, Filters())
    write_table(table, tmp_path / "x.csv", "csv")
    write_table(table, tmp_path / "x.parquet", "parquet")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["folder"] for row in rows] == table["folder"].to_pylist()
    assert list(rows[0]) == table.column_names
    assert pq.read_table(tmp_path / "x.parquet").equals(table)
    with pytest.raises(StoreError, match="cannot write"):
        write_table(table, tmp_path / "none" / "x.csv", "csv")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--status", "foo"), "--status foo is not one of ok, failed, interrupted"),
        (("--backend", "vlm"), "--backend vlm: unknown; there are gone, pytorch, tensorrt, vllm"),
    ],
)
@pytest.mark.parametrize("command", [("list",), ("export", "--csv", "/dev/null")])
def test_a_status_or_backend_that_nothing_can_have_is_refused(
    tmp_path: Path, command: tuple[str, ...], flags: tuple[str, ...], said: str
) -> None:
    """An empty list would look like an answer; a backend that only old results have is known."""
    put(tmp_path, "20260101T000000-a", config__backend="gone")
    wattdock_results = [sys.executable, "-m", "wattdock", "results", *command, "--output-dir", str(tmp_path)]
    refused = subprocess.run([*wattdock_results, *flags], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n"), said in refused.stderr) == (2, 1, True)
    for known in ("gone", "vllm"):
        subprocess.run([*wattdock_results, "--backend", known], capture_output=True, check=True)


def test_an_answer_of_many_rows_is_shown_in_part_and_said_so(tmp_path: Path) -> None:
    """A timeline has millions; its table took minutes."""
    put(tmp_path, "20260101T000000-a")
    ask = [sys.executable, "-m", "wattdock", "results", "query", "FROM range(100_000)", "--output-dir", str(tmp_path)]
    shown = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(shown) == 1 + 1_000 + 1
    assert shown[-1] == "100,000 rows, the first 1,000 shown; --json shows all"
