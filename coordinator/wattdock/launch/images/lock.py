"""The file that says which images a publication run starts: its form, how it is read and written.

Asks no engine and no registry.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattdock.errors import ConfigError
from wattdock.files import write_whole
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK_VARIABLE = "WATTDOCK_IMAGES_LOCK"
DEFAULT_LOCK = REPO / "docker" / "images.lock"
HEADER = """\
# Images that `wattdock run --locked` starts, by digest. Written by `wattdock images lock`; see docs/publication.md.
# What is null could not be had yet: `wattdock images verify` says why.
"""
# Wide enough that no value is folded.
WIDTH = 4096
NOT_BUILT = "not built yet: wattdock images build, then push, then lock"
NOT_PUSHED = "in no registry: wattdock images push NAME --to REGISTRY, then wattdock images lock NAME"
NO_BASE_DIGEST = "no registry has the base, as far as the engine knows: build on one that was pulled"
NOT_COMMITTED = "the image holds files that no commit has; commit, build and lock again"
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Reference = Annotated[str, Field(pattern=r"^([^@\s]+@)?sha256:[0-9a-f]{64}$")]


class LockedImage(BaseModel):
    """One image, by content.

    Attributes:
        digest: "registry/name@sha256:…" as a registry has it, or "sha256:…", the id on the only engine that has it;
            null until built.
        base: Name of the base image.
        base_digest: "sha256:…" by which a registry has the base.
        revision: Commit of the sources, "-dirty" behind it where files differed from that commit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: Reference | None = None
    base: str
    base_digest: Digest | None = None
    revision: str | None = None

    @property
    def repo_digest(self) -> str | None:
        """The digest as a registry has it; None for an image that only one engine has."""
        return self.digest if self.digest and "@" in self.digest else None

    @property
    def open_points(self) -> dict[str, str]:
        """What is not pinned, and why, with what to do."""
        if self.digest is None:
            return {"digest": NOT_BUILT}
        found = {}
        if self.repo_digest is None:
            found["digest"] = NOT_PUSHED
        if self.base_digest is None:
            found["base_digest"] = NO_BASE_DIGEST
        if self.revision is None or self.revision.endswith("-dirty"):
            found["revision"] = NOT_COMMITTED
        return found


@dataclass(frozen=True)
class ImagesLock:
    """What the file said at one moment.

    Attributes:
        images: By name of the image, without "wattdock-".
        sha256: Hash of exactly what was read.
    """

    path: Path
    images: Mapping[str, LockedImage]
    sha256: str


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    images: dict[str, LockedImage] = Field(default_factory=dict)


def lock_path() -> Path:
    """Return the file in use: the one in WATTDOCK_IMAGES_LOCK, else `docker/images.lock` of this checkout."""
    named = os.environ.get(LOCK_VARIABLE)
    return Path(named).expanduser().absolute() if named else DEFAULT_LOCK


def read_lock(path: Path | None = None, *, may_be_absent: bool = False) -> ImagesLock:
    """Return what a lock file says, read once.

    Args:
        path: The file; None is the one in use.
        may_be_absent: A file that was not written yet locks nothing, and is no mistake.

    Raises:
        ConfigError: It is not there, or does not hold what a lock holds.
    """
    # Slow to import, and most commands read no lock.
    import yaml

    path = path or lock_path()
    try:
        content = path.read_bytes()
        images = _File.model_validate(yaml.safe_load(content.decode()) or {}).images
    except FileNotFoundError as error:
        if may_be_absent:
            return ImagesLock(path, {}, sha256="")
        raise ConfigError(f"{path} is not there; write it with: wattdock images lock") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"cannot read {path}: {said}; write it anew with: wattdock images lock") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}; write it anew with: wattdock images lock") from error
    return ImagesLock(path, images, hashlib.sha256(content).hexdigest())


def write_lock(path: Path, images: Mapping[str, LockedImage]) -> None:
    """Write the file, whole or not at all; images in the order of their names."""
    import yaml

    content = _File(images=dict(sorted(images.items()))).model_dump()
    write_whole(path, (HEADER + yaml.safe_dump(content, sort_keys=False, width=WIDTH)).encode())
