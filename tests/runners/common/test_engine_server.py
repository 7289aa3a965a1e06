"""Where an engine's own server listens, and how it ends before it does."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import ROOT

from wattdock_runner import engine_server
from wattdock_runner.errors import InvalidRequest, OutOfMemory, RunnerFault, WorkerDied

if TYPE_CHECKING:
    from pathlib import Path

PATHS = {"PYTHONPATH": f"{ROOT / 'runners/common'}:{ROOT / 'proto'}"}


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
    with pytest.raises(fault, match="the engine's server did not start: it ended with code") as caught:  # noqa: SIM117
        with engine_server.loading(program, "", PATHS) as server:
            server.until(lambda: None)
    assert type(caught.value) is fault


SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(status() if callable(status) else status)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("time.sleep(1.5)\nstatus = 200", "it does not answer ([Errno 111] Connection refused)"),
        ("status = iter([503] * 8 + [200]).__next__", "it does not answer (Service Unavailable)"),
    ],
    ids=["no port", "not ready"],
)
def test_a_server_that_does_not_answer_is_waited_for_and_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, why: str
) -> None:
    """A real server that opens its port late, or answers that it is not ready."""
    (program := tmp_path / "server.py").write_text(f"import time\n{lines}\n{SERVE}")
    monkeypatch.setattr(engine_server, "TELL_S", 0.3)
    told: list[str] = []
    with engine_server.loading(program, "", PATHS) as server:
        assert server.until(lambda: server.text("/health"), told.append, workers=b"worker") == ""
        server.end()
    assert why in {line.partition(" s: ")[2] for line in told}


@pytest.mark.parametrize(
    ("lines", "fault", "said"),
    [
        # As where a lost rank leaves the others, and the server that waits for them, in NCCL.
        ("child.kill()", WorkerDied, "loading"),
        ("print('Scheduler hit an exception: Traceback')\nprint('ValueError: no')", InvalidRequest, "ValueError: no"),
        ("print('Scheduler hit an exception: CUDA out of memory')", OutOfMemory, "CUDA out of memory"),
    ],
    ids=["its worker is gone", "its log says so", "for lack of memory"],
)
def test_a_server_that_hangs_after_its_engine_has_failed_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, fault: type[RunnerFault], said: str
) -> None:
    """By the loss of a child that it needs, or by its log; it gets a moment to end by itself."""
    child = "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'worker'])"
    start = f"import subprocess, sys, time\nprint('loading', flush=True)\n{child}\ntime.sleep(1)\n"
    (program := tmp_path / "server.py").write_text(f"{start}{lines}\nsys.stdout.flush()\ntime.sleep(60)\n")
    monkeypatch.setattr(engine_server, "FAILED_S", 0.5)
    with pytest.raises(fault, match=f"{said}") as caught:  # noqa: SIM117
        with engine_server.loading(program, "", PATHS) as server:
            server.until(lambda: server.text("/health"), failure="Scheduler hit an exception", workers=b"worker")
    assert type(caught.value) is fault
    assert server.process.returncode < 0
