"""Results on disk: whole folders, never overwritten; found by name, read back, and asked in SQL as one table.

In: an `ExperimentResult` with its restarts' records; a name, a study, a folder, a bundle, or a SELECT. Out: a
`StoredResult` with its restarts, and the tidy table of results, a `Row` each (`COLUMNS`).
A new column is a field of `Row`; `TABLES` says in which tables people see it.
Must not know: how results are measured, drawn or bundled.
"""

from wattdock.store.folders import StoredResult, load_result, store_result
from wattdock.store.query import all_rows, matching, query
from wattdock.store.selection import find_results
from wattdock.store.table import COLUMNS, TABLES, Row

__all__ = [
    "COLUMNS",
    "TABLES",
    "Row",
    "StoredResult",
    "all_rows",
    "find_results",
    "load_result",
    "matching",
    "query",
    "store_result",
]
