"""Images pinned by the digest that a registry knows them by, on a real registry on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import PreflightError
from wattdock.launch.container import Limits
from wattdock.launch.docker import DockerLauncher
from wattdock.launch.engine import Containers, find_containers
from wattdock.launch.protocol import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from docker import DockerClient

CONFIG = """
version: 0.1
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "127.0.0.1:%d"}
"""


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def registry(tmp_path: Path, standin_image: Containers) -> Iterator[str]:
    """A registry of its own; its address. The engine must be this machine's to reach it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs Debian's docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "registry.yml").write_text(CONFIG % (tmp_path / "registry", port))
    command = [program, "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + 20
        while not answers(port):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        process.terminate()


def test_an_image_named_by_digest_is_that_image_or_none(
    registry: str, standin_image: Containers, client: DockerClient, tmp_path: Path
) -> None:
    """A tag that moved does not count; the row can name what anybody can get."""
    repository = f"{registry}/wattdock-pinned"
    client.images.get(standin_image.image.name).tag(repository, "latest")
    client.images.push(repository, tag="latest")
    pinned = find_containers(repository, backend="fake").image.digest
    assert pinned is not None
    assert pinned.startswith(f"{repository}@sha256:")
    found = find_containers(pinned, backend="fake")
    assert (found.image.id, found.image.digest) == (standin_image.image.id, pinned)
    spec = LaunchSpec(backend="good", runner_dir=tmp_path, log_path=tmp_path / "runner.log")
    with DockerLauncher(found, cache=tmp_path / "cache", limits=Limits()).launch(spec) as runner:
        assert runner.alive()
        runner.kill()
    client.images.remove(repository, force=True)
    with pytest.raises(PreflightError, match="is not there"):
        find_containers(pinned[:-4] + "0000", backend="fake")
