"""Where an engine's own server listens."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from wattdock_runner import engine_server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_no_connection_can_take_a_servers_port_while_the_engine_starts() -> None:
    """That takes minutes, in which other programs of the host are given ports of the kernel's range."""
    first_of_range = int(engine_server.PORT_RANGE.read_text().split()[0])
    ports = {engine_server.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert max(ports) < first_of_range


def test_a_port_that_is_taken_is_not_given_and_without_one_below_the_range_the_kernel_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of a host may begin with the first port that a user may have."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(engine_server, "PORT_RANGE", tmp_path / "range")
        monkeypatch.setattr(engine_server, "FIRST_PORT", port)
        (tmp_path / "range").write_text(f"{port + 1}\t65535\n")
        assert engine_server.free_port() != port
        for content in ("1024\t65535\n", ""):
            (tmp_path / "range").write_text(content)
            assert engine_server.free_port() != port
