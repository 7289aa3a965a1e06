"""What tests reach behind the door of `forms`: a name that moves is changed here only."""

from wattdock.forms import Factor, HostReadings, Rung, rungs

__all__ = ["Factor", "HostReadings", "Rung", "rungs"]
