"""The hash of a prompt's ids: runners tell it of what an engine was given, the coordinator of what was to be sent.

Needs the standard library only.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def packed(numbers: Sequence[int]) -> bytes:
    """Return numbers as little-endian uint32s.

    Raises:
        OverflowError: A number is no uint32.
    """
    ids = array("I", numbers)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def hash_of(ids: Sequence[int]) -> int:
    """Return the hash of a prompt's ids, as `prompt_hash` in runner.proto explains it."""
    return int.from_bytes(hashlib.sha256(packed(ids)).digest()[:8], "big")
