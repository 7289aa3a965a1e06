"""Which base image a build takes: the one that was named, by the digest in the lock where that holds one."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.launch.engine import NoImageError, find_containers
from wattdock.launch.images.inputs import default_base
from wattdock.launch.images.registry import TAG_LENGTH, pull, tag, untag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wattdock.launch.images.lock import LockedImage

# What engines leave out of names.
IMPLIED = ("docker.io/library/", "docker.io/")


@dataclass(frozen=True)
class Base:
    """A base that is on the engine.

    Attributes:
        name: As it was named, with its tag.
        id: The engine's.
        digest: "sha256:…" by which the registry in its name has it; None where it was made here.
    """

    name: str
    id: str
    digest: str | None

    @property
    def argument(self) -> str:
        """As it is recorded: by digest where there is one, the tag beside it for people."""
        return self.name if self.digest is None or "@" in self.name else f"{self.name}@{self.digest}"


def base_name(name: str, *, variant: str, given: str | None) -> str:
    """Return the base for a build: the one given, else the default."""
    return given or default_base(name, variant)


def base_reference(name: str, base: str, locked: Mapping[str, LockedImage]) -> str:
    """Return by what to look for a base: its digest where the lock has one for it, else its name."""
    entry = locked.get(name)
    if entry is None or entry.base != base or entry.base_digest is None:
        return base
    return f"{repository_of(base)}@{entry.base_digest}"


def find_base(name: str, base: str, locked: Mapping[str, LockedImage]) -> Base:
    """Return a base that is here.

    Raises:
        NoImageError: It is not, or not as it is locked.
        NoContainersError: No engine answers.
    """
    how = f"get it with: wattdock images pull {name} --bases (same --variant and --base)"
    found = find_containers(base_reference(name, base, locked), backend=name, how=how).image
    return Base(base, found.id, own_digest(base, found.digests))


def pull_base(name: str, base: str, locked: Mapping[str, LockedImage]) -> bool:
    """Get a base that is not here; return whether it was gotten. One that is here is left as it is.

    Raises:
        PreflightError: The engine or the registry would not.
    """
    try:
        find_base(name, base, locked)
    except NoImageError:
        pull(base_reference(name, base, locked))
        return True
    return False


@contextmanager
def steady_name(base: Base) -> Iterator[str]:
    """Yield a name that stands for this very base until the end, whatever its own name moves to meanwhile.

    BuildKit takes no image by its id, so one without a digest gets a tag that nobody else knows.

    Raises:
        PreflightError: The engine does not give it one.
    """
    if base.digest is not None:
        yield base.argument
        return
    own = f"wattdock-base:{base.id.removeprefix('sha256:')[:TAG_LENGTH]}-{secrets.token_hex(4)}"
    tag(base.id, own)
    try:
        yield own
    finally:
        untag(own)


def own_digest(base: str, digests: Sequence[str]) -> str | None:
    """Return the digest by which the registry in an image's own name has it; others' are left aside. Pure."""
    own = familiar(repository_of(base))
    pairs = (one.partition("@") for one in digests)
    return next((digest for repository, _, digest in pairs if familiar(repository) == own), None)


def repository_of(reference: str) -> str:
    """Return a reference without its tag or digest. Pure."""
    from docker.utils import parse_repository_tag

    return str(parse_repository_tag(reference)[0])


def familiar(repository: str) -> str:
    """Return a name as engines write it: without what they leave out. Pure."""
    return next((repository.removeprefix(one) for one in IMPLIED if repository.startswith(one)), repository)
