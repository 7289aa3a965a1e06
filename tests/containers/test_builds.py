"""What an image is built on when names move: a real engine and its real client."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from containers.engines import engine_address, tagged

from wattdock.launch.engine import find_containers
from wattdock.launch.images import build as building
from wattdock.launch.images import inputs
from wattdock.launch.images.bases import find_base
from wattdock.launch.images.build import Builder, build, build_environment
from wattdock.launch.images.labels import BASE_NAME, recipe_of

if TYPE_CHECKING:
    from docker import DockerClient

# Debian's has BuildKit; one that lies before it on the path may not.
CLIENT = "/usr/bin/docker"
DOCKERFILE = (
    "ARG BASE=absent\nFROM ${BASE}\nARG VARIANT=cuda\nARG VERSION\nARG REVISION\nCOPY docker/one.Dockerfile /own\n"
)


@pytest.fixture
def image_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an image that only one test builds, in a checkout of its own."""
    monkeypatch.setenv("DOCKER_HOST", engine_address())
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    if not Path(CLIENT).exists():
        pytest.skip(f"needs Debian's client at {CLIENT}")
    name = f"moved-{secrets.token_hex(4)}"
    (tmp_path / "docker").mkdir()
    (tmp_path / f"docker/{name}.Dockerfile").write_text(DOCKERFILE.replace("one", name))
    (tmp_path / ".dockerignore").touch()
    for module in (inputs, building):
        monkeypatch.setattr(module, "REPO", tmp_path)
    monkeypatch.setattr(inputs, "DOCKER", tmp_path / "docker")
    return name


def small_image(client: DockerClient, name: str, folder: Path) -> None:
    """Make an image that holds its own name."""
    folder.mkdir()
    (folder / "content").write_text(name)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY content /content\n")
    client.images.build(path=str(folder), tag=name, rm=True)


def test_an_image_is_built_on_the_base_that_it_names_though_that_name_moves_meanwhile(
    image_name: str, client: DockerClient, tmp_path: Path
) -> None:
    """The name moves after the base was looked at and before the client resolves it; nothing is left of the detour."""
    with tagged("base") as base, tagged("other") as other:
        small_image(client, base, tmp_path / "base")
        small_image(client, other, tmp_path / "other")
        below = client.images.get(base)
        mover = tmp_path / "mover"
        mover.write_text(f'#!/bin/sh\n{CLIENT} tag {other} {base}\nexec {CLIENT} "$@"\n')
        mover.chmod(0o755)
        try:
            build(image_name, variant="cpu", base=find_base(image_name, base, {}), builder=Builder(str(mover)))
            assert client.images.get(base).id != below.id
            built = client.images.get(f"wattdock-{image_name}")
            layers = below.attrs["RootFS"]["Layers"]
            assert built.attrs["RootFS"]["Layers"][: len(layers)] == layers
            recipe = recipe_of(find_containers(f"wattdock-{image_name}", backend=image_name).image.labels)
            assert recipe is not None
            assert recipe.inputs["FROM"] == below.id
            assert (recipe.build_args["BASE"], built.labels[BASE_NAME]) == (base, base)
            own = f"wattdock-base:{below.id.removeprefix('sha256:')[:12]}"
            assert not [tag for image in client.images.list() for tag in image.tags if tag.startswith(own)]
        finally:
            client.images.remove(f"wattdock-{image_name}", force=True)


def test_it_is_the_engine_with_the_base_that_builds_on_it() -> None:
    """Another builder has other images under the same names."""
    chosen = {"BUILDX_BUILDER": "elsewhere", "DOCKER_CONTEXT": "remote", "PATH": os.environ["PATH"]}
    found = build_environment(chosen, 1, engine="unix:///engine.sock")
    assert (found["BUILDX_BUILDER"], found["DOCKER_HOST"]) == ("default", "unix:///engine.sock")
    assert "DOCKER_CONTEXT" not in found
