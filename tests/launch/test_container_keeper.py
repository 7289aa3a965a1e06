"""The process that removes a container when its coordinator is gone, on an engine that is slow to oblige."""

from __future__ import annotations

import socketserver
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from wattdock.launch.process import KEEPER

if TYPE_CHECKING:
    from pathlib import Path


def keeper_beside(answers: list[int], tmp_path: Path) -> tuple[list[str], Path]:
    """Let a keeper's coordinator vanish before an engine that answers so, and return what the engine was asked."""
    asked: list[str] = []

    class Engine(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            asked.append(self.path)
            self.send_response(answers.pop(0))
            self.end_headers()

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path / "socket"
    folder.mkdir()
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "e.sock"), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [*KEEPER, "container", str(tmp_path / "e.sock"), "abc", str(folder)]
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=True)
        server.shutdown()
    return asked, folder


def test_a_keeper_asks_until_the_container_is_gone(tmp_path: Path) -> None:
    """It holds the leases meanwhile: whoever gets the GPUs next must not find the container on them."""
    asked, folder = keeper_beside([500, 409, 404], tmp_path)
    assert asked == ["/containers/abc?force=true&v=true"] * 3
    assert not folder.exists()
