"""Images on their way to a registry and back, on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from containers.engines import engine_address, image_labels, tagged

from wattdock.launch.images.registry import push_image, registry_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from docker import DockerClient


@pytest.fixture
def names(client: DockerClient, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two images of the same commit with other bits, as two builds make them."""
    with tagged("first") as first, tagged("second") as second:
        for name in (first, second):
            (tmp_path / "built").write_text(name)
            (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY built /built\n")
            client.images.build(path=str(tmp_path), tag=name, labels=image_labels("abc"))
        yield first, second


def test_a_second_build_of_the_same_commit_leaves_the_first_its_tag(
    names: tuple[str, str], registry: str, client: DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registries remove what has no tag, and the first may be what a paper names."""
    monkeypatch.setenv("DOCKER_HOST", engine_address())
    # One run of this test must not meet another's images.
    images = [client.images.get(name) for name in names]
    pushed = []
    for image in images:
        image.tag("wattdock-transfer")
        pushed.append(push_image("transfer", registry))
    assert pushed[0] != pushed[1]
    tags = [next(tag for tag in client.images.get(image.id).tags if tag.startswith(registry)) for image in images]
    assert [f"{registry}/wattdock-transfer@{registry_digest(tag)}" for tag in tags] == pushed
    for name in ("wattdock-transfer", *tags):
        client.images.remove(name)
