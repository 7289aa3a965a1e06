"""`wattdock images` from outside: what it builds, locks and pulls, and what it refuses in one line."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from containers.engines import BASE, debian_client, engine_address, image_labels, image_there, tagged
from containers.registry import serving
from seams.launch import NOT_PUSHED, LockedImage, build, write_lock

from wattdock.launch.images import build_image, find_image
from wattdock.text import NO_BASE_DIGEST, NOT_COMMITTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient

WATTDOCK = Path(sys.executable).with_name("wattdock")
DOCKERFILE = """\
ARG BASE=absent
FROM ${BASE}
ARG REVISION
COPY --chmod=755 docker/NAME.Dockerfile /own
LABEL org.opencontainers.image.revision="${REVISION}"
"""


def images(*words: str, lock: Path, engine: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": engine or engine_address(), "WATTDOCK_IMAGES_LOCK": str(lock)}
    return subprocess.run(
        [WATTDOCK, "images", *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("build nosuch", 2, "unknown image 'nosuch'; there are coordinator, "),
        ("build llamacpp", 2, "llamacpp has no packages for --variant cuda; take the other one of cpu and cuda"),
        ("build tensorrt --variant cpu", 2, "tensorrt has no packages for --variant cpu; take the other one of"),
        ("build pytorch --base 127.0.0.1:1/absent", 3, "cannot pull 127.0.0.1:1/absent: docker ended with code 1; its"),
        ("pull pytorch", 3, "names no image for pytorch; build one (to publish, push it), then: wattdock images lock"),
        ("pull vllm", 3, f"cannot pull vllm: {NOT_PUSHED}"),
        ("pull", 2, "holds no image that a registry has; push one, then: wattdock images lock NAME"),
        (
            "lock tensorrt vllm",
            3,
            "image wattdock-tensorrt is not there; build it with: wattdock images build tensorrt",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_with_what_to_do(words: str, code: int, said: str, tmp_path: Path) -> None:
    """And the lock stays as it was."""
    lock = tmp_path / "images.lock"
    write_lock(lock, {"vllm": LockedImage(digest=f"sha256:{'0' * 64}", base="base")})
    before = lock.read_bytes()
    done = images(*words.split(), lock=lock)
    assert done.returncode == code, done.stderr
    *above, last = done.stderr.splitlines()
    assert last.startswith("wattdock: ")
    assert said in last
    # What Docker's client said of a registry that does not answer.
    assert bool(above) == ("docker ended" in said)
    assert lock.read_bytes() == before


def test_without_an_engine_nothing_is_written(tmp_path: Path) -> None:
    """A lock full of what could not be asked would be worse than none."""
    lock = tmp_path / "images.lock"
    done = images("lock", "pytorch", lock=lock, engine=f"unix://{tmp_path}/absent.sock")
    assert done.returncode == 3
    assert f"unix://{tmp_path}/absent.sock" in done.stderr
    assert not lock.exists()


def test_an_image_says_what_it_was_built_from(
    client: DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base and the commit; no option of the build can make it another image."""
    image_there(BASE)
    monkeypatch.setenv("DOCKER_HOST", engine_address())
    monkeypatch.setenv("PATH", debian_client(tmp_path))
    name = f"own-{secrets.token_hex(4)}"
    (tmp_path / "docker").mkdir()
    dockerfile = tmp_path / f"docker/{name}.Dockerfile"
    dockerfile.write_text(DOCKERFILE.replace("NAME", name))
    dockerfile.chmod(0o600)
    monkeypatch.setattr(build, "REPO", tmp_path)
    monkeypatch.setattr(build, "DOCKER", tmp_path / "docker")
    with tagged("base") as base:
        client.images.get(BASE).tag(base)
        try:
            build_image(name, variant="cpu", base=base, options="--quiet --build-arg BASE=absent")
            image = find_image(f"wattdock-{name}", backend=name)
            layers = [client.images.get(each).attrs["RootFS"]["Layers"] for each in (base, image.id)]
            assert layers[1][: len(layers[0])] == layers[0]
            assert (image.base, bool(image.revision)) == (base, True)
        finally:
            client.images.remove(f"wattdock-{name}", force=True)


@pytest.fixture
def built(client: DockerClient, tmp_path: Path) -> Iterator[str]:
    """The name of a small image with the labels of a real build."""
    with tagged("kept") as name:
        (tmp_path / "own").write_text(name)
        (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY own /own\n")
        client.images.build(path=str(tmp_path), tag=name, rm=True, labels=image_labels("abc-dirty"))
        yield name.removeprefix("wattdock-")


def test_an_image_is_locked_and_pulled_by_the_digest_that_its_registry_has(
    built: str, client: DockerClient, tmp_path: Path
) -> None:
    """Before it is pushed by its id, with a warning; a download that breaks is one line below what Docker said."""
    lock = tmp_path / "images.lock"
    name = f"wattdock-{built}"
    done = images("lock", built, lock=lock)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"{built}: {why}" for why in (NOT_PUSHED, NO_BASE_DIGEST, NOT_COMMITTED)]
    image_id = client.images.get(name).id
    assert entry_of(lock)["digest"] == image_id
    with serving(tmp_path) as address:
        repository = f"{address}/{name}"
        client.images.get(name).tag(repository, "1")
        client.images.push(repository, tag="1")
        assert images("lock", built, "--registry", address, lock=lock).returncode == 0
        digest = entry_of(lock)["digest"]
        assert digest.startswith(f"{repository}@sha256:")
        client.images.remove(image_id, force=True)
        done = images("pull", built, lock=lock)
        assert done.stdout.endswith(f"{built}: {digest} is here\n"), done.stderr
        assert client.images.get(digest).id == image_id
        client.images.remove(image_id, force=True)
        layer = break_layer(tmp_path / "registry/docker/registry/v2/blobs/sha256", digest)
        done = images("pull", built, lock=lock)
    assert done.returncode == 3
    assert digest in done.stderr.splitlines()[-1]
    assert layer in done.stdout + done.stderr


def entry_of(lock: Path) -> dict[str, str]:
    """Return the only entry of a lock."""
    [entry] = yaml.safe_load(lock.read_text())["images"].values()
    return dict(entry)


def break_layer(blobs: Path, digest: str) -> str:
    """Change a byte of an image's last layer in a registry's folder, and return the layer's digest."""

    def blob(digest: str) -> Path:
        hash_ = digest.rpartition("sha256:")[2]
        return blobs / hash_[:2] / hash_ / "data"

    layer = str(json.loads(blob(digest).read_text())["layers"][-1]["digest"])
    content = bytearray(blob(layer).read_bytes())
    content[-1] ^= 1
    blob(layer).write_bytes(content)
    return layer
