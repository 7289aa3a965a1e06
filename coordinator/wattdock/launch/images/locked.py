"""Find the image that a lock names, on this machine, or say what differs. Pulls nothing.

Takes the lock as it was read: what is found and what is said of it must come from one reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.launch.engine import find_containers
from wattdock.launch.images.difference import image_differences
from wattdock.launch.images.registry import local_name, pull, tag_if_free

if TYPE_CHECKING:
    from wattdock.launch.engine import Containers
    from wattdock.launch.images.lock import LockedImage, ReadLock


@dataclass(frozen=True)
class Pin:
    """By what an image was pinned.

    Attributes:
        repo_digest: As a registry has it; None for one that was pinned by its id on this machine.
        lock_sha256: Hash of the lock file.
    """

    repo_digest: str | None
    lock_sha256: str


def find_locked(name: str, lock: ReadLock, *, needs_gpu: bool) -> tuple[Containers, Pin]:
    """Return the engine with the image that the lock names, by its digest, or by its id where no registry has it.

    Raises:
        PreflightError: It names no such image, or the image is not here, or is another.
    """
    locked = lock.images.get(name)
    if locked is None:
        raise PreflightError(f"{lock.path} names no image for {name}; build one, then: wattdock images lock {name}")
    found = find_containers(_reference(name, locked), backend=name, needs_gpu=needs_gpu, how=_how(name, locked))
    if differences := image_differences(locked, found):
        raise PreflightError(f"image {found.image.name} is not the locked one: {'; '.join(differences)}")
    return found, Pin(locked.repo_digest, lock.sha256)


def pull_locked(name: str, lock: ReadLock) -> str:
    """Get the image that the lock names from its registry, and give it its usual name where that is free.

    Returns:
        What was gotten, and by which name it is called.

    Raises:
        PreflightError: No registry has the image, or what came is another.
    """
    locked = lock.images.get(name)
    if locked is None or locked.repo_digest is None:
        why = locked.unresolved.get("repo_digest") if locked else "the lock has no entry for it"
        raise PreflightError(f"cannot pull {name}: {why}")
    pull(locked.repo_digest)
    found, _ = find_locked(name, lock, needs_gpu=False)
    called = local_name(name) if tag_if_free(found.image, local_name(name)) else "its digest; its name is another's"
    return f"{locked.repo_digest} is here as {called}"


def _reference(name: str, locked: LockedImage) -> str:
    if reference := locked.repo_digest or locked.image_id:
        return reference
    reasons = "; ".join(f"{key}: {why}" for key, why in locked.unresolved.items() if key in ("repo_digest", "image_id"))
    raise PreflightError(f"the lock pins no image for {name}: {reasons}")


def _how(name: str, locked: LockedImage) -> str:
    if locked.repo_digest:
        return f"get it with: wattdock images pull {name}"
    return f"only the machine that built it has it, no registry does; build your own, then: wattdock images lock {name}"
