"""The container engine of this machine: whether one answers, what it is, and whether it has an image.

Docker, or Podman behind the same API. Starts nothing and pulls nothing.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.errors import PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import docker

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
PROBE_TIMEOUT_S = 3
# Creating a container of a large image on a busy disk takes seconds.
CALL_TIMEOUT_S = 120
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
        name: "docker" or "podman".
        rootless: It runs as the user, so that its containers' root is the user.
        remapped: Containers' users are others on the host unless a container asks for the host's.
        selinux: Containers are labelled, and may not reach unlabelled sockets.
        runtimes: Names of what starts its containers; NVIDIA's gives them GPUs.
    """

    address: str
    name: str
    version: str
    rootless: bool = False
    remapped: bool = False
    selinux: bool = False
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """An image that is on this machine.

    Attributes:
        name: As it was asked for.
        id: Hash of its configuration, "sha256:…"; what containers are made from.
        digest: "repository@sha256:…" as a registry knows it; None for one that was only built here.
        variant: "cpu" or "cuda", what its packages were built for; None where its label does not tell.
        digests: All digests by which registries have it; several where it was pushed to several.
        labels: What its builder wrote on it.
    """

    name: str
    id: str
    digest: str | None
    variant: str | None = None
    digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str | None:
        """Name of the image that this one was built on; None where its builder did not say."""
        return self.labels.get(BASE_NAME_LABEL) or None

    @property
    def base_digest(self) -> str | None:
        """The digest, "sha256:…", by which a registry has that image."""
        return self.labels.get(BASE_DIGEST_LABEL) or None

    @property
    def revision(self) -> str | None:
        """Commit of the sources, "-dirty" behind it where files differed from that commit."""
        said = self.labels.get(REVISION_LABEL)
        return None if said in (None, "", "unknown") else said


@dataclass(frozen=True)
class Containers:
    """An engine, and the image on it that serves a backend."""

    engine: Engine
    image: Image


def find_containers(image: str, *, backend: str, needs_gpu: bool = False, how: str | None = None) -> Containers:
    """Return this machine's engine and an image that it has.

    Args:
        how: What would bring an image that is not there; None is the command that builds it.

    Raises:
        NoContainersError: No engine answers, or it has no such image, or one for a CPU where a GPU is to be used.
    """
    address = os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    require_socket(address)
    import docker.errors

    silent = NoContainersError(f"no Docker engine answers at {address}", "start an engine")
    try:
        with connect(address, timeout_s=PROBE_TIMEOUT_S) as client:
            engine = engine_from(address, client.version(), client.info())
            found = client.images.get(image)
    except docker.errors.ImageNotFound as error:
        remedy = how or f"make it with: make image-{backend}"
        raise NoImageError(f"image {image} is not there", remedy) from error
    except docker.errors.APIError as error:
        raise NoContainersError(f"the engine at {address} cannot serve: {error.explanation}", "see its log") from error
    except (docker.errors.DockerException, OSError) as error:
        raise silent from error
    described = image_from(image, found.attrs)
    if needs_gpu and described.variant == "cpu":
        raise NoContainersError(f"image {image} was built for a CPU", f"make one for GPUs with: make image-{backend}")
    return Containers(engine, described)


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
    """
    components = [str(component.get("Name", "")) for component in version.get("Components") or ()]
    options = {str(option).split(",")[0] for option in info.get("SecurityOptions") or ()}
    return Engine(
        address=address,
        name="podman" if any("podman" in name.lower() for name in components) else "docker",
        version=str(version.get("Version", "unknown")),
        rootless="name=rootless" in options,
        remapped="name=userns" in options,
        selinux="name=selinux" in options,
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
    )


def image_from(name: str, attributes: Mapping[str, Any]) -> Image:
    """Return what an engine's answer says about an image that was asked for by `name`. Pure.

    Source: Docker Engine API v1.41, GET /images/{name}/json.
    """
    digests = tuple(map(str, attributes.get("RepoDigests") or ()))
    labels = (attributes.get("Config") or {}).get("Labels") or {}
    # An image may be in several registries; asked for by one's digest, that is the one that counts.
    digest = name if name in digests else digests[0] if digests else None
    return Image(
        name=name,
        id=str(attributes["Id"]),
        digest=digest,
        variant=labels.get(VARIANT_LABEL),
        digests=digests,
        labels=labels,
    )
