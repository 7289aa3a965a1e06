"""Get images from registries and give them to one, through the local engine. The only place that pulls."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.launch.engine import DEFAULT_ENGINE, connect, find_containers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    import docker

    from wattdock.launch.engine import Image

# As much of an image's id as a tag shows.
TAG_LENGTH = 12
# A layer of many gigabytes may keep an engine silent for minutes.
TRANSFER_TIMEOUT_S, ASK_TIMEOUT_S = 3600.0, 30.0
# How registries say that they do not have something, passed on by engines.
# Source: OCI distribution specification, error codes MANIFEST_UNKNOWN and NAME_UNKNOWN.
UNKNOWN_THERE = re.compile(r"(manifest|name)[ _]unknown", re.IGNORECASE)


class NotInRegistryError(PreflightError):
    """A registry answered, and does not have the image."""


def local_name(name: str) -> str:
    """Return how an image is called on an engine that built it."""
    return f"wattdock-{name}"


def engine_address() -> str:
    """Return the engine that DOCKER_HOST names, or the usual one."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE


def pull(reference: str) -> None:
    """Get an image from its registry.

    Raises:
        PreflightError: The engine or the registry would not.
    """
    doing = f"cannot pull {reference}"
    with _engine(doing, TRANSFER_TIMEOUT_S) as client:
        _followed(client.api.pull(reference, stream=True, decode=True), doing)
        client.images.get(reference)


def tag_if_free(image: Image, name: str) -> bool:
    """Give an image a name that no other image has yet; return whether it has that name now."""
    from docker.errors import ImageNotFound

    with _engine(f"cannot call image {image.id} {name}", ASK_TIMEOUT_S) as client:
        try:
            return str(client.images.get(name).id) == image.id
        except ImageNotFound:
            return bool(client.images.get(image.id).tag(name, "latest"))


def push_image(name: str, to: str) -> str:
    """Give `wattdock-<name>` to a registry; return its digest there.

    The image gets a tag of its own, the beginning of its id: registries remove what has no tag, and a tag that moved on
    to a later build would leave the locked image without one.

    Args:
        to: Registry and, where it has one, a prefix: "ghcr.io/team".

    Returns:
        "registry/prefix/wattdock-name@sha256:…".

    Raises:
        PreflightError: There is no such image, or the registry would not.
    """
    how = f"build it with: wattdock images build {name}"
    image = find_containers(local_name(name), backend=name, how=how).image
    repository = f"{to.rstrip('/')}/{local_name(name)}"
    tag, doing = image.id.removeprefix("sha256:")[:TAG_LENGTH], f"cannot push to {repository}"
    with _engine(doing, TRANSFER_TIMEOUT_S) as client:
        client.images.get(image.id).tag(repository, tag)
        lines = _followed(client.api.push(repository, tag=tag, stream=True, decode=True), doing)
    digest = next((line["aux"]["Digest"] for line in reversed(lines) if "Digest" in line.get("aux", {})), None)
    if digest is None:
        raise PreflightError(f"the engine did not say under which digest {repository}:{tag} was pushed")
    return f"{repository}@{digest}"


def registry_digest(reference: str) -> str:
    """Ask an image's registry for the digest of what the name stands for now; gets nothing else of it.

    Returns:
        "sha256:…".

    Raises:
        NotInRegistryError: The registry answered, and does not have it.
        PreflightError: The engine or the registry would not say.
    """
    try:
        with _engine(f"the registry of {reference} does not tell its digest", ASK_TIMEOUT_S) as client:
            return str(client.images.get_registry_data(reference).id)
    except PreflightError as error:
        if is_gone(str(error), reference):
            raise NotInRegistryError(f"its registry no longer has {reference}") from error
        raise


def is_gone(message: str, reference: str) -> bool:
    """Whether an engine passes on that a registry does not have this image; a 404 of anything else says nothing. Pure.

    containerd names the image that was not found, where others pass the registry's own code on.
    """
    return bool(UNKNOWN_THERE.search(message) or re.search(re.escape(reference) + r": not found$", message))


@contextmanager
def _engine(doing: str, timeout_s: float) -> Iterator[docker.DockerClient]:
    """Yield a client of the engine; what it refuses meanwhile is one line that begins with `doing`."""
    from docker.errors import DockerException

    try:
        with connect(engine_address(), timeout_s=timeout_s) as client:
            yield client
    except (DockerException, OSError) as error:
        said = " ".join(str(getattr(error, "explanation", None) or error).split())
        raise PreflightError(f"{doing}: {said}") from error


def _followed(lines: Iterable[Mapping[str, Any]], doing: str) -> list[Mapping[str, Any]]:
    """Return all that an engine sends of a transfer; it has answered with 200 before what goes wrong is in there."""
    seen = []
    for line in lines:
        if "error" in line:
            raise PreflightError(f"{doing}: {' '.join(str(line['error']).split())}")
        seen.append(line)
    return seen
