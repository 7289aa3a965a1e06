"""Find and remove the containers of coordinators that are gone.

A coordinator is alive while it holds the lock on the file that its containers' labels name; a pid would prove nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import http
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError
from wattdock.launch.container import FOLDER_LABEL, LABEL_PREFIX
from wattdock.launch.engine import DEFAULT_ENGINE, connect, require_socket
from wattdock.launch.socket_folder import SOCKET_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from docker.models.containers import Container

    from wattdock.launch.protocol import LaunchSpec

# What a launch spec's labels hold for this module.
ALIVE_LABEL, OWNER_LABEL, PLACE_LABEL = "alive", "owner", "alive_in"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REMOVAL_WAIT_S = 60


@dataclass(frozen=True)
class Reaped:
    """What was found: containers removed, and those left because their coordinator lives or is another user's."""

    removed: tuple[str, ...]
    left: tuple[str, ...]


def reap(address: str | None = None) -> Reaped:
    """Remove every container whose coordinator is dead, and leave all others.

    Args:
        address: The engine; None is the one that DOCKER_HOST names, or the usual one.

    Raises:
        NoContainersError: No engine answers.
        LaunchError: The engine would not list or remove them.
    """
    address = address or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    require_socket(address)
    from docker.errors import DockerException

    removed, left = [], []
    try:
        with connect(address) as client:
            marked = {"label": LABEL_PREFIX + ALIVE_LABEL}
            for container in client.containers.list(all=True, filters=marked, ignore_removed=True):
                name = f"{container.name} ({container.short_id})"
                if not is_orphan(container.labels, uid=os.getuid()):
                    left.append(name)
                    continue
                remove(container)
                remove_socket_folder(container.labels)
                removed.append(name)
    except (DockerException, OSError) as error:
        raise LaunchError(f"the engine at {address} cannot remove what was left behind: {error}") from error
    return Reaped(tuple(removed), tuple(left))


def remove(container: Container) -> None:
    """Remove a container, and return only once it is gone, whoever else removes it at the same time.

    Raises:
        docker.errors.DockerException, OSError: The engine refused or did not answer.
    """
    from docker.errors import APIError, NotFound

    with contextlib.suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            # Its keeper, or another that cleans up, was faster; until they are done it is still on its GPUs.
            if error.status_code != http.HTTPStatus.CONFLICT:
                raise
            container.wait(condition="removed", timeout=REMOVAL_WAIT_S)


def is_orphan(labels: Mapping[str, str], *, uid: int) -> bool:
    """Whether a container's coordinator was this user's (for root: anybody's) and is gone."""
    if uid != 0 and labels.get(LABEL_PREFIX + OWNER_LABEL) != str(uid):
        return False
    lock = Path(labels[LABEL_PREFIX + ALIVE_LABEL])
    boot, _, folder = labels.get(LABEL_PREFIX + PLACE_LABEL, "").partition(" ")
    if boot and boot != boot_id():
        return True
    # Seen from a container, or under a private /tmp, a living coordinator's lock would look gone.
    if folder and folder != _identity(lock.parent.parent):
        return False
    return not is_held(lock)


def marks(spec: LaunchSpec) -> dict[str, str]:
    """Return the labels by which `reap` finds a container and tells whether its coordinator lives."""
    if spec.alive_lock is None:
        return {}
    place = place_of(spec.alive_lock)
    return {OWNER_LABEL: str(os.getuid()), ALIVE_LABEL: str(spec.alive_lock), PLACE_LABEL: place}


def place_of(lock: Path) -> str:
    """Return what tells others whether the path of a lock leads them to the same file: the boot, and its folder's.

    The folder is the one above the lock's own, which goes with its coordinator.
    """
    return f"{boot_id()} {_identity(lock.parent.parent)}"


def boot_id() -> str:
    """Return what this start of the machine is called; containers see their host's."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def _identity(folder: Path) -> str | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def is_held(lock: Path) -> bool:
    """Whether some process holds the lock on a file; a file that cannot be looked into counts as held."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Shared, so that two that ask at once do not take each other for its holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def remove_socket_folder(labels: Mapping[str, str]) -> None:
    """Remove what is left of a runner's socket; nothing else, whatever a label says."""
    if folder := labels.get(LABEL_PREFIX + FOLDER_LABEL):
        with contextlib.suppress(OSError):
            (Path(folder) / SOCKET_NAME).unlink(missing_ok=True)
            Path(folder).rmdir()
