"""What tests reach behind the door of `live`: a name that moves is changed here only."""

from wattdock.live import server
from wattdock.live.metrics import exposition

__all__ = ["exposition", "server"]
