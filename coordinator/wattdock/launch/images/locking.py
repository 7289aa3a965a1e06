"""Make entries of the lock: from an image that is on the engine, or from what can be said without one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wattdock.errors import PreflightError
from wattdock.launch.engine import NoContainersError, NoImageError, find_containers
from wattdock.launch.images.bases import familiar
from wattdock.launch.images.difference import source_differences
from wattdock.launch.images.inputs import (
    BASE_INPUT,
    VARIANT_INPUT,
    WHEELS,
    default_base,
    in_short,
    inputs_sha256,
    read_inputs,
)
from wattdock.launch.images.labels import recipe_of
from wattdock.launch.images.lock import LockedImage
from wattdock.launch.images.registry import local_name, registry_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.launch.engine import Containers
    from wattdock.launch.images.labels import Recipe

NOT_BUILT = "not built yet: wattdock images build, then push, then lock"
NOT_REACHED = "its registry was not reached; on a connected machine: wattdock images lock"
NEVER_PUSHED = "in no registry: wattdock images push {name} --to REGISTRY, then wattdock images lock {name}"


def new_entries(
    names: Sequence[str],
    before: Mapping[str, LockedImage],
    *,
    registry: str | None,
    tell: Callable[[PreflightError], None],
) -> dict[str, LockedImage]:
    """Return what can be locked of several images now: all of them, or none.

    A lock in which some entries are of this checkout and some of an older one would look like one decision.

    Args:
        registry: Beginning of the digest to take where several registries have an image.
        tell: Told why each image that cannot be locked cannot, and which registry did not answer.

    Raises:
        ConfigError: There is no image of one of these names.
        PreflightError: One of them cannot be locked, or no engine answers.
    """
    entries, refused = {}, []
    for name in names:
        try:
            entries[name] = new_entry(name, before.get(name), registry=registry, unreachable=tell)
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
    return entries


def new_entry(
    name: str, before: LockedImage | None, *, registry: str | None, unreachable: Callable[[PreflightError], None]
) -> LockedImage:
    """Return what can be locked of an image now; without one on the engine, what was locked before stays.

    Args:
        registry: Beginning of the digest to take where several registries have the image.
        unreachable: Told why a base's registry did not answer.

    Raises:
        PreflightError: The image on the engine is not one that this checkout makes, or its digest is ambiguous.
    """
    how = f"build it with: wattdock images build {name}"
    try:
        found = find_containers(local_name(name), backend=name, how=how)
    except NoImageError:
        return without_image(name, before, unreachable)
    recipe = recipe_of(found.image.labels)
    if recipe is None:
        raise PreflightError(f"image {found.image.name} does not say what it was made from; {how}")
    here = read_inputs(name, variant=recipe.inputs[VARIANT_INPUT], base=recipe.inputs[BASE_INPUT])
    if unlike := source_differences(recipe.inputs, here):
        raise PreflightError(f"image {found.image.name} was built from other inputs: {in_short(unlike)}; {how}")
    return from_image(name, found, recipe, registry=registry)


def from_image(name: str, found: Containers, recipe: Recipe, *, registry: str | None) -> LockedImage:
    """Return the entry of an image that says what it was made from. Pure but for the date.

    Raises:
        PreflightError: Several registries have it and none of them was chosen.
    """
    digest = _repo_digest(found.image.digests, registry)
    unresolved = {}
    if digest is None:
        unresolved["repo_digest"] = NEVER_PUSHED.format(name=name)
    if recipe.base_digest is None:
        unresolved["base_digest"] = f"{recipe.build_args['BASE']} is in no registry that this engine got it from"
    if not any(path.startswith(WHEELS) for path in recipe.inputs):
        unresolved["wheels"] = f"none were given; pip's index decided: make wheels-{name}, then build again"
    return LockedImage(
        repo_digest=digest,
        image_id=found.image.id,
        image_store=found.engine.image_store,
        platform=found.image.platform,
        base=recipe.build_args["BASE"].partition("@")[0],
        base_digest=recipe.base_digest,
        inputs_sha256=inputs_sha256(recipe.inputs),
        build_args=dict(recipe.build_args),
        source_date=recipe.source_date,
        date=datetime.now(UTC).date(),
        unresolved=unresolved,
        inputs=dict(sorted(recipe.inputs.items())),
    )


def without_image(name: str, before: LockedImage | None, unreachable: Callable[[PreflightError], None]) -> LockedImage:
    """Return the entry of an image that is not here: what was locked before, its base resolved where it was not."""
    today = datetime.now(UTC).date()
    if before is None:
        reasons = dict.fromkeys(("repo_digest", "image_id", "inputs_sha256"), NOT_BUILT)
        reasons["base_digest"] = NOT_REACHED
        before = LockedImage(base=default_base(name, "cuda"), date=today, unresolved=reasons)
    if before.base_digest is not None:
        return before
    resolved: dict[str, Any] = {"date": today, "unresolved": dict(before.unresolved)}
    try:
        resolved["base_digest"] = registry_digest(before.base)
        del resolved["unresolved"]["base_digest"]
    except PreflightError as error:
        unreachable(error)
        resolved["unresolved"]["base_digest"] = NOT_REACHED
    return LockedImage.model_validate({**before.model_dump(), **resolved})


def _repo_digest(digests: Sequence[str], registry: str | None) -> str | None:
    fitting = [one for one in digests if registry is None or familiar(one).startswith(familiar(registry))]
    if len(fitting) > 1:
        raise PreflightError(f"several registries have it ({', '.join(fitting)}); choose one with --registry")
    if registry and not fitting:
        raise PreflightError(f"no digest of it begins with {registry} (there are: {', '.join(digests) or 'none'})")
    return fitting[0] if fitting else None
