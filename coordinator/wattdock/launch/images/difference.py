"""Hold an image that is here, or the sources that are here, against what is locked. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.launch.images.inputs import BASE_INPUT, WHEELS, in_short, input_differences
from wattdock.launch.images.labels import recipe_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.launch.engine import Containers
    from wattdock.launch.images.lock import LockedImage

SHOWN = 19


def image_differences(locked: LockedImage, found: Containers) -> list[str]:
    """Return in what an image that an engine has differs from the locked one; empty where it is that one.

    Ids are compared only where the engine keeps images the way the locking one did.
    """
    image, differences = found.image, []
    if locked.repo_digest and locked.repo_digest not in image.digests:
        differences.append(f"its digests are {', '.join(image.digests) or 'none'}, locked is {locked.repo_digest}")
    same_store = locked.image_store == found.engine.image_store
    if locked.image_id and same_store and locked.image_id != image.id:
        differences.append(f"its id is {image.id[:SHOWN]}, locked is {locked.image_id[:SHOWN]}")
    if locked.platform and image.platform and locked.platform != image.platform:
        differences.append(f"it is for {image.platform}, locked is {locked.platform}")
    if locked.inputs_sha256:
        recipe = recipe_of(image.labels)
        unlike = input_differences(locked.inputs, recipe.inputs) if recipe else ["it does not say which"]
        if unlike:
            differences.append(f"it was built from other inputs: {in_short(unlike)}")
    return differences


def source_differences(inputs: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return in what this checkout differs from the inputs of an image.

    The base and wheels that were not fetched here are left aside: a checkout alone does not hold them.
    """
    fetched = {name for name in here if name.startswith(WHEELS)}
    aside = {name for name in inputs if name.startswith(WHEELS)} if not fetched else set()
    wanted = {name: value for name, value in inputs.items() if name not in aside | {BASE_INPUT}}
    return input_differences(wanted, {name: value for name, value in here.items() if name != BASE_INPUT})
