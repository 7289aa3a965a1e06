"""Results on disk: whole folders, never overwritten; found by name, read back, and asked in SQL as one table.

In: an `ExperimentResult` with its restarts' records; a name, a study, a folder, a bundle, or a SELECT. Out: a
`StoredResult`, its tables, and rows of the table of all results.
Must not know: how results are measured, drawn or bundled.
"""

from wattdock.store.folders import (
    RESULT,
    StoredResult,
    load_restarts,
    load_result,
    store_result,
)
from wattdock.store.query import Filters, LeftOut, query, select, write_table
from wattdock.store.selection import find_results, is_named, replacement

__all__ = [
    "RESULT",
    "Filters",
    "LeftOut",
    "StoredResult",
    "find_results",
    "is_named",
    "load_restarts",
    "load_result",
    "query",
    "replacement",
    "select",
    "store_result",
    "write_table",
]
