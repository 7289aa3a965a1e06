"""What tests reach behind the door of `store`: a name that moves is changed here only."""

from wattdock.store.completeness import once
from wattdock.store.folders import LOG, readable_results
from wattdock.store.query import PARQUET

__all__ = ["LOG", "PARQUET", "once", "readable_results"]
