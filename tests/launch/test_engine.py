"""Whether containers can be started, asked through the real SDK, and what an engine says of itself."""

from __future__ import annotations

import hashlib
import json
import os
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import unprivileged
from refused import raises
from seams.launch import engine_address, engine_from

from wattdock.config import ContainerSpec, ExperimentConfig
from wattdock.errors import Cause
from wattdock.host import Machine
from wattdock.launch import LauncherChoice, NoContainersError, choose_launcher
from wattdock.launch.images import find_image

if TYPE_CHECKING:
    from collections.abc import Iterator

# A server ends within it.
POLL_S = 0.02
PROBE = """
from wattdock.launch.engine import NoContainersError, find_image
try:
    find_image("any", backend="fake")
except NoContainersError as error:
    print(error)
"""


class Engine(BaseHTTPRequestHandler):
    """Answers the two questions a probe asks, in the engine's own format."""

    def do_GET(self) -> None:
        images = {
            "wattdock-here": {"Id": "sha256:1", "RepoTags": ["wattdock-here:latest"]},
            "wattdock-cpu": {"Id": "sha256:4", "Config": {"Labels": {"wattdock.variant": "cpu"}}},
            "wattdock-pulled": {"Id": "sha256:2", "RepoDigests": ["example/x@sha256:3"]},
        }
        if self.path.endswith("/version"):
            self.answer(200, {"ApiVersion": "1.41", "Version": "20.10.24"})
        elif self.path.endswith("/info"):
            self.answer(200, {"SecurityOptions": ["name=seccomp,profile=default"]})
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


DEFAULT_ENGINE = "unix:///var/run/docker.sock"


@pytest.mark.parametrize(
    ("variables", "current", "address"),
    [
        ({}, None, DEFAULT_ENGINE),
        ({}, "default", DEFAULT_ENGINE),
        ({}, "rootless", "unix:///run/user/1000/docker.sock"),
        ({"DOCKER_CONTEXT": "far"}, "rootless", "ssh://far"),
        ({"DOCKER_CONTEXT": "default"}, "rootless", DEFAULT_ENGINE),
        ({"DOCKER_CONTEXT": "far", "DOCKER_HOST": "unix:///own"}, "rootless", "unix:///own"),
        ({}, "gone", "Docker's context 'gone' names no engine"),
    ],
)
def test_the_engine_is_the_one_that_the_docker_command_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], current: object, address: str
) -> None:
    """A rootless engine and Docker Desktop are contexts, which their installers make current."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": str(tmp_path)} | variables).items():
        monkeypatch.setenv(name, value)
    for context, host in {"rootless": "unix:///run/user/1000/docker.sock", "far": "ssh://far"}.items():
        folder = tmp_path / ".docker/contexts/meta" / hashlib.sha256(context.encode()).hexdigest()
        folder.mkdir(parents=True)
        meta = {"Name": context, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
        (folder / "meta.json").write_text(json.dumps(meta))
    (tmp_path / ".docker/config.json").write_text(json.dumps({"currentContext": current} if current else {}))
    if "://" in address:
        assert engine_address() == address
    else:
        with raises(NoContainersError, *address.split(), cause=Cause.NO_ENGINE):
            engine_address()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve an engine's socket in a folder that anybody may enter."""
    path = unprivileged.short_name(unprivileged.user_home(tmp_path)) / "e.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Engine) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield path
        server.shutdown()


def test_an_engine_with_the_image_can_serve(engine: Path) -> None:
    """The image is known by its id, and by its digest where a registry has it."""
    built, pulled = (find_image(name, backend="fake") for name in ("wattdock-here", "wattdock-pulled"))
    assert (built.engine.version, built.engine.rootless) == ("20.10.24", False)
    assert (built.id, built.digest) == ("sha256:1", None)
    assert (pulled.id, pulled.digest) == ("sha256:2", "example/x@sha256:3")


@pytest.mark.parametrize(
    ("image", "needs_gpu", "cause"),
    [("wattdock-absent", False, Cause.NO_IMAGE), ("wattdock-cpu", True, Cause.NO_ENGINE)],
)
def test_an_image_that_cannot_serve_is_named_with_the_command_that_makes_one(
    engine: Path, image: str, needs_gpu: bool, cause: Cause
) -> None:
    """It is not pulled either; an engine built for a CPU would see no GPU, and say so only after loading."""
    assert find_image("wattdock-cpu", backend="fake").labels["wattdock.variant"] == "cpu"
    with raises(NoContainersError, image, "make image-fake", cause=cause):
        find_image(image, backend="fake", needs_gpu=needs_gpu)


def chosen(home: Path, **settings: Any) -> LauncherChoice:
    container = {"image": "wattdock-here", **settings.pop("container", {})}
    config = ExperimentConfig.model_validate({"container": container, **settings})
    return choose_launcher(config, on_gpu=False, home=home, lock=lambda: pytest.fail("it asks for no locked image"))


@pytest.mark.usefixtures("engine")
def test_without_a_limit_a_container_may_take_most_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner is ended before the machine is; what was asked for is given as it is."""
    real = Machine.total_memory_bytes()
    assert real
    assert real == Machine.here().memory_total_bytes
    for total_gb, limit_gb in ((10.0, 9.0), (1000.0, 996.0)):
        monkeypatch.setattr(Machine, "total_memory_bytes", lambda gb=total_gb: gb * 1e9)
        assert chosen(tmp_path).limits == ContainerSpec(image="wattdock-here", memory_gb=limit_gb)
    asked = chosen(tmp_path, container={"memory_gb": 2_000}).limits
    assert asked == ContainerSpec(image="wattdock-here", memory_gb=2_000)
    monkeypatch.setattr(Machine, "total_memory_bytes", lambda: None)
    assert chosen(tmp_path).limits == ContainerSpec(image="wattdock-here")


@pytest.mark.usefixtures("engine")
def test_what_a_models_own_code_leaves_in_the_cache_reaches_no_other_run(tmp_path: Path) -> None:
    """Neither runs without such code nor another model's; runs of one image share a cache otherwise."""
    models: dict[str, Any] = {"a": "org/a", "b": "org/b"}
    models |= {f"{name}'s code": {"id": f"org/{name}", "trust_remote_code": True} for name in "ab"}
    caches = {name: chosen(tmp_path, model=model).cache for name, model in models.items()}
    assert caches["a"] == caches["b"] == tmp_path / f"cache-{os.getuid()}/pytorch/sha256:1"
    assert len({caches["a"], caches["a's code"], caches["b's code"]}) == 3
    assert chosen(tmp_path, model=models["a's code"]).cache == caches["a's code"]
    assert len({cache.parent for cache in caches.values()}) == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("unix://{0}/absent.sock", "no Docker engine answers at unix://{0}/absent.sock"),
        # A program that hung up, or speaks something else.
        ("unix://{0}/e.sock", "no Docker engine answers at unix://{0}/e.sock"),
        ("tcp://127.0.0.1:1", "the engine at tcp://127.0.0.1:1 cannot share a runner's socket with this machine"),
        (None, "no Docker engine answers at unix:///var/run/docker.sock"),
    ],
)
def test_where_no_engine_can_serve_the_address_is_named(
    address: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The common case on a laptop or a cluster."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    folder = unprivileged.short_name(tmp_path)
    if address:
        monkeypatch.setenv("DOCKER_HOST", address.format(folder))
    elif Path("/var/run/docker.sock").exists():
        pytest.skip("a Docker engine runs here")

    class HangUp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)

    with socketserver.UnixStreamServer(str(folder / "e.sock"), HangUp) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        with pytest.raises(NoContainersError) as refused:
            find_image("any", backend="fake")
        server.shutdown()
    assert refused.value.what == said.format(folder)


def test_a_socket_that_the_user_may_not_open_is_a_matter_of_permission(engine: Path) -> None:
    """Not being in the docker group is not the same as having no Docker; the way in is named."""
    engine.chmod(0)
    home = engine.parent
    run = unprivileged.run_as_user(
        [sys.executable, "-c", PROBE],
        env={"HOME": str(home), "DOCKER_HOST": f"unix://{engine}"},
        cwd=home,
    )
    assert "permission denied" in run.stdout
    assert "usermod" in run.stdout


def test_a_rootless_engine_names_itself_so() -> None:
    """On such an engine, root in a container is the user."""
    assert not engine_from("unix:///x", {"Version": "28.0"}, {}).rootless
    assert engine_from("unix:///x", {}, {"SecurityOptions": ["name=rootless", "name=cgroupns"]}).rootless


@pytest.mark.parametrize(
    ("version", "option", "named"),
    [
        ({"Components": [{"Name": "Podman Engine"}]}, "name=rootless", "Podman"),
        ({}, "name=userns", "userns-remap"),
        ({}, "name=selinux", "SELinux"),
    ],
)
def test_an_engine_that_would_keep_a_runner_from_its_socket_is_refused(
    version: dict[str, object], option: str, named: str
) -> None:
    """With `launcher: auto` the backend then runs as a process."""
    with raises(NoContainersError, "unix:///x", named):
        engine_from("unix:///x", version, {"SecurityOptions": ["name=seccomp,profile=default", option]})
