"""The engine and images that container tests use, and what is left on it."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docker.errors import ImageNotFound
from seams.launch import connect, require_socket
from unprivileged import give_to_user, user_home

from wattdock.errors import PreflightError
from wattdock.launch.images import find_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seams.launch import Image

BASE = "wattdock-test-base"
HOW = ".ci/run starts a private engine and makes the images"


def engine_address() -> str:
    """Return where an engine answers; skips the test, with the reason, where none does."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        require_socket(address)
    except PreflightError as error:
        pytest.skip(f"{str(error).partition(';')[0]}; {HOW}")
    return address


def image_there(name: str) -> Image:
    """Return the engine and an image; skips the test where either is missing. Nothing is ever pulled."""
    with closing(connect(engine_address())) as client:
        try:
            client.images.get(name)
        except ImageNotFound:
            pytest.skip(f"image {name} is not there; {HOW}")
    return find_image(name, backend="NAME")


def build_on(
    base: str,
    name: str,
    files: Mapping[str, Path],
    *instructions: str,
    labels: Mapping[str, str] | None = None,
    before: str = "",
) -> Image:
    """Lay files over an image that is there and return the new image; its name is its own.

    Args:
        before: An earlier stage of the recipe, for what is to be copied from there.
    """
    image_there(base)
    copies = [f"COPY {target.lstrip('/')} {target}" for target in files]
    recipe = "\n".join([before, f"FROM {base}", *copies, *instructions]).encode()
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for target, source in files.items():
            tar.add(source, arcname=target.lstrip("/"), filter=_without_caches)
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(recipe)
        tar.addfile(entry, io.BytesIO(recipe))
    context.seek(0)
    with closing(connect(engine_address())) as client:
        options = {"pull": False, "rm": True, "labels": labels, "network_mode": "none"}
        client.images.build(fileobj=context, custom_context=True, tag=name, **options)
    return image_there(name)


def home_and_folder(tmp_path: Path) -> tuple[Path, Path]:
    """Make an unprivileged user's home with a folder to work in, and return both."""
    home = user_home(tmp_path)
    (home / "work").mkdir()
    give_to_user(home / "work")
    return home, home / "work"


def image_labels(revision: str, base_digest: str = "") -> dict[str, str]:
    """Return what `wattdock images build` writes on an image."""
    return {
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.base.name": "base:1",
        "org.opencontainers.image.base.digest": base_digest,
    }


def debian_client(folder: Path) -> str:
    """Return a PATH on which Debian's client comes first, which has BuildKit; another client may have none."""
    client = Path("/usr/bin/docker")
    if not client.exists():
        pytest.skip(f"needs Debian's client at {client}")
    (folder / "client").mkdir()
    (folder / "client/docker").symlink_to(client)
    return f"{folder / 'client'}:{os.environ['PATH']}"


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


@contextmanager
def tagged(mark: str) -> Iterator[str]:
    """Yield an image name of this test session's own, and remove the image afterwards."""
    name, address = f"wattdock-{mark}-{uuid.uuid4().hex[:8]}", engine_address()
    yield name
    with closing(connect(address)) as client:
        try:
            client.images.remove(name, force=True)
        except ImageNotFound:
            return
