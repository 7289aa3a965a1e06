"""Where an engine's own server listens."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from wattdock_runner import engine_server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_no_connection_can_take_a_servers_port_unless_no_other_port_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives ports of its range to connections; a host's range may begin with the first port of users."""
    ports = {engine_server.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) < int(engine_server.PORT_RANGE.read_text().split()[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(engine_server, "PORT_RANGE", tmp_path / "range")
        monkeypatch.setattr(engine_server, "FIRST_PORT", port)
        for content in (f"{port + 1}\t65535\n", "1024\t65535\n", ""):
            (tmp_path / "range").write_text(content)
            assert engine_server.free_port() != port
