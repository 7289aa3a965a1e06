"""Filter stored results, and query them in SQL where they are.

Views of a query: `results` (a row each), `passes` (a row per measured pass), `requests`, `steps` and `timeline` (the
restarts' Parquet files), each without results that a later attempt of the same study replaces.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.opening import proc_path
from wattdock.store.completeness import lacking, once
from wattdock.store.folders import opened_restarts, readable_results, result_folders
from wattdock.store.table import TABLES, Row, in_order, passes_table, replaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from wattdock.analysis import ExperimentResult
    from wattdock.store.folders import StoredResult, Warn

# Views over the restarts' Parquet files of that name.
PARQUET = ("requests", "steps", "timeline")
# A restart's file → the result's folder.
RESULT_FOLDER = "regexp_replace(parse_dirpath(filename), '/restarts/[^/]*$', '')"
# Passes below 0 answer the questions of `quality:`; the timeline has rows outside of passes, too.
PASSES_ONLY = dict.fromkeys(("requests", "steps"), " WHERE coalesce(pass, 0) >= 0")
# DuckDB's names of statements that only read; MULTI is a PIVOT. EXPLAIN ANALYZE runs what it explains.
READ_ONLY = {"SELECT", "MULTI"}
# A SELECT can call functions that change settings, one of which is a file to write a profile to.
LOCKED = "SET lock_configuration = true"
# A SELECT from an address would have DuckDB fetch an extension for it; one from a Python name would read our variables.
ENGINE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}


def matching(
    rows: Sequence[Row],
    where: str | None,
    *,
    superseded: bool = False,
    failed: bool = True,
    left_out: dict[str, int] | None = None,
) -> list[Row]:
    """Return the rows that a condition holds for.

    Args:
        where: On the table's columns, in SQL; None lets all through.
        superseded: Also return what a later attempt of the same study replaces, as where the condition names this.
        failed: Also return failures, as where the condition names their status or cause.
        left_out: Receives how many rows "superseded" and "failed" leave out, each row under the first.

    Raises:
        ConfigError: The condition is wrong.
    """
    import duckdb

    folders, named = {row.folder for row in rows}, {*re.findall(r"\w+", (where or "").lower())}
    superseded, failed = superseded or "superseded" in named, failed or bool(named & {"status", "error_cause"})
    if where is not None:
        # A comment in it ends with its line.
        sql = f"SELECT folder FROM results WHERE ({where}\n)"
        try:
            folders = set(_answer({"results": Row.table(rows)}, {}, sql)["folder"].to_pylist())
        except duckdb.Error as error:
            names = f"texts are 'ok', columns: {', '.join(TABLES['list'])}; `wattdock results query 'DESCRIBE results'`"
            remedy = f"{names} shows all" if isinstance(error, duckdb.BinderException) else None
            raise ConfigError(f"where: {' '.join(str(error).split())}", remedy) from error
    found = [row for row in rows if row.folder in folders]
    current = [row for row in found if superseded or not row.superseded]
    shown = [row for row in current if failed or row.status != "failed"]
    if left_out is not None:
        left_out |= {"failed": len(current) - len(shown), "superseded": len(found) - len(current)}
    return shown


def all_rows(output_dir: Path, *, again: bool = False, warn: Warn = lambda _: None) -> list[Row]:
    """Return the rows of the table of results, the latest first.

    Args:
        again: Whether the records are analysed again.
        warn: Receives a line about each result that is left out because it cannot be read.

    Raises:
        ConfigError: There are no results.
    """
    as_stored: list[Row] = []
    rows = [stored.row for stored in _all_results(output_dir, as_stored, again=again, warn=warn)]
    return in_order(rows, replaced(as_stored))


def _all_results(output_dir: Path, rows: list[Row], *, again: bool, warn: Warn) -> Iterator[StoredResult]:
    """Yield every readable result; `rows` receive each as it is stored: another version may know it by another id."""
    if not (folders := result_folders(output_dir)):
        remedy = "measure some (wattdock run), or name --output-dir"
        raise ConfigError(f"no results in {output_dir.absolute()}", remedy, cause=Cause.EMPTY)
    readable = readable_results(folders, lambda problem: warn(f"{problem}; left out"))
    for stored, row in once(((stored, stored.row) for stored in readable), warn):
        rows.append(row)
        try:
            yield stored.analysed_again() if again else stored
        except StoreError as error:
            warn(f"{error}; left out")
    # What was never measured stands in no list.
    lacking([(output_dir, row) for row in rows], warn, unmeasured=False)


def query(output_dir: Path, sql: str, *, again: bool = False, warn: Warn = lambda _: None) -> pa.Table:
    """Return the answer to one SELECT over the views.

    Args:
        again: As `all_rows` takes it.
        warn: Receives a line about each result or file that the answer lacks.

    Raises:
        ConfigError: There are no results, or the SQL is wrong, with what DuckDB says of it, or is not one SELECT.
    """
    import duckdb

    every, as_stored = list[Row](), list[Row]()
    results: dict[str, ExperimentResult] = {}
    views = [name for name in ("passes", *PARQUET) if name in sql.lower()]
    for stored in _all_results(output_dir, as_stored, again=again, warn=warn):
        every.append(stored.row)
        if views:
            results[every[-1].folder] = stored.result
    rows = [row for row in in_order(every, replaced(as_stored)) if not row.superseded]
    tables, found = {"results": Row.table(rows)}, [(Path(row.folder), results[row.folder]) for row in rows if views]
    if "passes" in views:
        tables["passes"] = passes_table(found)
    files = {name: _parquet_files(found, name, warn) for name in views if name in PARQUET}
    try:
        return _answer(tables, files, sql)
    # A name of a column that is no text is a RuntimeError.
    except (duckdb.Error, RuntimeError) as error:
        raise ConfigError(f"the query failed: {' '.join(str(error).split())}") from error


def _parquet_files(results: Sequence[tuple[Path, ExperimentResult]], name: str, warn: Warn) -> list[Path]:
    """Return the readable files of one view; `warn` hears of a lost or damaged one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = []
    for folder, result in results:
        try:
            for restart in opened_restarts(folder, result, f"{name}.parquet"):
                file = restart.path / f"{name}.parquet"
                try:
                    # A pipe would be waited for.
                    with restart.file(file.name) as content, pq.ParquetFile(proc_path(content)) as opened:
                        _ = opened.schema_arrow.names
                    paths.append(file)
                except FileNotFoundError:
                    warn(f"{file}: is missing; left out of {name}")
                except (OSError, ValueError, pa.ArrowException) as error:
                    warn(f"{file}: cannot be read ({' '.join(str(error).split())}); left out of {name}")
        except StoreError as error:
            warn(f"{error}; left out of {name}")
    return paths


def _answer(tables: dict[str, pa.Table], files: dict[str, list[Path]], sql: str) -> pa.Table:
    """Return the answer to a query; a file may lack columns that others have."""
    import duckdb

    with duckdb.connect(config=ENGINE) as connection:
        # Several queries, or a statement that could overwrite results or fetch code, are refused before any is run.
        statements = connection.extract_statements(sql)
        for statement in statements:
            if statement.type.name not in READ_ONLY:
                query = statement.query.strip()
                raise ConfigError(f"{query!r} is not a SELECT", "`wattdock results export` writes files")
        # A PIVOT is several statements, one of which is a SELECT.
        if [statement.type.name for statement in statements].count("SELECT") > 1:
            raise ConfigError(f"{sql!r} holds {len(statements)} queries", "write one at a time")
        for name, table in tables.items():
            connection.register(name, table)
        for name, paths in files.items():
            if paths:
                quoted = ", ".join("'" + glob.escape(str(path)).replace("'", "''") + "'" for path in paths)
                connection.execute(
                    f"CREATE VIEW {name} AS SELECT {RESULT_FOLDER} AS folder, * EXCLUDE filename "
                    f"FROM read_parquet([{quoted}], filename = true, union_by_name = true){PASSES_ONLY.get(name, '')}"
                )
        connection.execute(LOCKED)
        if (answer := connection.sql(sql)) is None:
            raise ConfigError("the query is empty", "write a SELECT")
        return answer.to_arrow_table()
