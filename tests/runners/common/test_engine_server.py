"""Where an engine's own server listens, and how it ends before it does."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import ROOT

from wattdock_runner import engine_server
from wattdock_runner.errors import InvalidRequest, RunnerFault, WorkerDied

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("print('loading', flush=True); os.kill(os.getpid(), 9)", WorkerDied),
        # As SGLang's, which kills itself with its children after the error of one of them.
        ("print('ValueError: no such dtype', flush=True); os.kill(os.getpid(), 9)", InvalidRequest),
        ("raise SystemExit('loading')", InvalidRequest),
    ],
)
def test_a_server_that_is_killed_while_it_loads_is_no_wrong_setting(
    tmp_path: Path, lines: str, fault: type[RunnerFault]
) -> None:
    """A refused setting is said in words, and ends the command with another code."""
    (program := tmp_path / "server.py").write_text(f"import os\n{lines}\n")
    paths = {"PYTHONPATH": f"{ROOT / 'runners/common'}:{ROOT / 'proto'}"}
    with pytest.raises(fault, match="the engine's server did not start: it ended with code") as caught:  # noqa: SIM117
        with engine_server.loading(program, "", paths) as server:
            server.until(lambda: None)
    assert type(caught.value) is fault
