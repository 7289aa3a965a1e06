"""Images on this machine, held against a lock: find the locked one, get it, lock what is here, say what differs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.launch.engine import NoContainersError, NoImageError, find_containers
from wattdock.launch.images.build import changes_since, default_base, familiar, image_names
from wattdock.launch.images.lock import LockedImage, write_lock
from wattdock.launch.images.registry import NotInRegistryError, local_name, pull, registry_digest, tag_if_free

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.launch.engine import Containers, Image
    from wattdock.launch.images.lock import ImagesLock

# How many files a message names.
NAMED = 4


@dataclass(frozen=True)
class Pin:
    """By what an image was pinned.

    Attributes:
        repo_digest: As a registry has it; None for an image that was pinned by its id on this machine.
        lock_sha256: Hash of the lock file.
    """

    repo_digest: str | None
    lock_sha256: str


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


def find_locked(name: str, lock: ImagesLock, *, needs_gpu: bool) -> tuple[Containers, Pin]:
    """Return the engine with the image that the lock names, by its digest, or by its id where no registry has it.

    Raises:
        PreflightError: The lock names no such image, or the image is not here, or says other things of itself.
    """
    locked = lock.images.get(name)
    if locked is None:
        raise PreflightError(f"{lock.path} names no image for {name}; build one, then: wattdock images lock {name}")
    if locked.digest is None:
        raise PreflightError(f"the lock pins no image for {name}: {locked.open_points['digest']}")
    if locked.repo_digest:
        how = f"get it with: wattdock images pull {name}"
    else:
        how = "only the machine that built it has it, no registry does; "
        how += f"build your own, then: wattdock images lock {name}"
    found = find_containers(locked.digest, backend=name, needs_gpu=needs_gpu, how=how)
    if differences := _differences(locked, found.image):
        raise PreflightError(f"image {found.image.name} is not the locked one: {'; '.join(differences)}")
    return found, Pin(locked.repo_digest, lock.sha256)


def pull_image(name: str, lock: ImagesLock) -> str:
    """Get the image that the lock names from its registry, and give it its usual name where that is free.

    Returns:
        What was gotten, and by which name it is called.

    Raises:
        PreflightError: No registry has the image, or what came says other things of itself.
    """
    locked = lock.images.get(name)
    if locked is None or locked.repo_digest is None:
        why = locked.open_points["digest"] if locked else "the lock has no entry for it"
        raise PreflightError(f"cannot pull {name}: {why}")
    pull(locked.repo_digest)
    found, _ = find_locked(name, lock, needs_gpu=False)
    called = local_name(name) if tag_if_free(found.image, local_name(name)) else "its digest; its name is another's"
    return f"{locked.repo_digest} is here as {called}"


def lock_images(
    names: Sequence[str], lock: ImagesLock, *, registry: str | None, tell: Callable[[PreflightError], None]
) -> dict[str, LockedImage]:
    """Write what can be locked of several images now: all of them, or none.

    A lock in which some entries are of this day and some older would look like one decision.

    Args:
        names: Of images; none: all that have a Dockerfile.
        registry: Beginning of the digest to take where several registries have an image.
        tell: Told why each image that cannot be locked cannot.

    Raises:
        ConfigError: There is no image of one of these names.
        PreflightError: One of them cannot be locked, or no engine answers.
    """
    entries, refused = {}, []
    for name in names or image_names():
        try:
            entries[name] = _entry(name, lock.images.get(name), registry=registry)
        except NoContainersError:
            # True of all of them.
            raise
        except PreflightError as error:
            tell(error)
            refused.append(name)
    if refused:
        raise PreflightError(
            f"nothing was locked, for {', '.join(refused)} cannot be; "
            "mend that, or name the images to lock: wattdock images lock NAME..."
        )
    write_lock(lock.path, {**lock.images, **entries})
    return entries


def _entry(name: str, before: LockedImage | None, *, registry: str | None) -> LockedImage:
    """Return what can be locked of an image now; what was locked before stays where it is not on the engine."""
    how = f"build it with: wattdock images build {name}"
    try:
        image = find_containers(local_name(name), backend=name, how=how).image
    except NoImageError:
        return before or LockedImage(base=default_base(name, "cuda"))
    if image.base is None:
        raise PreflightError(f"image {image.name} does not say what it was made from; {how}")
    digest = choose_digest(image.digests, registry) or image.id
    return LockedImage(digest=digest, base=image.base, base_digest=image.base_digest, revision=image.revision)


def choose_digest(digests: Sequence[str], registry: str | None) -> str | None:
    """Return the digest to lock; None where no registry has the image. Pure.

    Raises:
        PreflightError: Several registries have it and none was named, or the named one does not have it.
    """
    fitting = [digest for digest in digests if registry is None or familiar(digest).startswith(familiar(registry))]
    if len(fitting) > 1:
        raise PreflightError(f"several registries have it ({', '.join(fitting)}); choose one with --registry")
    if registry and not fitting:
        raise PreflightError(f"no digest of it begins with {registry} (there are: {', '.join(digests) or 'none'})")
    return fitting[0] if fitting else None


def image_statuses(names: Sequence[str], lock: ImagesLock, *, ask_registry: bool | None = None) -> list[ImageStatus]:
    """Hold images against the lock, the checkout, and the registries that have the locked digests; changes nothing.

    Args:
        names: Of images; none: all that have a Dockerfile or an entry in the lock.
        ask_registry: False says that nobody was asked; None leaves registries out.
    """
    return [_status(name, lock, ask_registry) for name in names or sorted({*image_names(), *lock.images})]


def _status(name: str, lock: ImagesLock, ask_registry: bool | None) -> ImageStatus:
    locked = lock.images.get(name)
    built = _found(local_name(name), name)
    here = built.id if built else None
    if locked is None:
        return ImageStatus(name, here, differences=["the lock has no entry for it"])
    if locked.digest is None:
        return ImageStatus(name, here, differences=["not locked"], unresolved=locked.open_points)
    found = _found(locked.digest, name)
    differences = _differences(locked, found) if found else ["the locked image is not on this machine"]
    status = ImageStatus(name, found.id if found else here, locked.digest, differences, locked.open_points)
    status = _against_checkout(status, locked.revision)
    if ask_registry is None or locked.repo_digest is None:
        return status
    return _against_registry(status, locked.repo_digest, ask=ask_registry)


def _against_checkout(status: ImageStatus, revision: str | None) -> ImageStatus:
    commit = (revision or "unknown").removesuffix("-dirty")
    changed = changes_since(status.name, commit)
    if changed is None:
        unchecked = f"whether this checkout is what it was built from: git does not know {commit} here"
        return replace(status, unchecked=[*status.unchecked, unchecked])
    if not changed:
        return status
    more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    unlike = f"this checkout is not what it was built from: {', '.join(changed[:NAMED])}{more} differ"
    return replace(status, differences=[*status.differences, unlike])


def _against_registry(status: ImageStatus, repo_digest: str, *, ask: bool) -> ImageStatus:
    if not ask:
        return replace(status, unchecked=[*status.unchecked, "its registry was not asked (--offline)"])
    try:
        registry_digest(repo_digest)
    except NotInRegistryError as error:
        return replace(status, in_registry=False, differences=[*status.differences, str(error)])
    except PreflightError as error:
        return replace(status, unchecked=[*status.unchecked, f"whether its registry still has it: {error}"])
    return replace(status, in_registry=True)


def _differences(locked: LockedImage, image: Image) -> list[str]:
    """Return what an image with the locked digest says otherwise of itself: then the lock was changed by hand. Pure."""
    pairs = {"revision": (image.revision, locked.revision), "base digest": (image.base_digest, locked.base_digest)}
    return [
        f"its {what} is {seen or 'unknown'}, locked is {wanted}"
        for what, (seen, wanted) in pairs.items()
        if wanted is not None and seen != wanted
    ]


def _found(reference: str, name: str) -> Image | None:
    try:
        return find_containers(reference, backend=name, how="build or pull it").image
    except NoImageError:
        return None
