"""What tests reach behind the door of `store`: a name that moves is changed here only."""

from wattdock.store.folders import LOG, readable_results
from wattdock.store.query import PARQUET

__all__ = ["LOG", "PARQUET", "readable_results"]
