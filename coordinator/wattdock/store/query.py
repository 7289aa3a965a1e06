"""Stored results as tables to query: DuckDB over the files themselves, no copy that could drift."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wattdock.errors import ConfigError, StoreError
from wattdock.store.views import COUNTS, READABLE, TEXT, TEXT_OR_NOT, VIEWS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import duckdb
    import pyarrow as pa

RESULT = "result.json"
# View → its files below a result's folder.
PARQUET = {"requests": "restarts/*/requests.parquet", "timeline": "restarts/*/timeline.parquet"}
# A restart's files → the result's folder.
OWN_FOLDER = "regexp_replace(parse_dirpath(filename), '/restarts/[^/]*$', '')"
# DuckDB's names of statements that only answer; MULTI is a PIVOT. An EXPLAIN ANALYZE runs what it explains.
ASKING = {"SELECT", "MULTI"}
# A SELECT can call functions that change settings, one of which is a file to write a profile to.
LOCKED = "SET lock_configuration = true"
# A SELECT from an address would have DuckDB fetch an extension of its own for it.
OFFLINE: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": False}


@dataclass(frozen=True)
class Filters:
    """Which results are meant; None takes all. Texts match anywhere, in either case."""

    model: str | None = None
    backend: str | None = None
    gpu: str | None = None
    since: str | None = None
    until: str | None = None
    status: str | None = None
    publishable: bool | None = None
    study: str | None = None
    superseded: bool = False

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return an SQL condition on `all_results` and its parameters."""
        found = [(condition, name, value) for condition, name, value in self._conditions() if value is not None]
        conditions = [condition for condition, _, _ in found] + ([] if self.superseded else ["NOT superseded"])
        return " AND ".join(conditions) or "true", {name: value for _, name, value in found}

    def _conditions(self) -> Iterator[tuple[str, str, Any]]:
        for name, column in (("model", "model"), ("gpu", "gpus"), ("study", "study_id")):
            yield f"contains(lower({column}), lower($" + name + "))", name, getattr(self, name)
        yield "backend = $backend", "backend", self.backend
        yield "status = $status", "status", self.status
        yield "started_utc >= $since::TIMESTAMP", "since", self.since
        yield "started_utc < $until::TIMESTAMP", "until", self.until
        yield "coalesce(publishable, false) = $publishable", "publishable", self.publishable


@dataclass(frozen=True)
class LeftOut:
    """A file that an answer lacks, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}; left out"


# Is told of every file that the answer lacks.
Tell = Callable[[LeftOut], None]


def open_results(
    output_dir: Path, sql: str = "", *, source: str = TEXT, spoiled: Collection[Path] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views over the results in `output_dir`.

    Args:
        output_dir: The folder that holds result folders.
        sql: What will be asked; the Parquet views are only made for a query that names them.
        source: How the files are read.
        spoiled: Files that are left alone.

    Raises:
        StoreError: There are none.
    """
    import duckdb

    if not next(iter(output_dir.glob(f"[!.]*/{RESULT}")), None):
        raise StoreError(f"no results in {output_dir}; name the folder that holds them with --output-dir")
    connection = duckdb.connect(config=OFFLINE)
    connection.execute(VIEWS.format(source=source.format(files=_files(output_dir, RESULT))))
    for name in _parquet_named(sql):
        pattern = PARQUET[name]
        # Results that were copied without these are results all the same.
        if next((file for file in output_dir.glob(f"[!.]*/{pattern}") if file not in spoiled), None):
            connection.execute(
                f"CREATE VIEW all_{name} AS SELECT * FROM (SELECT {OWN_FOLDER} AS folder, * EXCLUDE filename "
                f"FROM read_parquet({_files(output_dir, pattern, spoiled)}, filename = true, union_by_name = true)) "
                f"WHERE {READABLE}"
            )
            connection.execute(f"CREATE VIEW {name} AS FROM all_{name} WHERE {COUNTS}")
    return connection


def _parquet_named(sql: str) -> list[str]:
    return [name for name in PARQUET if name in sql.lower()]


def unreadable(output_dir: Path, pattern: str = RESULT) -> list[Path]:
    """Return the files of results in `output_dir` that this user cannot read: queries leave them out."""
    if pattern != RESULT:
        return [file for file in output_dir.glob(f"[!.]*/{pattern}") if not os.access(file, os.R_OK)]
    folders = [entry.path for entry in os.scandir(output_dir) if entry.name[0] != "."] if output_dir.is_dir() else []
    closed = [file for folder in folders if not os.access(file := f"{folder}/{RESULT}", os.R_OK)]
    return [Path(file) for file in closed if os.path.lexists(file)]


def _files(output_dir: Path, name: str, spoiled: Collection[Path] = ()) -> str:
    """Return the SQL that names these files: a pattern, or a list where one of them would fail the whole query."""
    if not (left_out := {*unreadable(output_dir, name), *spoiled}):
        return _quoted(f"{glob.escape(str(output_dir))}/[!.]*/{name}")
    found = [_quoted(glob.escape(str(file))) for file in output_dir.glob(f"[!.]*/{name}") if file not in left_out]
    return f"[{', '.join(found)}]::VARCHAR[]"


def query(output_dir: Path, sql: str, *, tell: Tell = lambda _: None) -> pa.Table:
    """Return the answer to one SELECT over the views.

    Args:
        tell: Is told what the answer lacks.

    Raises:
        ConfigError: The SQL makes no sense, with what DuckDB says of it, or is no question.
        StoreError: There are no results.
    """
    import duckdb

    try:
        return _answer(output_dir, sql, tell=tell)
    except duckdb.Error as error:
        raise ConfigError(f"the query failed: {' '.join(str(error).split())}") from error


def _answer(output_dir: Path, sql: str, parameters: dict[str, Any] | None = None, *, tell: Tell) -> pa.Table:
    """Run the query. If one file makes all of it fail, read files as bytes, then leave the broken ones out."""
    import duckdb

    source, spoiled = TEXT, dict[Path, str]()
    while True:
        try:
            table, wrong = _asked(output_dir, sql, parameters, source=source, spoiled=spoiled)
            break
        except duckdb.Error as error:
            if source == TEXT and "UTF-8" in str(error):
                source = TEXT_OR_NOT
            elif spoiled or isinstance(error, _faults_of_the_question()):
                raise
            else:
                spoiled = _spoiled(output_dir, sql)
                if not spoiled:
                    raise
    closed = dict.fromkeys(unreadable(output_dir), "cannot be read; see its owner and mode")
    for file, reason in (closed | wrong | spoiled).items():
        tell(LeftOut(file, reason))
    return table


def _faults_of_the_question() -> tuple[type[Exception], ...]:
    """DuckDB's errors about the SQL itself; for these no file is checked."""
    import duckdb

    return duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.DataError


def _asked(
    output_dir: Path, sql: str, parameters: dict[str, Any] | None, *, source: str, spoiled: Collection[Path]
) -> tuple[pa.Table, dict[Path, str]]:
    """Return the answer, and which documents it lacks and why."""
    with open_results(output_dir, sql, source=source, spoiled=spoiled) as connection:
        _require_question(connection, sql)
        connection.execute(LOCKED)
        if (answer := connection.sql(sql, params=parameters)) is None:
            raise ConfigError(f"{sql!r} asks nothing; write a SELECT")
        table = answer.to_arrow_table()
        wrong = connection.execute("SELECT folder, _wrong FROM fields WHERE _wrong IS NOT NULL ORDER BY 1").fetchall()
    return table, {Path(folder) / RESULT: reason for folder, reason in wrong}


def _spoiled(output_dir: Path, sql: str) -> dict[Path, str]:
    """Return the Parquet files that the query is about and that cannot be read to their end, and why."""
    files = [file for name in _parquet_named(sql) for file in sorted(output_dir.glob(f"[!.]*/{PARQUET[name]}"))]
    found = {file: _parquet_error(file) for file in files if os.access(file, os.R_OK)}
    return {file: f"is no whole Parquet file ({reason})" for file, reason in found.items() if reason}


def _parquet_error(file: Path) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as content:
            for _ in content.iter_batches():
                pass
    except (OSError, pa.ArrowException) as error:
        return " ".join(str(error).split())
    return None


def _require_question(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse what could write over stored results, or fetch code, before any of it is done, and a second question."""
    statements = connection.extract_statements(sql)
    for statement in statements:
        if statement.type.name not in ASKING:
            raise ConfigError(f"{statement.query.strip()!r} is no question; write a SELECT, and see `results export`")
    # A PIVOT is several statements that ask one thing.
    if [statement.type.name for statement in statements].count("SELECT") > 1:
        raise ConfigError(f"{sql!r} asks {len(statements)} questions and one is answered; ask one at a time")


def select(
    output_dir: Path, filters: Filters, *, columns: Sequence[str] = ("*",), tell: Tell = lambda _: None
) -> pa.Table:
    """Return the rows of `all_results` that `filters` let through, the latest first.

    Args:
        tell: Is told which files are no readable result.

    Raises:
        ConfigError: A date makes no sense.
        StoreError: There are no results.
    """
    import duckdb

    where, parameters = filters.where()
    sql = f"SELECT {', '.join(columns)} FROM all_results WHERE {where} ORDER BY started_utc DESC, folder DESC"
    try:
        return _answer(output_dir, sql, parameters, tell=tell)
    except duckdb.ConversionException as error:
        date = filters.since or filters.until
        raise ConfigError(f"{date!r} is no date; write 2026-01-31 or 2026-01-31T12:00") from error
    except duckdb.Error as error:
        raise StoreError(f"the results cannot be read: {' '.join(str(error).split())}") from error


def write_table(table: pa.Table, file: Path, kind: Literal["csv", "parquet"]) -> None:
    """Write a table to a file; replaces what is there.

    Raises:
        StoreError: It cannot be written.
    """
    import pyarrow.csv
    import pyarrow.parquet

    write = {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table}[kind]
    try:
        write(table, file)
    except OSError as error:
        # pyarrow puts the number, and no text of it, into what it raises.
        why = os.strerror(error.errno) if error.errno else error
        raise StoreError(f"cannot write {file}: {why}; choose another file") from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
