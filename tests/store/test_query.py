"""Stored results as data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make.rows import document
from make.stored import complete
from refused import raises
from seams.store import PARQUET

import wattdock
from wattdock.analysis import ExperimentResult
from wattdock.errors import Cause, ConfigError
from wattdock.store import COLUMNS, Row, all_rows, load_result, matching, query

if TYPE_CHECKING:
    from conftest import Called


def put(folder: Path, letter: str, *, restarts: bool = False, **changes: Any) -> Path:
    """Store the sample, of day `letter` of January, with values changed, each named by its place: `config__backend`."""
    day = ord(letter) - ord("a") + 1
    places = {place.replace("__", "."): value for place, value in changes.items()}
    own = {"started_utc": f"2026-01-{day:02}T00:00:00+00:00", "study.study_id": f"202601{day:02}T000000-{letter}-1"}
    sample = document(own | places)
    made = folder / f"202601{day:02}T000000-{letter}"
    made.mkdir(parents=True)
    (made / "result.json").write_text(json.dumps(sample))
    if restarts:
        complete(made)
        for name in PARQUET:
            table = pa.table({"pass": [0] * 1_000, "text": [f"{letter} {number}" for number in range(1_000)]})
            pq.write_table(table, made / f"restarts/0/{name}.parquet")
    return made


def letters(table: pa.Table) -> str:
    return "".join(folder[-1] for folder in table["folder"].to_pylist())


def selected(folder: Path, where: str | None = None, *, superseded: bool = False) -> str:
    return letters(Row.table(matching(all_rows(folder), where, superseded=superseded)))


def test_a_stored_sample_is_a_row_of_the_table(tmp_path: Path) -> None:
    """Whole, with its passes."""
    result = load_result(put(tmp_path, "a"))
    assert result.energy is not None
    [row] = Row.table(all_rows(tmp_path)).to_pylist()
    assert list(row) == list(COLUMNS)
    # Of a wattdock without a commit.
    assert row == vars(Row.of(result, Path(row["folder"]), "0.1.0"))
    assert row["total_j"] == result.energy.total_j
    assert row["schema_version"] == ExperimentResult.SCHEMA_VERSION
    assert (row["model"], row["gpus"]) == ("shape:tiny-llama", "1 × NVIDIA H200")
    assert row["energy_per_output_token_low_j"] is None
    passes = query(tmp_path, 'SELECT restart, "pass", total_j FROM passes ORDER BY 1, 2').to_pylist()
    assert [measured["total_j"] for measured in passes] == [measured.total_j for measured in result.energy.passes]


def test_a_row_says_where_prompts_come_from_how_the_model_was_split_and_who_disturbed_it(tmp_path: Path) -> None:
    """An unknown check disturbs nobody; the worst pass counts."""
    checks = [
        {"name": name, "status": status, "figure": figure}
        for name, status, figure in (
            ("CPU use by others", "fail", "61% in the worst pass"),
            ("processes on the GPUs", "fail", "process 12 (ann, train)"),
            ("memory of others", "unknown", "not known"),
            ("clock", "fail", "off"),
        )
    ]
    split = {"kind": "x", "tensor_parallel_size": 2}
    put(tmp_path, "a", audit__checks=checks, environment__runner__parallelism=split, environment__dataset="synthetic")
    put(tmp_path, "b", environment__gpu_count=0)
    other, row = Row.table(all_rows(tmp_path)).to_pylist()
    assert (row["prompts"], row["parallelism"], other["parallelism"]) == ("synthetic", "TP=2", None)
    found = "CPU use by others: 61% in the worst pass; processes on the GPUs: process 12 (ann, train)"
    assert (row["disturbed"], other["disturbed"]) == (found, None)


def test_a_condition_lets_through_what_it_holds_for(tmp_path: Path) -> None:
    """Any column: model, backend, GPU, date, status, verdict."""
    put(tmp_path, "a")
    put(tmp_path, "b", config__backend="vllm")
    put(tmp_path, "c", environment__gpu_names=["NVIDIA L4"])
    put(tmp_path, "d", status="failed")
    put(tmp_path, "e", audit__publishable=True)
    put(tmp_path, "f", environment__model__name="shape:qwen3-8b")
    assert selected(tmp_path, "backend = 'vllm'") == "b"
    assert selected(tmp_path, "gpus LIKE '%L4'") == "c"
    assert selected(tmp_path, "status = 'failed'") == "d"
    assert selected(tmp_path, "publishable") == "e"
    assert selected(tmp_path, "model ILIKE '%Qwen3%'") == "f"
    assert selected(tmp_path, "started_utc BETWEEN '2026-01-02' AND '2026-01-03T23:00'") == "cb"
    assert selected(tmp_path, "NOT publishable") == "fdcba"


def test_views_hold_what_no_later_attempt_replaces(tmp_path: Path) -> None:
    """A pass that a resumed study took over from its interrupted result must not be averaged twice."""
    put(tmp_path, "a", restarts=True, study={"study_id": "s", "attempt": 1}, status="interrupted")
    put(tmp_path, "b", restarts=True, study={"study_id": "s", "attempt": 2})
    put(tmp_path, "c", restarts=True, study={"study_id": "t", "attempt": 1})
    put(tmp_path, "d", restarts=True, study=None)
    spoiled = put(tmp_path, "e", restarts=True)
    (spoiled / "result.json").write_text('{"status": ')
    assert (selected(tmp_path), selected(tmp_path, superseded=True)) == ("dcb", "dcba")
    assert (selected(tmp_path, "superseded"), selected(tmp_path, "name IS NOT NULL")) == ("a", "dcb")
    for view in ("results", "passes", *PARQUET):
        assert letters(query(tmp_path, f"SELECT DISTINCT folder FROM {view} ORDER BY 1")) == "bcd", view


def test_a_later_attempt_replaces_a_result_of_the_same_experiment_and_study(tmp_path: Path) -> None:
    """Whatever the folders are called: a retry has another time in its name."""
    study = {"study_id": "s", "attempt": 1}
    put(tmp_path, "a", study=study, status="failed")
    put(tmp_path, "b", study=study | {"attempt": 2}, status="interrupted")
    put(tmp_path, "c", study=study | {"attempt": 3})
    put(tmp_path, "d", study=study | {"attempt": 4}, experiment_id="f" * 64)
    put(tmp_path, "e", study={"study_id": "s-2", "attempt": 5})
    put(tmp_path, "f", study=None)
    assert (selected(tmp_path), selected(tmp_path, superseded=True)) == ("fedc", "fedcba")


def test_a_list_asks_its_condition_once_of_all_results(called: Called, tmp_path: Path) -> None:
    """A condition that counts rows counts those that the list hides, too."""
    study = {"study_id": "s", "attempt": 1}
    put(tmp_path, "a", study=study)
    put(tmp_path, "b", study=study | {"attempt": 2})
    put(tmp_path, "c", status="failed")
    done = called("results", "list", "--where", "(SELECT count(*) FROM results) = 3", "--output-dir", tmp_path)
    assert done.stdout.splitlines()[-1] == "1 result; 1 failed, 1 superseded: --all shows them", done.stderr


def damage(kind: str, file: Path) -> None:
    """Lose a Parquet file, cut it short, or empty it."""
    contents = {"cut": file.read_bytes()[:-20], "empty": b""}
    file.unlink()
    if kind in contents:
        file.write_bytes(contents[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "lost"])
def test_a_damaged_or_lost_parquet_file_is_named_and_the_others_answer(called: Called, kind: str) -> None:
    """On standard error, with exit code 0: one file of thousands is no reason for no answer."""
    folders = [put(Path("results"), letter, restarts=True) for letter in "abc"]
    file = folders[1] / "restarts/0/requests.parquet"
    damage(kind, file)
    asked = called("results", "query", "--json", "SELECT count(*) AS n, max(text) AS last FROM requests")
    assert (asked.returncode, json.loads(asked.stdout)) == (0, [{"n": 2_000, "last": "c 999"}])
    [line] = asked.stderr.splitlines()
    problem = "is missing" if kind == "lost" else "cannot be read ("
    assert line.startswith(f"wattdock: {file}: {problem}")
    assert line.endswith("; left out of requests")
    # A question about something else has nothing to do with it.
    other = called("results", "query", "--json", "SELECT count(*) AS n FROM results")
    assert (json.loads(other.stdout), other.stderr) == ([{"n": 3}], "")


def test_a_file_with_a_column_whose_name_is_no_text_is_named_and_the_others_answer(called: Called) -> None:
    """The engine's binding says so in an error of no kind of its own."""
    files = [put(Path("results"), letter, restarts=True) / "restarts/0/requests.parquet" for letter in "ab"]
    files[1].write_bytes(files[1].read_bytes().replace(b"text", b"t\xffxt"))
    asked = called("results", "query", "--json", "SELECT * FROM requests")
    assert asked.returncode == 0, asked.stderr
    assert len(json.loads(asked.stdout)) == 1_000
    assert asked.stderr.startswith(f"wattdock: {files[1]}: cannot be read (")


def test_requests_and_steps_are_of_passes_and_not_of_the_questions_after_them(tmp_path: Path) -> None:
    """Answers to `quality:` lie in passes below 0; a timeline tells its samples outside of passes, too."""
    made = put(tmp_path, "a", restarts=True)
    for name in PARQUET:
        pq.write_table(pa.table({"pass": [-2, -1, 0, 1]}), made / f"restarts/0/{name}.parquet")
    counts = {name: query(tmp_path, f"SELECT count(*) AS n FROM {name}").to_pylist()[0]["n"] for name in PARQUET}
    assert counts == {"requests": 2, "steps": 2, "timeline": 4}


@pytest.mark.parametrize("lacking", ["a", "c"])
def test_files_that_lack_a_column_answer_with_the_others(tmp_path: Path, lacking: str) -> None:
    """Whether the newest or the oldest lacks it; it is null there."""
    for letter in "abc":
        file = put(tmp_path, letter, restarts=True) / "restarts/0/requests.parquet"
        if letter != lacking:
            table = pq.ParquetFile(file).read()
            pq.write_table(table.append_column("more", table["text"]), file)
    answer = query(tmp_path, "SELECT count(*) AS n, count(more) AS known, count(text) AS texts FROM requests")
    assert answer.to_pylist() == [{"n": 3_000, "known": 2_000, "texts": 3_000}]


def test_a_result_that_cannot_be_read_is_named_with_why(called: Called) -> None:
    """By the list, which shows the others, and by the library, which warns; a lost result.json is no exception."""
    results = Path("results").resolve()
    put(results, "a", study={"study_id": "s", "attempt": 1})
    known = ExperimentResult.SCHEMA_VERSION
    put(results, "b", schema_version=known + 1)
    contents = {"c": b'{"status": ', "d": b"[1]", "e": b"", "f": b'{"status": "\xff"}'}
    for letter, content in contents.items():
        (put(results, letter) / "result.json").write_bytes(content)
    put(results, "g", energy={"total_j": "many"})
    put(results, "h", config__workload__rate_per_s="many")
    put(results, "i", started_utc="yesterday")
    put(results, "p", started_utc="0001-01-01T00:00:00+14:00")
    (put(results, "j", restarts=True) / "result.json").unlink()
    # What a version of the same schema added does not matter.
    put(results, "k", colour="blue")
    put(results, "l", config__colour="blue")
    put(results, "m", spans="many")
    put(results, "n", spans=[{}], study={"study_id": "s", "attempt": 2})
    hidden = put(results, "o")
    hidden.rename(hidden.with_name(f".{hidden.name}"))
    (results / "plots").mkdir()
    reasons = {"b": str(known + 1), "g": "energy.", "h": "config.workload.rate_per_s", "i": ""}
    reasons |= {"j": "is missing; restore it"}
    reasons |= {"l": "config.colour", "m": "spans", "n": "spans.0.name", "p": "started_utc"}
    listed = called("results", "list", "--json", "--output-dir", str(results))
    assert (listed.returncode, len(json.loads(listed.stdout))) == (0, 2)
    lines = listed.stderr.splitlines()
    for line, letter in zip(lines, "bcdefghijlmnp", strict=True):
        assert f"-{letter}/result.json: " in line
        assert reasons.get(letter, "") in line
    with pytest.warns(UserWarning, match="left out") as warned:
        assert wattdock.results(output_dir=results, frame="arrow").num_rows == 2
    assert [f"wattdock: {warning.message}" for warning in warned] == lines
    assert warned[0].filename == __file__


def test_results_without_their_restarts_are_asked_all_the_same(tmp_path: Path) -> None:
    """`requests` is a column of `results`, too."""
    put(tmp_path, "a")
    lines: list[str] = []
    assert query(tmp_path, "SELECT requests FROM results", warn=lines.append).num_rows == 1
    lost = f"{tmp_path}/20260101T000000-a/restarts is missing or empty; restore it, or name another result"
    assert lines == [f"{lost}; left out of requests"]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY results TO '{}'",
        "SELECT 1; COPY (SELECT 1) TO '{}'; SELECT 2",
        "EXPORT DATABASE '{}'",
        "EXPLAIN ANALYZE COPY (SELECT 42 AS a) TO '{}'",
        # Settings are functions too, and some of them name a file.
        "FROM enable_profiling(save_location = '{}')",
        "FROM enable_profiling(save_location = '{}'); SELECT 1",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_a_query_that_would_write_or_asks_twice_is_refused_before_it_does(tmp_path: Path, sql: str) -> None:
    """A stored result is never written over, by no command; of two questions the first one's answer would be lost."""
    log = put(tmp_path, "a") / "runner.log"
    log.write_text("loaded\n")
    with raises(ConfigError):
        query(tmp_path, sql.format(log))
    assert log.read_text() == "loaded\n"
    assert query(tmp_path, "PIVOT results ON backend USING count(*)").num_rows == 1


def test_a_folder_whose_name_looks_like_a_pattern_is_found(tmp_path: Path) -> None:
    """People call folders what they like."""
    folder = tmp_path / "re[s]u*lts' ?"
    put(folder, "a", restarts=True)
    assert selected(folder) == "a"
    assert query(folder, "FROM requests").num_rows == 1_000


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("selec 1", "syntax error"),
        ("SELECT nope FROM results", "nope"),
        ("SELECT 'a'::INT", "a"),
        # A name that is no view is none of our variables.
        ("FROM tables", "tables"),
        # Nothing is fetched to answer it: the engine only says what it would need.
        ("FROM read_csv('https://127.0.0.1:9/a.csv')", "Install it first"),
    ],
)
def test_a_query_that_makes_no_sense_is_answered_in_one_line(tmp_path: Path, sql: str, words: str) -> None:
    """With what the engine says of it."""
    put(tmp_path, "a")
    with raises(ConfigError, words) as caught:
        query(tmp_path, sql)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_results_and_a_date_that_is_none_are_refused(tmp_path: Path) -> None:
    """An empty table would look like an answer."""
    with raises(ConfigError, cause=Cause.EMPTY):
        wattdock.results(output_dir=tmp_path)
    put(tmp_path, "a")
    with pytest.raises(ConfigError, match=r"where: .*yesterday"):
        matching(all_rows(tmp_path), "started_utc > 'yesterday'")


def test_an_export_holds_every_column_of_every_result_or_is_not_written(called: Called) -> None:
    """As CSV and as Parquet; a full disk or a missing folder costs no earlier export."""
    for letter in "ab":
        put(Path("results"), letter)
    assert called("results", "export", "--csv", "x.csv").stdout == "2 results written to x.csv\n"
    assert called("results", "export", "--parquet", "x.parquet").returncode == 0
    table = Row.table(all_rows(Path("results")))
    with Path("x.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["folder"] for row in rows] == table["folder"].to_pylist()
    assert list(rows[0]) == table.column_names
    assert pq.read_table("x.parquet").equals(table)
    failed = called("results", "export", "--csv", "none/x.csv")
    assert (failed.returncode, "none/x.csv" in failed.stderr) == (7, True)
    assert called("results", "export", "--csv", "/dev/null").returncode == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("command", [("list",), ("export", "--csv", "/dev/null")])
def test_a_condition_on_a_column_that_is_none_is_refused(called: Called, command: tuple[str, ...]) -> None:
    """In a line that names columns that are."""
    put(Path("results"), "a")
    refused = called("results", *command, "--where", "backnd = 'vllm'")
    assert (refused.returncode, refused.stderr.count("\n"), "backend" in refused.stderr) == (2, 1, True)


def test_an_answer_of_many_rows_is_shown_in_part_and_said_so(called: Called) -> None:
    """A timeline has millions; its table took minutes."""
    put(Path("results"), "a")
    shown = called("results", "query", "FROM range(100_000)").stdout.splitlines()
    assert len(shown) == 1 + 1_000 + 1
    assert shown[-1] == "100,000 rows, the first 1,000 shown; --json shows all"
