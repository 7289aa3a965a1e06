"""Images as they are built, and on their way to a registry and back: a real engine, client and registry."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from containers.engines import engine_address, image_labels, tagged

from wattdock.launch.engine import find_containers
from wattdock.launch.images import ImagesLock, build_image
from wattdock.launch.images import build as building
from wattdock.launch.images.registry import push_image, registry_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient

# Debian's has BuildKit; a client that lies before it on the path may not.
CLIENT = "/usr/bin/docker"
DOCKERFILE = """\
ARG BASE=absent
FROM ${BASE}
ARG VARIANT=cuda
ARG VERSION
ARG REVISION
COPY --chmod=755 docker/NAME.Dockerfile /own
LABEL org.opencontainers.image.revision="${REVISION}"
"""


@pytest.fixture
def image_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an image that only one test builds, in a folder that is no git checkout."""
    monkeypatch.setenv("DOCKER_HOST", engine_address())
    monkeypatch.delenv("WATTDOCK_REVISION", raising=False)
    if not Path(CLIENT).exists():
        pytest.skip(f"needs Debian's client at {CLIENT}")
    name = f"own-{secrets.token_hex(4)}"
    (tmp_path / "docker").mkdir()
    (tmp_path / f"docker/{name}.Dockerfile").write_text(DOCKERFILE.replace("NAME", name))
    (tmp_path / f"docker/{name}.Dockerfile").chmod(0o600)
    (tmp_path / ".dockerignore").touch()
    monkeypatch.setattr(building, "REPO", tmp_path)
    monkeypatch.setattr(building, "DOCKER", tmp_path / "docker")
    return name


def test_an_image_says_what_it_was_built_on_also_outside_a_git_checkout(
    image_name: str, client: DockerClient, tmp_path: Path
) -> None:
    """A base of no registry has a name and no digest; the commit is unknown, and nothing has to be set for that."""
    with tagged("base") as base:
        folder = tmp_path / "base"
        folder.mkdir()
        (folder / "content").write_text(base)
        (folder / "Dockerfile").write_text("FROM scratch\nCOPY content /content\n")
        client.images.build(path=str(folder), tag=base, rm=True)
        layers = client.images.get(base).attrs["RootFS"]["Layers"]
        try:
            build_image(image_name, ImagesLock(tmp_path, {}, ""), variant="cpu", base=base, client=CLIENT)
            built = client.images.get(f"wattdock-{image_name}")
            assert built.attrs["RootFS"]["Layers"][: len(layers)] == layers
            image = find_containers(f"wattdock-{image_name}", backend=image_name).image
            assert (image.base, image.base_digest, image.revision) == (base, None, None)
        finally:
            client.images.remove(f"wattdock-{image_name}", force=True)


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
