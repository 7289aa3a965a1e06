"""Get images from registries and give them to one, through the local engine. The only place that pulls."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.launch.engine import DEFAULT_ENGINE, connect, find_containers, image_from
from wattdock.launch.images.labels import INPUTS_SHA256, recipe_of

if TYPE_CHECKING:
    from wattdock.launch.engine import Image

# As much of a hash as a tag shows.
TAG_LENGTH = 12
# A layer of many gigabytes may keep an engine silent for minutes.
TRANSFER_TIMEOUT_S = 3600.0
ASK_TIMEOUT_S = 30.0
# How registries say that they do not have something, passed on by engines.
# Source: OCI distribution specification, error codes MANIFEST_UNKNOWN and NAME_UNKNOWN.
UNKNOWN_THERE = re.compile(r"(manifest|name)[ _]unknown", re.IGNORECASE)


def local_name(name: str) -> str:
    """Return how an image is called on an engine that built it."""
    return f"wattdock-{name}"


def engine_address() -> str:
    """Return the engine that DOCKER_HOST names, or the usual one."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE


def pull(reference: str) -> Image:
    """Get an image from its registry.

    Raises:
        PreflightError: The engine or the registry would not.
    """
    from docker.errors import DockerException

    try:
        with connect(engine_address(), timeout_s=TRANSFER_TIMEOUT_S) as client:
            # Engines answer with 200 before they begin; what goes wrong then stands in what they send.
            for line in client.api.pull(reference, stream=True, decode=True):
                if "error" in line:
                    raise PreflightError(f"cannot pull {reference}: {in_one_line(line['error'])}")
            return image_from(reference, client.images.get(reference).attrs)
    except (DockerException, OSError) as error:
        raise PreflightError(f"cannot pull {reference}: {said(error)}") from error


def tag_if_free(image: Image, name: str) -> bool:
    """Give an image a name that no other image has yet; return whether it has that name now."""
    from docker.errors import ImageNotFound

    with connect(engine_address()) as client:
        try:
            return str(client.images.get(name).id) == image.id
        except ImageNotFound:
            return bool(client.images.get(image.id).tag(name, "latest"))


def tag(image_id: str, name: str) -> None:
    """Give an image that is here one more name, "repository:tag".

    Raises:
        PreflightError: The engine would not.
    """
    from docker.errors import DockerException

    try:
        with connect(engine_address()) as client:
            client.images.get(image_id).tag(*name.rsplit(":", 1))
    except (DockerException, OSError) as error:
        raise PreflightError(f"cannot call image {image_id} {name}: {said(error)}") from error


def untag(name: str) -> None:
    """Take a name from its image; one that is gone is left at that."""
    from docker.errors import DockerException

    with suppress(DockerException, OSError), connect(engine_address()) as client:
        client.images.remove(name, noprune=True)


def push(name: str, to: str) -> str:
    """Give `wattdock-<name>` to a registry, under a tag of its own; return its digest there.

    The tag is the beginning of its inputs' hash and of its id: one that moved on to another build of the same inputs
    would leave the locked one without a tag, and registries remove what has none.

    Args:
        to: Registry and, where it has one, a prefix: "ghcr.io/team".

    Returns:
        "registry/prefix/wattdock-name@sha256:…".

    Raises:
        PreflightError: There is no such image, it does not say what it was made from, or the registry would not.
    """
    from docker.errors import DockerException

    how = f"build it with: wattdock images build {name}"
    image = find_containers(local_name(name), backend=name, how=how).image
    recipe = recipe_of(image.labels)
    if recipe is None:
        raise PreflightError(f"image {image.name} does not say what it was made from; {how}")
    repository = f"{to.rstrip('/')}/{local_name(name)}"
    tag = "-".join(hash_.removeprefix("sha256:")[:TAG_LENGTH] for hash_ in (image.labels[INPUTS_SHA256], image.id))
    digest = None
    try:
        with connect(engine_address(), timeout_s=TRANSFER_TIMEOUT_S) as client:
            client.images.get(image.id).tag(repository, tag)
            for line in client.api.push(repository, tag=tag, stream=True, decode=True):
                if "error" in line:
                    raise PreflightError(f"cannot push to {repository}: {in_one_line(line['error'])}")
                digest = line.get("aux", {}).get("Digest", digest)
    except (DockerException, OSError) as error:
        raise PreflightError(f"cannot push to {repository}: {said(error)}") from error
    if digest is None:
        raise PreflightError(f"the engine did not say under which digest {repository}:{tag} was pushed")
    return f"{repository}@{digest}"


def registry_digest(reference: str) -> str:
    """Ask an image's registry for the digest of what the name stands for now; gets nothing else of it.

    Returns:
        "sha256:…".

    Raises:
        PreflightError: The engine or the registry would not say.
    """
    from docker.errors import DockerException

    try:
        with connect(engine_address(), timeout_s=ASK_TIMEOUT_S) as client:
            return str(client.images.get_registry_data(reference).id)
    except (DockerException, OSError) as error:
        raise PreflightError(f"the registry of {reference} does not tell its digest: {said(error)}") from error


class NotInRegistryError(PreflightError):
    """A registry answered, and does not have the image."""


def require_in_registry(reference: str) -> None:
    """Ask a registry whether it has an image of this digest; gets nothing else of it.

    Raises:
        NotInRegistryError: It has not.
        PreflightError: It could not be asked, or would not say.
    """
    try:
        registry_digest(reference)
    except PreflightError as error:
        if is_gone(str(error), reference):
            raise NotInRegistryError(f"its registry no longer has {reference}") from error
        raise


def is_gone(message: str, reference: str) -> bool:
    """Whether an engine passes on that a registry does not have this image; a 404 of anything else says nothing. Pure.

    containerd names the image that was not found, where others pass the registry's own code on.
    """
    return bool(UNKNOWN_THERE.search(message) or re.search(re.escape(reference) + r": not found$", message))


def said(error: Exception) -> str:
    """Return what an engine said, in one line."""
    return in_one_line(getattr(error, "explanation", None) or error)


def in_one_line(message: object) -> str:
    """Return a message without its line breaks."""
    return " ".join(str(message).split())
