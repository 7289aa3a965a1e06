"""What tests reach behind the door of `store`: a name that moves is changed here only."""

from wattdock.store.folders import LOG, readable_results

__all__ = ["LOG", "readable_results"]
