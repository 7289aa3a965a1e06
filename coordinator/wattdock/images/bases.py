"""Which base image a build takes: the one that was named, by the digest in the lock where that holds one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.images.inputs import default_base
from wattdock.images.registry import find_image, pull
from wattdock.launch.engine import NoImageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.images.lock import LockedImage
    from wattdock.launch.engine import Image


def base_reference(name: str, *, variant: str, given: str | None, locked: Mapping[str, LockedImage]) -> str:
    """Return the base for a build, by digest where the lock has one for it."""
    from docker.utils import parse_repository_tag

    base = given or default_base(name, variant)
    entry = locked.get(name)
    if entry is None or entry.base != base or entry.base_digest is None:
        return base
    return f"{parse_repository_tag(base)[0]}@{entry.base_digest}"


def find_base(name: str, reference: str) -> Image:
    """Return a base that is here.

    Raises:
        NoContainersError: It is not, or no engine answers.
    """
    how = f"get it with: wattdock images pull {name} --bases (same --variant and --base)"
    return find_image(reference, how, name=name).image


def pull_base(name: str, reference: str) -> bool:
    """Get a base that is not here; return whether it was gotten. One that is here is left as it is.

    Raises:
        PreflightError: The engine or the registry would not.
    """
    try:
        find_base(name, reference)
    except NoImageError:
        pull(reference)
        return True
    return False
