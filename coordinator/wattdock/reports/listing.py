"""Stored results and answers to queries, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.reports.terminal import NOTHING, Sheet, console
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    import pyarrow as pa

# Column of `results` → heading and format.
SHOWN = {
    "started_utc": ("started (UTC)", "%Y-%m-%d %H:%M"),
    "name": ("experiment", ""),
    "status": ("status", ""),
    "backend": ("backend", ""),
    "model": ("model", ""),
    "gpus": ("GPUs", ""),
    "batch_size": ("batch", ""),
    "output_tokens_per_s": ("tokens/s", ",.1f"),
    "energy_per_output_token_j": ("J/token", ".4g"),
    "publishable": ("publishable", ""),
    "folder": ("folder", ""),
}
# A table of more takes minutes to lay out and nobody reads it.
MOST_ROWS = 1_000
NUMBERS = {"batch_size", "output_tokens_per_s", "energy_per_output_token_j"}


def print_results(found: pa.Table, *, limit: int) -> None:
    """Print the first `limit` rows of `results`, and how many there are."""
    rows = []
    for row in found.slice(0, limit).select(list(SHOWN)).to_pylist():
        row["folder"] = row["folder"].rpartition("/")[2]
        rows.append([_cell(row[name], form) for name, (_, form) in SHOWN.items()])
    headings = {name: heading for name, (heading, _) in SHOWN.items()}
    out = console()
    out.print(Sheet([*headings.values()], rows))
    more = f", the latest {limit} shown; --limit shows more" if found.num_rows > limit else ""
    out.print(f"{pluralize(found.num_rows, 'result')}{more}", style="dim")


def print_rows(rows: pa.Table) -> None:
    """Print the first rows of any table, every column, and how many there are where that is not all."""
    # Of columns that are called the same, a list of objects would hold the last only.
    columns = [column.to_pylist() for column in rows.slice(0, MOST_ROWS).columns]
    cells = [[_cell(value, "") for value in row] for row in zip(*columns, strict=True)]
    out = console()
    out.print(Sheet(rows.column_names, cells))
    if rows.num_rows > MOST_ROWS:
        out.print(f"{rows.num_rows:,} rows, the first {MOST_ROWS:,} shown; --json shows all", style="dim")


def print_rows_json(rows: pa.Table) -> None:
    """Print any table as a JSON list of objects."""
    print_json(rows.to_pylist(), default=str)


def _cell(value: Any, form: str) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, form)
