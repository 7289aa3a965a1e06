"""Wait beside a coordinator for its end, and remove its runner's container should it end without doing so.

A program of its own: `python -I -S container_keeper.py ENGINE_SOCKET CONTAINER_ID SOCKET_FOLDER`. Its standard input is
a pipe whose other end only the coordinator holds. A line there means that all is done; its end alone, that the
coordinator was killed. The standard library only, and nothing of wattdock: it must start in milliseconds.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import socket
import sys
import time

ANSWER_TIMEOUT_S = 60
# An engine that is being started again answers after seconds.
PATIENCE_S, PAUSE_S = 60.0, 0.5
GONE = (http.client.NO_CONTENT, http.client.NOT_FOUND)


class _Engine(http.client.HTTPConnection):
    """HTTP over an engine's Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket in place of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def main() -> None:
    """Wait, and clean up if nobody else did."""
    engine_socket, container_id, folder = sys.argv[1:]
    # What ends a whole session, as at log-out, must not end its cleaner first.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1):
        return
    deadline_s = time.monotonic() + PATIENCE_S
    while not removed(engine_socket, container_id) and time.monotonic() < deadline_s:
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def removed(engine_socket: str, container_id: str) -> bool:
    """Ask the engine to remove the container; return whether it is gone.

    Source: Docker Engine API, DELETE /containers/{id}; `force` kills it first, 409 means that its removal goes on.
    """
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(_Engine(engine_socket)) as engine:
        engine.request("DELETE", f"/containers/{container_id}?force=true&v=true")
        return engine.getresponse().status in GONE
    return False


if __name__ == "__main__":
    main()
