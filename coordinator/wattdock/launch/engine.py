"""The Docker engine of this machine: what it is, what images it has, what dead coordinators left on it.

Starts nothing and pulls nothing. A coordinator is alive while it holds the lock
on the file that its containers' labels name; a pid would prove nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import http
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.clock import BOOT_ID
from wattdock.errors import LaunchError, PreflightError
from wattdock.launch.protocol import SOCKET_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import docker
    from docker.models.containers import Container

    from wattdock.launch.protocol import LaunchSpec

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
PROBE_TIMEOUT_S = 3
# Creating a container of a large image on a busy disk takes seconds.
CALL_TIMEOUT_S = 120
# Labels of a container: whose it is, the lock that its coordinator holds, its socket's folder.
LABEL_PREFIX = "wattdock."
OWNER_LABEL, ALIVE_LABEL, PLACE_LABEL, FOLDER_LABEL = "owner", "alive", "alive_in", "folder"
REMOVAL_WAIT_S = 60
# What keeps a container from the folders that it is given, by the security option that an engine names.
UNSUPPORTED = {"name=userns": "maps users (userns-remap)", "name=selinux": "labels containers (SELinux)"}
VARIANT_LABEL = "wattdock.variant"
# Source: OCI image specification, annotations.
REVISION_LABEL = "org.opencontainers.image.revision"
BASE_NAME_LABEL, BASE_DIGEST_LABEL = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


class NoContainersError(PreflightError):
    """No container can be started from an image here.

    Attributes:
        reason: What was seen.
        remedy: What to do about it.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy = reason, remedy


class NoImageError(NoContainersError):
    """An engine answers and has no such image."""


@dataclass(frozen=True)
class Engine:
    """What decides how a container is to be described to an engine.

    Attributes:
        address: Its Unix socket, "unix:///…".
        name: "docker".
        rootless: It runs as the user, so that its containers' root is the user.
        runtimes: Names of what starts its containers; NVIDIA's gives them GPUs.
    """

    address: str
    name: str
    version: str
    rootless: bool = False
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """An image that is on this machine.

    Attributes:
        engine: The engine that has it.
        name: As it was asked for.
        id: Hash of its configuration, "sha256:…"; what containers are made from.
        digest: "repository@sha256:…" as a registry knows it; None for an image that was only built here.
        variant: "cpu" or "cuda", what its packages were built for; None where its label does not tell.
        digests: All digests by which registries have it; several where it was pushed to several.
        labels: What its builder wrote on it.
    """

    engine: Engine
    name: str
    id: str
    digest: str | None
    variant: str | None = None
    digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str | None:
        """Name of the base image; None where its builder did not say."""
        return self.labels.get(BASE_NAME_LABEL) or None

    @property
    def base_digest(self) -> str | None:
        """The digest, "sha256:…", by which a registry has the base image."""
        return self.labels.get(BASE_DIGEST_LABEL) or None

    @property
    def revision(self) -> str | None:
        """Commit of the sources, "-dirty" behind it where files differed from that commit."""
        said = self.labels.get(REVISION_LABEL)
        return None if said in (None, "", "unknown") else said


def engine_address() -> str:
    """Return the engine that DOCKER_HOST names, or Docker's own socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE


def find_image(name: str, *, backend: str, needs_gpu: bool = False, remedy: str | None = None) -> Image:
    """Return an image that this machine's engine has.

    Args:
        remedy: What to do about an image that is not there; None is the command that builds it.

    Raises:
        NoContainersError: No engine answers, or it has no such image, or one for a CPU where a GPU is to be used.
    """
    address = engine_address()
    require_socket(address)
    import docker.errors

    silent = NoContainersError(f"no Docker engine answers at {address}", "start an engine")
    try:
        with connect(address, timeout_s=PROBE_TIMEOUT_S) as client:
            engine = engine_from(address, client.version(), client.info())
            attributes = client.images.get(name).attrs
    except docker.errors.ImageNotFound as error:
        raise NoImageError(f"image {name} is not there", remedy or f"make it with: make image-{backend}") from error
    except docker.errors.APIError as error:
        raise NoContainersError(f"the engine at {address} cannot serve: {error.explanation}", "see its log") from error
    except (docker.errors.DockerException, OSError) as error:
        raise silent from error
    image = image_from(engine, name, attributes)
    if needs_gpu and image.variant == "cpu":
        raise NoContainersError(f"image {name} was built for a CPU", f"make one for GPUs with: make image-{backend}")
    return image


@contextmanager
def connect(address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> Iterator[docker.DockerClient]:
    """Yield a client of the engine at `address`, closed afterwards."""
    client = new_client(address, timeout_s=timeout_s)
    try:
        yield client
    finally:
        client.close()


def new_client(address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> docker.DockerClient:
    """Return a client of the engine at `address`, which its user closes."""
    # Slow to import, and needed only where there is an engine.
    import docker

    return docker.DockerClient(base_url=address, version="auto", timeout=timeout_s)


def require_socket(address: str) -> None:
    """See that something listens at an engine's address and that we may speak to it.

    Raises:
        NoContainersError: It is no Unix socket, nobody listens, or permission is denied.
    """
    if not address.startswith("unix://"):
        raise NoContainersError(
            f"the engine at {address} cannot share a runner's socket with this machine", "set DOCKER_HOST to unix://…"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(address.removeprefix("unix://"))
        except PermissionError as error:
            group = group_of(Path(address.removeprefix("unix://")))
            raise NoContainersError(
                f"permission denied on {address}",
                f"join its group (as root: usermod -aG {group} NAME, then log in again; it is as good as root)",
            ) from error
        except OSError as error:
            raise NoContainersError(f"no Docker engine answers at {address}", "start an engine") from error


def group_of(path: Path) -> str:
    """Return the name of a file's group, its number where it has no name, "docker" where it cannot be looked at."""
    try:
        return path.group()
    except KeyError:
        return str(path.stat().st_gid)
    except OSError:
        return "docker"


def engine_from(address: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> Engine:
    """Return what an engine's answers to `version` and `info` say about it. Pure.

    Source: Docker Engine API v1.41, GET /version and GET /info; Podman names itself among the components.

    Raises:
        NoContainersError: It is no Docker engine, or keeps containers from the folders that they are given.
    """
    components = [str(component.get("Name", "")).lower() for component in version.get("Components") or ()]
    options = {str(option).split(",")[0] for option in info.get("SecurityOptions") or ()}
    refused = [does for option, does in UNSUPPORTED.items() if option in options]
    if any("podman" in component for component in components):
        refused.append("is Podman")
    if refused:
        raise NoContainersError(f"the engine at {address} {' and '.join(refused)}", "use Docker without that")
    return Engine(
        address=address,
        name="docker",
        version=str(version.get("Version", "unknown")),
        rootless="name=rootless" in options,
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
    )


def image_from(engine: Engine, name: str, attributes: Mapping[str, Any]) -> Image:
    """Return what an engine's answer says about an image that was asked for by `name`. Pure.

    Source: Docker Engine API v1.41, GET /images/{name}/json.
    """
    digests = tuple(map(str, attributes.get("RepoDigests") or ()))
    labels = (attributes.get("Config") or {}).get("Labels") or {}
    # An image may be in several registries: the digest that was asked for comes first.
    digest = name if name in digests else digests[0] if digests else None
    return Image(
        engine=engine,
        name=name,
        id=str(attributes["Id"]),
        digest=digest,
        variant=labels.get(VARIANT_LABEL),
        digests=digests,
        labels=labels,
    )


@dataclass(frozen=True)
class Reaped:
    """What was found: containers removed, and those left because their coordinator lives or is another user's."""

    removed: tuple[str, ...]
    left: tuple[str, ...]


def reap(address: str | None = None) -> Reaped:
    """Remove every container whose coordinator is dead, and leave all others.

    Args:
        address: The engine; None is the engine that DOCKER_HOST names, or Docker's own socket.

    Raises:
        NoContainersError: No engine answers.
        LaunchError: The engine would not list or remove them.
    """
    address = address or engine_address()
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

    The folder is the parent of the lock's own folder, which goes with its coordinator.
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
