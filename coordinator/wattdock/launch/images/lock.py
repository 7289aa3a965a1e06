"""The lock: which image a publication run starts, by content; how it is written, read, and compared with the engine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, ValidationError

from wattdock.errors import ConfigError, PreflightError
from wattdock.files import expanded, write_output
from wattdock.host import folders
from wattdock.launch.engine import find_image
from wattdock.launch.images.build import DOCKER, local_name, pull
from wattdock.launch.runners import PACKAGED, REPO
from wattdock.opening import read_regular
from wattdock.text import is_on_loopback, unbuildable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wattdock.launch.engine import Image

HEADER = """\
# Images that `wattdock run --locked` starts, by digest. Written by `wattdock images lock`; see docs/publication.md.
"""
# Width at which YAML folds a value; no value is as long.
FOLD_WIDTH = 4096
MAX_LOCK_BYTES = 1_000_000
NOT_PUSHED = "no registry has the image; push it, then lock it again"
ON_LOOPBACK = "its registry is on this machine only; push it to one that others reach"
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Reference = Annotated[str, Field(pattern=r"^([^@\s]+@)?sha256:[0-9a-f]{64}$")]


class LockedImage(BaseModel, frozen=True, extra="forbid"):
    """An image, by content.

    Attributes:
        digest: "registry/name@sha256:…" as a registry has it, or "sha256:…", the id on the only engine that has it.
        base: Name of the base image.
        base_digest: "sha256:…" by which a registry has the base.
        revision: Commit of the sources, "-dirty" behind it where files differed from that commit.
    """

    digest: Reference
    base: str
    base_digest: Digest | None = None
    revision: str | None = None

    @property
    def repo_digest(self) -> str | None:
        """The digest as a registry has it; None for an image that only one engine has."""
        return self.digest if "@" in self.digest else None

    @property
    def warnings(self) -> list[str]:
        """Why nobody else could get or build this image, and what to do."""
        applies = {NOT_PUSHED: self.repo_digest is None, ON_LOOPBACK: is_on_loopback(self.digest)}
        unreachable = [warning for warning, is_open in applies.items() if is_open]
        return [*unreachable, *unbuildable(self.revision, self.base_digest)]

    @property
    def is_only_here(self) -> bool:
        """Whether nobody else can get the image or build it, which one that only this machine's registry has needs."""
        is_unbuildable = bool(unbuildable(self.revision, self.base_digest))
        return self.repo_digest is None or (is_on_loopback(self.digest) and is_unbuildable)


@dataclass(frozen=True)
class ImagesLock:
    """What the file said when it was read.

    Attributes:
        images: By name of the image, without "wattdock-".
        sha256: Hash of the file.
    """

    path: Path
    images: Mapping[str, LockedImage]
    sha256: str

    def image(self, name: str) -> LockedImage:
        """Return what the file says of an image.

        Raises:
            PreflightError: It does not name the image.
        """
        if name not in self.images:
            raise PreflightError(
                f"{self.path} names no image for {name}",
                f"build one (to publish, push it), then: wattdock images lock {name}",
            )
        return self.images[name]

    def pushed(self, name: str) -> tuple[LockedImage, str]:
        """Return what the file says of an image, and the digest by which a registry has it; asks no engine.

        Raises:
            PreflightError: It does not name the image, or no registry has it.
        """
        locked = self.image(name)
        if locked.repo_digest is None:
            raise PreflightError(f"cannot pull {name}: {NOT_PUSHED}")
        return locked, locked.repo_digest


@dataclass(frozen=True)
class Pin:
    """By what an image was pinned.

    Attributes:
        repo_digest: As a registry has it; None for an image that was pinned by its id on this machine.
        lock_sha256: Hash of the lock file.
    """

    repo_digest: str | None
    lock_sha256: str


class _File(BaseModel, frozen=True, extra="forbid"):
    images: dict[str, LockedImage] = Field(default_factory=dict)


def lock_path() -> Path:
    """Return the file in use: the one in WATTDOCK_IMAGES_LOCK, else `docker/images.lock` of this checkout.

    Without a checkout it is `images.lock` in WATTDOCK_HOME.

    Raises:
        ConfigError: A ~ stands for no folder.
    """
    if named := os.environ.get("WATTDOCK_IMAGES_LOCK"):
        return expanded(named).absolute()
    return folders.wattdock_home() / "images.lock" if REPO == PACKAGED else DOCKER / "images.lock"


def read_lock(path: Path | None = None) -> ImagesLock:
    """Return what a lock file says; a file that is not there locks nothing.

    Args:
        path: The file; None is the one in use.

    Raises:
        ConfigError: It does not hold what a lock holds.
    """
    # Slow to import, and most commands read no lock.
    import yaml

    path = path or lock_path()
    try:
        content = read_regular(path, limit_bytes=MAX_LOCK_BYTES, follow=True) if path.exists() else b""
        images = _File.model_validate(yaml.safe_load(content.decode()) or {}).images
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"cannot read {path}: {problem}", "correct or remove the file") from error
    return ImagesLock(path, images, hashlib.sha256(content).hexdigest())


def write_lock(path: Path, images: Mapping[str, LockedImage]) -> None:
    """Write the file as `write_output` does, images in the order of their names."""
    import yaml

    content = _File(images=dict(sorted(images.items()))).model_dump()
    text = HEADER + yaml.safe_dump(content, sort_keys=False, width=FOLD_WIDTH)
    write_output(path, text.encode(), "WATTDOCK_IMAGES_LOCK")


def lock_images(names: Sequence[str], lock: ImagesLock, *, registry: str | None) -> dict[str, LockedImage]:
    """Lock the images that the engine has under these names: all of them, or none.

    Args:
        registry: Beginning of the digest to take where several registries have an image.

    Raises:
        PreflightError: No engine answers, or an image is not there or does not say what it was built from.
        StoreError: The lock cannot be written.
    """
    locked = {}
    for name in names:
        remedy = f"build it with: wattdock images build {name}"
        image = find_image(local_name(name), backend=name, remedy=remedy)
        if image.base is None:
            raise PreflightError(f"image {image.name} has no label with its base", remedy)
        digests = [digest for digest in image.digests if digest.startswith(registry or "")]
        if len(digests) > 1 or (registry and not digests):
            raise PreflightError(
                f"{len(digests)} digests of image {image.name} begin with {registry or 'any registry'!r} (it has: "
                f"{', '.join(image.digests) or 'none'})",
                "choose one with --registry",
            )
        locked[name] = LockedImage(
            digest=digests[0] if digests else image.id,
            base=image.base,
            base_digest=image.base_digest,
            revision=image.revision,
        )
    write_lock(lock.path, {**lock.images, **locked})
    return locked


def find_locked(name: str, lock: ImagesLock, *, needs_gpu: bool = False) -> tuple[Image, Pin]:
    """Return the image that the lock names, by its digest, or by its id where no registry has it.

    Raises:
        PreflightError: The lock names no such image, or the image is not here.
    """
    locked = lock.image(name)
    remedy = f"only the machine that built it has it; build another, then: wattdock images lock {name}"
    if locked.repo_digest:
        remedy = f"get it with: wattdock images pull {name}"
    image = find_image(locked.digest, backend=name, needs_gpu=needs_gpu, remedy=remedy)
    return image, Pin(locked.repo_digest, lock.sha256)


def pull_image(name: str, lock: ImagesLock) -> str:
    """Get the image that the lock names from its registry, and return its digest.

    Raises:
        PreflightError: No registry has the image.
    """
    _, digest = lock.pushed(name)
    pull(digest)
    find_locked(name, lock)
    return digest
