"""What tests reach behind the door of `planning`: a name that moves is changed here only."""

from wattdock.planning.eta import Remaining, duration, pass_seconds, words
from wattdock.planning.preflight import _Host
from wattdock.planning.running_server import find_server

__all__ = ["Remaining", "_Host", "duration", "find_server", "pass_seconds", "words"]
