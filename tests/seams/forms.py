"""What tests reach behind the door of `forms`: a name that moves is changed here only."""

from wattdock.forms import Factor, HostReadings, Rung, rungs
from wattdock.forms.forms import FORMS

__all__ = ["FORMS", "Factor", "HostReadings", "Rung", "rungs"]
