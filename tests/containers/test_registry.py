"""`wattdock images` and a registry that has lost something, or is gone: a real one, whose files are changed."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from containers.engines import commit_of_these_files, image_labels, tagged
from containers.registry import serving
from containers.test_images_command import images
from docker.errors import ImageNotFound

from wattdock.launch.engine import find_containers
from wattdock.launch.images.lock import LockedImage, write_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from docker import DockerClient

DIGEST = f"sha256:{'b' * 64}"
# Of the one image that no test builds.
NAME = "tensorrt"


@dataclass(frozen=True)
class Locked:
    """A lock of an image that this checkout could have made, and where its registry keeps it.

    Attributes:
        name: As the engine has it.
        reference: Its digest in the registry.
        store: The registry's folder of contents.
        stop: Ends the registry.
    """

    lock: Path
    name: str
    reference: str
    store: Path
    stop: Callable[[], None]

    @property
    def revisions(self) -> Path:
        """The folder that says which contents are manifests of this image."""
        return self.store / "repositories" / self.name / "_manifests/revisions/sha256"


@pytest.fixture
def locked(client: DockerClient, tmp_path: Path) -> Iterator[Locked]:
    """An image with the labels of a real build, pushed to a registry of one test's own, and locked."""
    revision = commit_of_these_files()
    (tmp_path / "own").write_text(str(tmp_path))
    with ExitStack() as registry, tagged("kept") as name:
        repository = f"{registry.enter_context(serving(tmp_path))}/{name}"
        # Small: it is pushed for every test.
        (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY own /own\n")
        client.images.build(path=str(tmp_path), tag=name, rm=True, labels=image_labels(revision, DIGEST))
        built = client.images.get(name).id
        client.images.get(name).tag(repository, "1")
        client.images.push(repository, tag="1")
        digest = find_containers(name, backend=NAME).image.digest
        assert digest
        entry = LockedImage(digest=digest, base="base:1", base_digest=DIGEST, revision=revision)
        write_lock(tmp_path / "images.lock", {NAME: entry})
        store = tmp_path / "registry/docker/registry/v2"
        yield Locked(tmp_path / "images.lock", name, digest, store, registry.close)
        with suppress(ImageNotFound):
            client.images.remove(built, force=True)


def test_a_download_that_breaks_is_one_line_with_what_the_engine_said(locked: Locked, client: DockerClient) -> None:
    """The engine has answered "well" by then; that the image is not there afterwards explains nothing."""
    client.images.remove(client.images.get(locked.name).id, force=True)
    manifest = json.loads(blob(locked, locked.reference.rpartition("@")[2]).read_text())
    layer = manifest["layers"][-1]["digest"]
    content = bytearray(blob(locked, layer).read_bytes())
    content[-1] ^= 1
    blob(locked, layer).write_bytes(content)
    done = images("pull", NAME, lock=locked.lock)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"wattdock: cannot pull {locked.reference}: ")
    assert layer in done.stderr


def test_a_lock_is_verified_against_the_registry_too(locked: Locked) -> None:
    """Everything is here and as locked, and nobody else could get it."""
    code, status = verified(locked)
    assert (code, status["in_registry"], status["unchecked"], status["differences"]) == (0, True, [], [])
    for manifest in locked.revisions.iterdir():
        shutil.rmtree(manifest)
    code, status = verified(locked)
    assert (code, status["in_registry"]) == (3, False)
    assert status["differences"] == [f"its registry no longer has {locked.reference}"]


def test_a_registry_that_does_not_answer_is_not_checked_and_never_passed(locked: Locked) -> None:
    """Unless it was said that nobody is to be asked, which is then said again."""
    locked.stop()
    code, status = verified(locked)
    assert (code, status["in_registry"], status["differences"]) == (3, None, [])
    [line] = status["unchecked"]
    assert line.startswith(f"whether its registry still has it: the registry of {locked.reference} does not tell")
    assert "connection refused" in line
    code, status = verified(locked, "--offline")
    assert (code, status["in_registry"]) == (0, None)
    assert status["unchecked"] == ["its registry was not asked (--offline)"]
    done = images("verify", NAME, "--offline", lock=locked.lock)
    assert "not checked: its registry was not asked (--offline)" in done.stdout
    assert "as locked" not in done.stdout


def blob(locked: Locked, digest: str) -> Path:
    """Return the file in which the registry keeps what has this digest."""
    hash_ = digest.removeprefix("sha256:")
    return locked.store / "blobs/sha256" / hash_[:2] / hash_ / "data"


def verified(locked: Locked, *more: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `verify` and what it says about the image."""
    done = images("verify", NAME, "--json", *more, lock=locked.lock)
    [status] = json.loads(done.stdout)
    return done.returncode, status
