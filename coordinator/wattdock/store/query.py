"""Filter stored results, and query them in SQL where they are.

A query sees the table `results`, without what a later attempt of the same study replaces; the restarts' Parquet files
it names itself, as DuckDB reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError
from wattdock.store.folders import readable_results, result_folders
from wattdock.store.table import Row, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from wattdock.store.folders import Warn

# DuckDB's names of statements that only read; MULTI is a PIVOT. EXPLAIN ANALYZE runs what it explains.
READ_ONLY = {"SELECT", "MULTI"}
# A SELECT can call functions that change settings, one of which is a file to write a profile to.
LOCKED = "SET lock_configuration = true"
# A SELECT from an address would have DuckDB fetch an extension for it; one from a Python name would read our variables.
ENGINE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,
}


def matching(rows: Sequence[Row], where: str | None, *, superseded: bool = False) -> list[Row]:
    """Return the rows that a condition holds for.

    Args:
        where: On the table's columns, in SQL; None lets all through.
        superseded: Also return what a later attempt of the same study replaces.

    Raises:
        ConfigError: The condition is wrong.
    """
    import duckdb

    folders = {row.folder for row in rows}
    if where is not None:
        # A comment in it ends with its line.
        sql = f"SELECT folder FROM results WHERE ({where}\n)"
        try:
            folders = set(_answer(rows, sql)["folder"].to_pylist())
        except duckdb.Error as error:
            raise ConfigError(f"where: {' '.join(str(error).split())}") from error
    return [row for row in rows if row.folder in folders and (superseded or not row.superseded)]


def select(
    output_dir: Path, where: str | None = None, *, superseded: bool = False, warn: Warn = lambda _: None
) -> list[Row]:
    """Return the rows of the table of results that match, the latest first.

    Args:
        where, superseded: As `matching` takes them.
        warn: Receives a line about each result that is left out because it cannot be read.

    Raises:
        ConfigError: The condition is wrong, or there are no results.
    """
    if not (folders := result_folders(output_dir)):
        remedy = "measure some (wattdock run), or name --output-dir"
        raise ConfigError(f"no results in {output_dir.absolute()}", remedy, cause=Cause.EMPTY)
    stored_results = readable_results(folders, lambda problem: warn(f"{problem}; left out"))
    rows = in_order([stored.row for stored in stored_results])
    return matching(rows, where, superseded=superseded)


def query(output_dir: Path, sql: str, *, warn: Warn = lambda _: None) -> pa.Table:
    """Return the answer to one SELECT over the table `results` and files.

    Args:
        warn: Receives a line about each result that the answer lacks.

    Raises:
        ConfigError: The SQL is wrong, with what DuckDB says of it, or is not one SELECT.
        ConfigError: There are no results.
    """
    import duckdb

    try:
        return _answer(select(output_dir, warn=warn), sql)
    # A name of a column that is no text is a RuntimeError.
    except (duckdb.Error, RuntimeError) as error:
        raise ConfigError(f"the query failed: {' '.join(str(error).split())}") from error


def _answer(rows: Sequence[Row], sql: str) -> pa.Table:
    """Return the answer to a query over the rows as `results`."""
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
        connection.register("results", Row.table(rows))
        connection.execute(LOCKED)
        if (answer := connection.sql(sql)) is None:
            raise ConfigError("the query is empty", "write a SELECT")
        return answer.to_arrow_table()
