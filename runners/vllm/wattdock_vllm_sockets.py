"""Close vLLM's sockets before the garbage collector gets them, which would wait for ever.

A zmq context that is collected together with its sockets waits until they are closed, and they are closed only after
it. vLLM 0.26 leaves the queues to the workers of a split model to the collector; 0.32 closes them itself.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_sockets() -> tuple[zmq.Socket, ...]:
    """Return this process's sockets; while they are held, neither they nor their contexts are collected."""
    # The engine's start froze all that was there, and what is frozen is not listed.
    gc.unfreeze()
    sockets = tuple(found for found in gc.get_objects() if issubclass(type(found), zmq.Socket))
    gc.freeze()
    return sockets


def close_sockets(sockets: Iterable[zmq.Socket]) -> None:
    """Close them; what they have not sent is dropped."""
    for socket in sockets:
        socket.close(linger=0)
