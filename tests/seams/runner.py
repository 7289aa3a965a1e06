"""What tests reach behind the door of `runner`: a name that moves is changed here only."""

from wattdock.runner import wire
from wattdock.runner.client import CAUSE_KEY
from wattdock.runner.marks import Marks
from wattdock.runner.wire import generate_requests

__all__ = ["CAUSE_KEY", "Marks", "generate_requests", "wire"]
