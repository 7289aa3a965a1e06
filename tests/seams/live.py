"""What tests reach behind the door of `live`: a name that moves is changed here only."""

from wattdock.live import feed, server
from wattdock.live.metrics import exposition
from wattdock.live.peers import peer_of

__all__ = ["exposition", "feed", "peer_of", "server"]
