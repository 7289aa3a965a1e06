"""Images for container tests, each built in a moment on one that is there."""

from __future__ import annotations

import contextlib
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import WATTDOCK, Command
from containers.engines import BASE, build_on, engine_address, home_and_folder, image_there, tagged
from containers.registry import serving
from docker.errors import APIError
from seams.launch import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from docker import DockerClient
    from docker.models.containers import Container
    from seams.launch import Image

TESTS = Path(__file__).parents[1]
PATIENCE_S = 120


@pytest.fixture(scope="session")
def standin_image() -> Iterator[Image]:
    """An image whose runner is the launcher tests' stand-in."""
    with tagged("standin") as name:
        files = {"/standin.py": TESTS / "launch/standin_runner.py"}
        # As NVIDIA's images have it.
        asks_for_all = "ENV NVIDIA_VISIBLE_DEVICES=all"
        yield build_on(BASE, name, files, asks_for_all, 'ENTRYPOINT ["python3", "/standin.py"]')


# A gigabyte less than all: what the fake backend needs of the PyTorch image.
SHARED = """\
FROM wattdock-pytorch AS whole
RUN mkdir -p /some/runners /some/packages && cp -r /opt/wattdock/proto /some && \
    cp -r /opt/wattdock/runners/common /some/runners && cd /opt/wattdock/packages && \
    cp -r grpc grpcio-* google protobuf-* typing_extensions* /some/packages"""


@pytest.fixture(scope="session")
def fake_image() -> Iterator[Image]:
    """An image with the fake backend, and with what the PyTorch one has of wattdock."""
    image_there("wattdock-pytorch")
    with tagged("fake") as name:
        path = ":".join(f"/opt/wattdock/{folder}" for folder in ("proto", "runners/common", "runners/fake", "packages"))
        files = {"/opt/wattdock/runners/fake": TESTS / "runners/fake"}
        instructions = (
            "COPY --from=whole /some /opt/wattdock",
            f"ENV PYTHONPATH={path}",
            'ENTRYPOINT ["python3", "-m", "wattdock_runner"]',
        )
        yield build_on(BASE, name, files, *instructions, before=SHARED)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry of this session's own; its address."""
    engine_address()
    folder = tmp_path_factory.mktemp("registry")
    with serving(folder) as address:
        yield address
    shutil.rmtree(folder)


@dataclass(frozen=True, kw_only=True)
class InContainers(Command):
    """The installed `wattdock` of a user who may use the engine, with runners in containers of one image."""

    image: Image
    client: DockerClient

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().env({"DOCKER_HOST": self.image.engine.address, **(more or {})})

    def words(self, *args: str | Path) -> list[str | Path]:
        in_container = ("--launcher", "docker", "--set", f"container.image={self.image.name}")
        return [WATTDOCK, *args, *(in_container if args[0] == "run" else ())]

    def by_name(self) -> dict[str, dict[str, Any]]:
        """Return the results by the names of their experiments."""
        return {row["config"]["name"]: row for row in self.results()}

    def containers(self) -> list[Container]:
        """Return what there is of this user's containers, in any state."""
        made_from = {"ancestor": self.image.name}
        return [*self.client.containers.list(all=True, filters=made_from, ignore_removed=True)]

    def none_within(self, seconds: float) -> bool:
        """Whether all of them are gone before so many seconds have passed."""
        deadline_s = time.monotonic() + seconds
        while self.containers() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return not self.containers()

    def wait_for_container(self, *besides: Container) -> Container:
        """Return the one container besides those, once its runner is in a pass."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for container in self.containers():
                # Between the list and the question it may have gone.
                with contextlib.suppress(APIError):
                    if container not in besides and b"Generate: began" in container.logs():
                        return container
            time.sleep(0.05)
        raise AssertionError("no container came into a pass")


@pytest.fixture(scope="session")
def client() -> Iterator[DockerClient]:
    """A client of the engine, to look at it from beside the coordinator."""
    with closing(connect(engine_address())) as connected:
        yield connected


@pytest.fixture
def in_containers(tmp_path: Path, fake_image: Image, client: DockerClient) -> Iterator[InContainers]:
    """The command with the fake backend, and a folder of its own."""
    yield (command := InContainers(*home_and_folder(tmp_path), image=fake_image, client=client))
    for container in command.containers():
        with contextlib.suppress(APIError):
            container.remove(force=True)
