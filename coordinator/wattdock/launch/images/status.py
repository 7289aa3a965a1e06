"""Say of each image whether it is here, what is locked, and whether both agree; reads, changes nothing.

Registries are asked only by `asked_of_registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError
from wattdock.launch.engine import NoImageError, find_containers
from wattdock.launch.images.difference import image_differences, source_differences
from wattdock.launch.images.inputs import BASE_INPUT, VARIANT_INPUT, in_short, read_inputs
from wattdock.launch.images.registry import NotInRegistryError, local_name, require_in_registry

if TYPE_CHECKING:
    from wattdock.launch.engine import Containers
    from wattdock.launch.images.lock import LockedImage


@dataclass(frozen=True)
class ImageStatus:
    """One image.

    Attributes:
        here: Id of the image that the engine has: the locked one where it has that, else the one built here.
        locked: The digest or id in the lock.
        differences: Why a locked run would be refused, or would not be what this checkout makes.
        unresolved: What the lock leaves open, and why.
        in_registry: Whether its registry has the locked digest now; None where that is not known.
        unchecked: What was not looked at, and why; it may be well or not.
    """

    name: str
    here: str | None = None
    locked: str | None = None
    differences: list[str] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)
    in_registry: bool | None = None
    unchecked: list[str] = field(default_factory=list)


def image_status(name: str, locked: LockedImage | None) -> ImageStatus:
    """Hold one image against the lock and the checkout."""
    built = _found(local_name(name), name)
    here = built.image.id if built else None
    if locked is None:
        return ImageStatus(name, here, differences=["the lock has no entry for it"])
    reference = locked.repo_digest or locked.image_id
    if reference is None:
        return ImageStatus(name, here, differences=["not locked"], unresolved=locked.unresolved)
    found = _found(reference, name)
    differences = image_differences(locked, found) if found else ["the locked image is not on this machine"]
    return ImageStatus(
        name=name,
        here=found.image.id if found else here,
        locked=reference,
        differences=[*differences, *_unlike_checkout(name, locked)],
        unresolved=locked.unresolved,
    )


def asked_of_registry(status: ImageStatus, locked: LockedImage | None, *, offline: bool) -> ImageStatus:
    """Return the status of an image with what its registry says about the locked digest.

    Args:
        offline: Ask nobody, and say so.
    """
    if locked is None or locked.repo_digest is None:
        return status
    if offline:
        return replace(status, unchecked=[*status.unchecked, "its registry was not asked (--offline)"])
    try:
        require_in_registry(locked.repo_digest)
    except NotInRegistryError as error:
        return replace(status, in_registry=False, differences=[*status.differences, str(error)])
    except PreflightError as error:
        return replace(status, unchecked=[*status.unchecked, f"whether its registry still has it: {error}"])
    return replace(status, in_registry=True)


def _found(reference: str, name: str) -> Containers | None:
    try:
        return find_containers(reference, backend=name, how="build or pull it")
    except NoImageError:
        return None


def _unlike_checkout(name: str, locked: LockedImage) -> list[str]:
    try:
        here = read_inputs(name, variant=locked.inputs[VARIANT_INPUT], base=locked.inputs[BASE_INPUT])
    except ConfigError:
        return ["this checkout has no Dockerfile for it"]
    unlike = source_differences(locked.inputs, here)
    return [f"this checkout is not what it was built from: {in_short(unlike)}"] if unlike else []
