"""What tests reach behind the door of `publish`: a name that moves is changed here only."""

from wattdock.publish.archive import MTIME_S, pack, sha256_of
from wattdock.text import sums_of

__all__ = ["MTIME_S", "pack", "sha256_of", "sums_of"]
