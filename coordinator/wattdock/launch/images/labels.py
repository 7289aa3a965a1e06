"""What `wattdock images build` writes on an image, so that the image itself says what it was made from. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.launch.images.inputs import inputs_from, inputs_sha256, inputs_text

if TYPE_CHECKING:
    from collections.abc import Mapping

INPUTS_SHA256 = "wattdock.inputs_sha256"
INPUTS = "wattdock.inputs"
BUILD_ARGS = "wattdock.build_args"
SOURCE_DATE = "wattdock.source_date"
# Source: OCI image specification, annotations.
BASE_DIGEST = "org.opencontainers.image.base.digest"
BASE_NAME = "org.opencontainers.image.base.name"


@dataclass(frozen=True)
class Recipe:
    """What an image was made from.

    Attributes:
        build_args: As a person would give them: BASE is the base's name, with its digest where it has one; the build
            itself is given a name of its own that nobody can move meanwhile.
        base_digest: "sha256:…" as a registry has the base; None for a base that no registry has.
        source_date: UTC time of the sources.
    """

    inputs: Mapping[str, str]
    build_args: Mapping[str, str]
    base_digest: str | None
    source_date: str


def labels_from(recipe: Recipe) -> dict[str, str]:
    """Return the labels that say it."""
    return {
        INPUTS_SHA256: inputs_sha256(recipe.inputs),
        INPUTS: inputs_text(recipe.inputs),
        BUILD_ARGS: json.dumps(dict(recipe.build_args), sort_keys=True),
        SOURCE_DATE: recipe.source_date,
        BASE_NAME: recipe.build_args["BASE"],
        # Written even where it is empty: an image inherits the labels of its base.
        BASE_DIGEST: recipe.base_digest or "",
    }


def recipe_of(labels: Mapping[str, str]) -> Recipe | None:
    """Return what an image's labels say; None for one that was built some other way, or whose labels disagree."""
    if not {INPUTS_SHA256, INPUTS, BUILD_ARGS, SOURCE_DATE} <= labels.keys():
        return None
    try:
        build_args = json.loads(labels[BUILD_ARGS])
    except ValueError:
        return None
    recipe = Recipe(
        inputs=inputs_from(labels[INPUTS]),
        build_args=build_args,
        base_digest=labels.get(BASE_DIGEST) or None,
        source_date=labels[SOURCE_DATE],
    )
    return recipe if inputs_sha256(recipe.inputs) == labels[INPUTS_SHA256] else None
