"""The file that says which images a publication run starts: its form, how it is read and written.

Asks no engine and no registry.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wattdock.errors import ConfigError
from wattdock.files import write_whole
from wattdock.launch.images.inputs import inputs_sha256
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING = "WATTDOCK_IMAGES_LOCK"
DEFAULT_LOCK = REPO / "docker" / "images.lock"
HEADER = """\
# Images that `wattdock run --locked` starts, by content. Written by `wattdock images lock`; see docs/publication.md.
# What is null could not be had yet; `unresolved` says why.
"""
# Wide enough that no value is folded.
WIDTH = 4096
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
RepoDigest = Annotated[str, Field(pattern=r"^[^@\s]+@sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class LockedImage(BaseModel):
    """One image, by content.

    Attributes:
        repo_digest: By which a registry has it, "registry/name@sha256:…"; null until pushed or pulled.
        image_id: By which the engine that built or pulled it has it; comparable only under the same `image_store`.
        image_store: That engine's: "classic", "containerd" or "podman".
        platform: "linux/amd64".
        base: The base image, as it was named.
        base_digest: By which a registry has the base.
        inputs_sha256: Hash over `inputs`.
        build_args: Arguments of the build.
        source_date: UTC time of the sources, given to the build.
        date: UTC day of this entry.
        unresolved: What is null or unpinned, and why.
        inputs: What decided the image's content: each file's SHA-256, arguments, and the base.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo_digest: RepoDigest | None = None
    image_id: Digest | None = None
    image_store: Literal["classic", "containerd", "podman"] | None = None
    platform: str | None = None
    base: str
    base_digest: Digest | None = None
    inputs_sha256: Sha256 | None = None
    build_args: dict[str, str] = Field(default_factory=dict)
    source_date: str | None = None
    date: date
    unresolved: dict[str, str] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.inputs_sha256 is not None and self.inputs_sha256 != inputs_sha256(self.inputs):
            raise ValueError(
                f"inputs_sha256 is {self.inputs_sha256[:12]}, its inputs hash to {inputs_sha256(self.inputs)[:12]}: "
                "one of them was changed by hand"
            )
        for name in ("repo_digest", "image_id", "base_digest", "inputs_sha256"):
            if getattr(self, name) is None and name not in self.unresolved:
                raise ValueError(f"{name} is null and `unresolved` does not say why")
        return self


class ImagesLock(BaseModel):
    """The whole file: one entry per image."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    images: dict[str, LockedImage] = Field(default_factory=dict)


def lock_path() -> Path:
    """Return the file in use: the one in WATTDOCK_IMAGES_LOCK, else `docker/images.lock` of this checkout."""
    named = os.environ.get(SETTING)
    return Path(named).expanduser().absolute() if named else DEFAULT_LOCK


@dataclass(frozen=True)
class ReadLock:
    """What the file said at one moment.

    Attributes:
        path: Where it was read.
        sha256: Hash of exactly what was read.
    """

    path: Path
    images: Mapping[str, LockedImage]
    sha256: str


def read_lock(path: Path) -> ReadLock:
    """Return what the file says, read once.

    Raises:
        ConfigError: It is not there, or does not hold what a lock holds.
    """
    # Slow to import, and most commands read no lock.
    import yaml

    try:
        content = path.read_bytes()
        lock = ImagesLock.model_validate(yaml.safe_load(content.decode()) or {})
        return ReadLock(path, lock.images, hashlib.sha256(content).hexdigest())
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is not there; write it with: wattdock images lock") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"cannot read {path}: {said}; write it anew with: wattdock images lock") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where}: {message}; write it anew with: wattdock images lock") from error


def lock_sha256(path: Path) -> str:
    """Return the hash of the file as it is."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_lock(path: Path, images: Mapping[str, LockedImage]) -> None:
    """Write the file, whole or not at all; images in the order of their names."""
    import yaml

    content = ImagesLock(images=dict(sorted(images.items()))).model_dump()
    text = HEADER + yaml.safe_dump(content, sort_keys=False, width=WIDTH)
    write_whole(path, text.encode())
