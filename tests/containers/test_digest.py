"""Images pinned by the digest that a registry knows them by, on a real registry on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattdock.config import ContainerSpec
from wattdock.errors import PreflightError
from wattdock.launch.docker import DockerLauncher
from wattdock.launch.engine import Containers, find_containers
from wattdock.launch.protocol import LaunchSpec

if TYPE_CHECKING:
    from pathlib import Path

    from docker import DockerClient


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
    with DockerLauncher(found, cache=tmp_path / "cache", limits=ContainerSpec()).launch(spec) as runner:
        assert runner.alive()
        runner.kill()
    client.images.remove(repository, force=True)
    with pytest.raises(PreflightError, match="is not there"):
        find_containers(pinned[:-4] + "0000", backend="fake")
