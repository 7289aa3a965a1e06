"""store."""

from wattdock.store.folders import LOG, REQUESTS, RESULT, TIMELINE, find_stored, load_requests, load_result, store
from wattdock.store.query import Filters, LeftOut, query, select, stored_backends, write_csv, write_parquet
from wattdock.store.reread import load_restarts
from wattdock.store.selection import Row, chosen_rows, is_result_itself, replacement
from wattdock.store.tables import CLOCK, COUNTER, TOKENS
from wattdock.store.upgrade import upgraded

__all__ = [
    "CLOCK",
    "COUNTER",
    "LOG",
    "REQUESTS",
    "RESULT",
    "TIMELINE",
    "TOKENS",
    "Filters",
    "LeftOut",
    "Row",
    "chosen_rows",
    "find_stored",
    "is_result_itself",
    "load_requests",
    "load_restarts",
    "load_result",
    "query",
    "replacement",
    "select",
    "store",
    "stored_backends",
    "upgraded",
    "write_csv",
    "write_parquet",
]
