"""The file of rows in a folder of results: used for what did not change, never needed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_rows import SAMPLE, document
from unprivileged import run_as_user, user_home

from wattdock.store import Row, query, row_index, select
from wattdock.store.row_index import DIGEST_BYTES, INDEX, digest

if TYPE_CHECKING:
    from pathlib import Path

INDEXED = "from the index"
# Of results that are worth an index; reading as many as really are would take these tests longer.
FEWEST = 10
LIST = """
import sys, pathlib
from wattdock.store import row_index, select
row_index.FEWEST = int(sys.argv[2])
print(len(select(pathlib.Path(sys.argv[1]))))
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As many results as are worth an index."""
    monkeypatch.setattr(row_index, "FEWEST", FEWEST)
    for number in range(FEWEST):
        put(tmp_path / "results", number)
    return tmp_path / "results"


def put(folder: Path, number: int, **changes: Any) -> Path:
    made = folder / f"20260101T000000-fake-{number:08x}"
    made.mkdir(parents=True)
    (made / "result.json").write_text(json.dumps(document(changes)) if changes else SAMPLE.read_text())
    return made


def mark_index(folder: Path) -> None:
    """Give each indexed result a name that only the index knows."""
    table = pq.read_table(io.BytesIO((folder / INDEX).read_bytes()[DIGEST_BYTES:]))
    names, content = pa.array([INDEXED] * table.num_rows), io.BytesIO()
    pq.write_table(table.set_column(table.schema.get_field_index("name"), "name", names), content)
    (folder / INDEX).write_bytes(digest(content.getvalue()) + content.getvalue())


def read_again(folder: Path) -> list[str]:
    """Return the results whose rows are not from the index."""
    return sorted(row.folder for row in select(folder, superseded=True) if row.name != INDEXED)


def test_only_new_and_changed_results_are_read_again_and_lost_ones_are_gone(results: Path) -> None:
    """Also where the whole folder has another name since; a query uses the same rows."""
    as_read = select(results, superseded=True)
    assert select(results, superseded=True) == as_read
    mark_index(results)
    assert read_again(results) == []
    results = results.rename(results.with_name("moved"))
    new = put(results, FEWEST)
    changed, lost, touched, *_ = sorted(results.glob("2*"))
    (changed / "result.json").write_text(json.dumps(document({"status": "failed"})))
    content, status = (touched / "result.json").read_text(), (touched / "result.json").stat()
    (touched / "result.json").write_text(content.replace('"version three"', '"version four!"'))
    os.utime(touched / "result.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    lost.rename(results.parent / "elsewhere")
    assert read_again(results) == [str(changed), str(touched), str(new)]
    rows = query(results, f"SELECT folder, status FROM results WHERE name != '{INDEXED}' ORDER BY folder").to_pylist()
    assert [row["folder"] for row in rows] == [str(changed), str(touched), str(new)]
    assert [row["status"] for row in rows] == ["failed", "ok", "ok"]
    assert query(results, "SELECT count(*) AS n FROM results").to_pylist() == [{"n": FEWEST}]


def test_a_query_answers_the_same_from_the_index(results: Path) -> None:
    """With what a later attempt replaces, in the same order, and with the passes."""
    for attempt in (1, 2):
        put(results, FEWEST + attempt, study={"study_id": "s", "attempt": attempt})
    put(results, FEWEST + 3, study=None)
    questions = ("FROM all_results", "FROM results", "SELECT restart, total_j FROM passes ORDER BY ALL")
    as_read = []
    for sql in questions:
        (results / INDEX).unlink(missing_ok=True)
        as_read.append(query(results, sql))
        assert (results / INDEX).exists()
    assert [query(results, sql) for sql in questions] == as_read
    assert as_read[0].equals(Row.table(select(results, superseded=True)))
    assert as_read[1].equals(Row.table(select(results)))
    assert as_read[0].num_rows == as_read[1].num_rows + 1


def test_a_result_that_cannot_be_read_is_told_of_each_time(results: Path) -> None:
    """It has no row, so the index has none either."""
    (put(results, FEWEST) / "result.json").write_text("{")
    for _ in range(2):
        lines: list[str] = []
        assert len(select(results, superseded=True, say=lines.append)) == FEWEST
        assert len(lines) == 1


@pytest.mark.parametrize("kind", ["cut", "empty", "bytes", "code", "foreign", "folder"])
def test_an_index_that_is_damaged_or_not_of_this_code_is_ignored(results: Path, kind: str) -> None:
    """And written anew, where its name is free."""
    as_read, index = select(results, superseded=True), results / INDEX
    mark_index(results)
    data = index.read_bytes()
    index.unlink()
    if kind == "folder":
        index.mkdir()
    else:
        payload = data[DIGEST_BYTES:]
        contents = {"cut": data[:-20], "empty": b"", "bytes": data[:-1_000] + bytes(8) + data[-992:]}
        contents |= {"code": hashlib.sha256(b"other code" + payload).digest() + payload, "foreign": payload}
        index.write_bytes(contents[kind])
    assert select(results, superseded=True) == as_read
    if kind != "folder":
        mark_index(results)
        assert read_again(results) == []


def test_few_results_and_those_of_an_unpacked_bundle_have_no_index(results: Path) -> None:
    """A bundle with one file more would be another bundle."""
    (results.parent / "bundle.json").touch()
    few = put(results.parent / "few" / "results", 0).parent
    for folder in (results, few):
        select(folder, superseded=True)
        assert not list(folder.glob(".*"))


def test_a_folder_that_cannot_be_written_is_listed_without_a_word(results: Path, tmp_path: Path) -> None:
    """By somebody who may only read it."""
    home = user_home(tmp_path)
    results = results.rename(home / "results")
    results.chmod(0o555)
    words: list[str | Path] = [sys.executable, "-c", LIST, results, str(FEWEST)]
    done = run_as_user(words, env={"HOME": str(home)}, cwd=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{FEWEST}\n", "")
    assert not list(results.glob(".*"))


def test_readers_that_write_the_index_at_once_leave_a_whole_file(results: Path) -> None:
    """Each writes a file of its own and renames it."""
    with ThreadPoolExecutor() as readers:
        assert {len(rows) for rows in readers.map(select, [results] * 4)} == {FEWEST}
    assert [file.name for file in results.glob(".*")] == [INDEX]
    mark_index(results)
    assert read_again(results) == []


def test_an_index_holds_no_row_of_a_result_that_its_readers_could_not_read(results: Path) -> None:
    """Root, or the owner, lists a folder that all may enter; in one that nobody else may, all rows are kept."""
    closed, unreadable = put(results, FEWEST), put(results, FEWEST + 1)
    closed.chmod(0o700)
    (unreadable / "result.json").chmod(0o600)
    assert len(select(results, superseded=True)) == FEWEST + 2
    mark_index(results)
    assert read_again(results) == [str(closed), str(unreadable)]
    results.chmod(0o700)
    (results / INDEX).unlink()
    assert len(select(results, superseded=True)) == FEWEST + 2
    mark_index(results)
    assert read_again(results) == []
