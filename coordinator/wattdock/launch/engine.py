"""The Docker engine of this machine: whether it serves, which images it has, which orphans it still runs.

Starts nothing and pulls nothing. An orphan is a container whose coordinator is dead. A coordinator is alive while it
holds the lock on the folder that its containers' labels name; a process id would prove nothing.
"""

from __future__ import annotations

import contextlib
import http
import os
import socket
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.clock import Clock
from wattdock.errors import Cause, LaunchError, PreflightError
from wattdock.files import is_held
from wattdock.host import folders

if TYPE_CHECKING:
    from collections.abc import Mapping

    import docker
    from docker.models.containers import Container

# Where Docker's engine listens unless it is told otherwise.
OWN_SOCKET = "unix:///var/run/docker.sock"
PROBE_TIMEOUT_S = 3
# Creating a container of a large image on a busy disk takes seconds.
CALL_TIMEOUT_S = 120
# Labels of a container: its user, the folder that its coordinator holds and where it lies, its socket's folder.
OWNER_LABEL, ALIVE_LABEL, PLACE_LABEL = "wattdock.owner", "wattdock.alive", "wattdock.alive_in"
FOLDER_LABEL = "wattdock.folder"
# Digits of the largest user id, 4294967295.
UID_DIGITS = 10
REMOVAL_WAIT_S = 60
# Security options of an engine that keep a container from the folders that are mounted into it.
UNSUPPORTED = {"name=userns": "maps users (userns-remap)", "name=selinux": "labels containers (SELinux)"}
VARIANT_LABEL = "wattdock.variant"
# Source: OCI image specification, annotations.
REVISION_LABEL = "org.opencontainers.image.revision"
BASE_NAME_LABEL, BASE_DIGEST_LABEL = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


class NoContainersError(PreflightError):
    """No container can be started from an image here."""

    usual_cause = Cause.NO_ENGINE


class NoImageError(NoContainersError):
    """An engine answers and has no such image."""

    usual_cause = Cause.NO_IMAGE


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers, or a program that starts containers by itself.

    Attributes:
        address: Its Unix socket, "unix:///…"; the path of the program.
        rootless: It runs as the user, so that root in its containers is the user.
        name: "docker", or the launcher that calls the program.
    """

    address: str
    version: str
    rootless: bool = False
    name: str = "docker"


@dataclass(frozen=True)
class Image:
    """An image that is on this machine.

    Attributes:
        engine: The engine that has it.
        name: The name or digest that it was looked up by.
        id: Hash of its configuration, "sha256:…"; containers are made from it.
        digest: "repository@sha256:…" by which a registry has it; None for an image that was only built here.
        digests: All digests by which registries have it; several where it was pushed to several.
        labels: By name, as its builder set them.
    """

    engine: Engine
    name: str
    id: str
    digest: str | None
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
        revision = self.labels.get(REVISION_LABEL)
        return None if revision in (None, "", "unknown") else revision


def engine_address() -> str:
    """Return the engine that the command `docker` asks: DOCKER_HOST's, the context's, or Docker's own socket.

    Raises:
        NoContainersError: The context names no engine.

    Source: Docker CLI 28, `resolveContextName` in cli/command/cli.go: DOCKER_HOST, DOCKER_CONTEXT, `currentContext`.
    """
    if address := os.environ.get("DOCKER_HOST"):
        return address
    # Slow to import, and needed only where the command `docker` is configured by its files.
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name

    name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    context = ContextAPI.get_context(name)
    if context and context.Host:
        return str(context.Host)
    raise NoContainersError(
        f"Docker's context {name!r} names no engine", "choose one that `docker context ls` lists, or set DOCKER_HOST"
    )


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

    try:
        with closing(connect(address, timeout_s=PROBE_TIMEOUT_S)) as client:
            engine = engine_from(address, client.version(), client.info())
            attributes = client.images.get(name).attrs
    except docker.errors.ImageNotFound as error:
        raise NoImageError(f"image {name} is not there", remedy or f"make it with: make image-{backend}") from error
    except docker.errors.APIError as error:
        raise NoContainersError(f"the engine at {address} cannot serve: {error.explanation}", "see its log") from error
    except (docker.errors.DockerException, OSError) as error:
        raise NoContainersError(f"no Docker engine answers at {address}", "start a container engine") from error
    image = image_from(engine, name, attributes)
    if needs_gpu and image.labels.get(VARIANT_LABEL) == "cpu":
        raise NoContainersError(f"image {name} was built for a CPU", f"make one for GPUs with: make image-{backend}")
    return image


def connect(address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> docker.DockerClient:
    """Return a client of the engine at `address`; the caller closes it."""
    # Slow to import, and needed only where there is an engine.
    import docker

    return docker.DockerClient(base_url=address, version="auto", timeout=timeout_s)


def require_socket(address: str) -> None:
    """Check that something listens at an engine's address and that this user may talk to it.

    Raises:
        NoContainersError: It is no Unix socket, nobody listens, or permission is denied.
    """
    if not address.startswith("unix://"):
        raise NoContainersError(
            f"the engine at {address} cannot share a runner's socket with this machine",
            "set DOCKER_HOST to unix://…, or choose a context of this machine",
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(address.removeprefix("unix://"))
        except PermissionError as error:
            raise NoContainersError(
                f"permission denied on {address}",
                "join the group of that file, usually docker (as root: usermod -aG docker NAME, then log in again; "
                "that is as good as root)",
            ) from error
        except OSError as error:
            raise NoContainersError(f"no Docker engine answers at {address}", "start a container engine") from error


def engine_from(address: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> Engine:
    """Return the engine that its answers to `version` and `info` describe. Pure.

    Source: Docker Engine API v1.41, GET /version and GET /info; Podman names itself among the components.

    Raises:
        NoContainersError: It is no Docker engine, or keeps containers from the folders that are mounted into them.
    """
    components = [str(component.get("Name", "")).lower() for component in version.get("Components") or ()]
    options = {str(option).split(",")[0] for option in info.get("SecurityOptions") or ()}
    problems = [problem for option, problem in UNSUPPORTED.items() if option in options]
    if any("podman" in component for component in components):
        problems.append("is Podman")
    if problems:
        raise NoContainersError(f"the engine at {address} {' and '.join(problems)}", "use Docker without that")
    return Engine(address=address, version=str(version.get("Version", "unknown")), rootless="name=rootless" in options)


def image_from(engine: Engine, name: str, attributes: Mapping[str, Any]) -> Image:
    """Return the image that an engine's answer describes; `name` is what it was looked up by. Pure.

    Source: Docker Engine API v1.41, GET /images/{name}/json.
    """
    digests = tuple(map(str, attributes.get("RepoDigests") or ()))
    labels = (attributes.get("Config") or {}).get("Labels") or {}
    # An image may be in several registries; the digest that it was looked up by comes first.
    digest = name if name in digests else digests[0] if digests else None
    return Image(engine=engine, name=name, id=str(attributes["Id"]), digest=digest, digests=digests, labels=labels)


@dataclass(frozen=True)
class Reaped:
    """Containers that were removed, and those that stay: in use, or another user's; `engine`: whether there is one."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]
    engine: bool = True


def reap() -> Reaped:
    """Remove all orphans; there are none where nothing names an engine and Docker's own socket is not there.

    Raises:
        NoContainersError: No engine answers.
        LaunchError: The engine would not list or remove them.
    """
    address = engine_address()
    if address == OWN_SOCKET != os.environ.get("DOCKER_HOST") and not os.path.lexists(address.removeprefix("unix://")):
        return Reaped((), (), engine=False)
    require_socket(address)
    from docker.errors import DockerException

    removed: list[str] = []
    in_use: list[str] = []
    try:
        with closing(connect(address)) as client:
            labelled = {"label": ALIVE_LABEL}
            for container in client.containers.list(all=True, filters=labelled, ignore_removed=True):
                orphaned = is_orphan(container.labels, uid=os.getuid())
                (removed if orphaned else in_use).append(f"{container.name} ({container.short_id})")
                if orphaned:
                    remove(container)
                    remove_socket_folder(container.labels)
    except (DockerException, OSError) as error:
        raise LaunchError(f"the engine at {address} cannot remove orphans: {error}") from error
    return Reaped(tuple(removed), tuple(in_use))


def remove(container: Container) -> None:
    """Remove a container, and return only once it is gone, even if others remove it at the same time.

    Raises:
        docker.errors.DockerException, OSError: The engine refused or did not answer.
    """
    from docker.errors import APIError, NotFound

    with contextlib.suppress(NotFound):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            # Its keeper or another coordinator was faster; until they are done, it still uses its GPUs.
            if error.status_code != http.HTTPStatus.CONFLICT:
                raise
            container.wait(condition="removed", timeout=REMOVAL_WAIT_S)


def is_orphan(labels: Mapping[str, str], *, uid: int) -> bool:
    """Whether a container's coordinator is dead, and this user may remove it: its owner or root."""
    owner = labels.get(OWNER_LABEL, "")
    # Whoever may start containers may also write labels; no coordinator writes a null character or a longer id.
    if (uid != 0 and owner != str(uid)) or "\0" in labels[ALIVE_LABEL] or len(owner) > UID_DIGITS:
        return False
    lock = Path(labels[ALIVE_LABEL])
    boot, _, folder = labels.get(PLACE_LABEL, "").partition(" ")
    boot_here, _, folder_here = place_of(lock).partition(" ")
    if boot and boot != boot_here:
        return True
    # From inside a container, or under a private /tmp, the folder of a living coordinator would seem absent.
    if folder and folder != folder_here:
        return False
    return not (owner.isdecimal() and is_held(lock, uid=int(owner)))


def owner_labels(alive_lock: Path, socket_folder: Path) -> dict[str, str]:
    """Return the labels by which `reap` finds a container, and knows whether its coordinator lives."""
    return {
        OWNER_LABEL: str(os.getuid()),
        ALIVE_LABEL: str(alive_lock),
        PLACE_LABEL: place_of(alive_lock),
        FOLDER_LABEL: str(socket_folder),
    }


def place_of(lock: Path) -> str:
    """Return the boot id and the identity of the folder around a coordinator's folder, which goes with its coordinator.

    Equal where the path leads to the same folder. Containers see their host's boot.
    """
    boot = Clock().identity().boot_id
    try:
        folder = lock.parent.stat()
    except OSError:
        return f"{boot} None"
    return f"{boot} {folder.st_dev}:{folder.st_ino}"


def remove_socket_folder(labels: Mapping[str, str]) -> None:
    """Remove the socket of a dead runner and its folder; nothing else, whatever the label names."""
    if folder := labels.get(FOLDER_LABEL):
        with contextlib.suppress(OSError, ValueError):
            (Path(folder) / folders.SOCKET_NAME).unlink(missing_ok=True)
            Path(folder).rmdir()
