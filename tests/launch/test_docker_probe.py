"""Why Docker cannot serve, asked through the real SDK."""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import unprivileged

from wattdock.launch.docker_probe import docker_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE = "import sys; from wattdock.launch.docker_probe import docker_reason; print(docker_reason(sys.argv[1]))"


class Engine(BaseHTTPRequestHandler):
    """Answers the two questions a probe asks, in the engine's own format."""

    def do_GET(self) -> None:
        images = {"wattdock-here": {"Id": "sha256:1", "RepoTags": ["wattdock-here:latest"]}}
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.41", "Version": "20.10.24"})
        elif found := images.get(self.path.split("/")[-2]):
            self.answer(200, found)
        else:
            self.answer(404, {"message": "No such image"})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve an engine's socket in a folder that anybody may enter."""
    path = unprivileged.user_home(tmp_path) / "e.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield path
        server.shutdown()


def test_an_engine_with_the_image_can_serve(engine: Path) -> None:
    """None means: no reason against it."""
    assert docker_reason("wattdock-here") is None


def test_an_image_that_is_not_there_is_named(engine: Path) -> None:
    """It is not pulled either."""
    assert docker_reason("wattdock-absent") == "image wattdock-absent is not there"


def test_no_engine_is_named_with_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The common case on a laptop or a cluster."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    assert docker_reason("any") == f"no Docker engine answers at unix://{tmp_path}/absent.sock"


def test_a_socket_behind_which_nobody_answers_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hung up, or speaks something else, cannot run containers."""

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)

    with socketserver.UnixStreamServer(str(tmp_path / "e.sock"), HangUp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/e.sock")
        assert docker_reason("any") == f"no Docker engine answers at unix://{tmp_path}/e.sock"
        server.shutdown()


def test_without_docker_host_the_usual_socket_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason always says where it looked."""
    if Path("/var/run/docker.sock").exists():
        pytest.skip("a Docker engine runs here")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert docker_reason("any") == "no Docker engine answers at unix:///var/run/docker.sock"


def test_a_socket_that_the_user_may_not_open_is_a_matter_of_permission(engine: Path) -> None:
    """Not being in the docker group is not the same as having no Docker."""
    engine.chmod(0o600)
    home = engine.parent
    run = unprivileged.run_as_user(
        [sys.executable, "-c", PROBE, "any"],
        env={"HOME": str(home), "DOCKER_HOST": f"unix://{engine}"},
        cwd=home,
    )
    assert run.stdout == f"permission denied on unix://{engine}\n", run.stderr
