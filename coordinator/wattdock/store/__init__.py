"""store."""

from wattdock.store.folders import (
    LOG,
    RESTARTS,
    RESULT,
    StoredResult,
    find_stored,
    load_requests,
    load_restarts,
    load_result,
    load_table,
    store,
)
from wattdock.store.query import Filters, LeftOut, query, select, stored_backends, write_csv, write_parquet
from wattdock.store.selection import Row, chosen_rows, is_result_itself, replacement

__all__ = [
    "LOG",
    "RESTARTS",
    "RESULT",
    "Filters",
    "LeftOut",
    "Row",
    "StoredResult",
    "chosen_rows",
    "find_stored",
    "is_result_itself",
    "load_requests",
    "load_restarts",
    "load_result",
    "load_table",
    "query",
    "replacement",
    "select",
    "store",
    "stored_backends",
    "write_csv",
    "write_parquet",
]
