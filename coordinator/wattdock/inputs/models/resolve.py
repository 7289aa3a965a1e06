"""One way in for every kind of model.

Decides who resolves a spec; does no work itself.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from wattdock.config import EMBEDDED_MODEL
from wattdock.errors import ConfigError
from wattdock.inputs.models.embedded import resolve_embedded
from wattdock.inputs.models.folder import ModelFolder, check_folder, describe_folder, sampled_revision
from wattdock.inputs.models.shapes import presets, resolve_shape, shape_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.config import ModelSpec


def check_model(spec: ModelSpec) -> None:
    """Raise what can be known to be wrong without network and without writing.

    Raises:
        ConfigError: Unknown shape, impossible id, nearly the embedded model's, or a revision of what has none.
        PreflightError: A local folder is missing, or its config or weights are.
    """
    if spec.revision is not None and not spec.on_hub:
        what = spec.id or spec.shape or spec.path
        raise ConfigError(f"revision {spec.revision!r} is given, but {what} has none; only a hub model has revisions")
    if spec.shape is not None:
        shape_config(spec.shape)
    elif spec.path is not None:
        check_folder(spec.path.expanduser().absolute())
    elif spec.id is not None and spec.on_hub:
        from wattdock.inputs.models.hub import check_id

        check_id(spec.id)
        _require_no_near_miss(spec.id)


def resolve_model(spec: ModelSpec, *, home: Path, progress: Callable[[str], None]) -> ModelFolder:
    """Return a folder that a runner can load, fetching or making it on first use.

    Args:
        home: WATTDOCK_HOME; everything fetched or made goes below `<home>/models`.
        progress: Gets one line per slow step, download sizes first.

    Raises:
        ConfigError: What was asked for cannot exist.
        PreflightError: It cannot be had here.
    """
    check_model(spec)
    home = home.expanduser().absolute()
    if spec.shape is not None:
        return resolve_shape(spec.shape, home=home, progress=progress)
    if spec.path is not None:
        path = spec.path.expanduser().resolve()
        return describe_folder(path, kind="path", name=path.name, revision=sampled_revision(path))
    if spec.id is None:
        raise ConfigError("no model is given; set one of id, path and shape")
    if spec.id == EMBEDDED_MODEL:
        return resolve_embedded(home=home, progress=progress)
    from wattdock.inputs.models.hub import resolve_hub

    with_code = spec.trust_remote_code
    return resolve_hub(spec.id, revision=spec.revision, with_code=with_code, home=home, progress=progress)


def _require_no_near_miss(model_id: str) -> None:
    """Raise for a known shape's name, or a misspelt embedded model: a hub would only be asked for these in vain."""
    if "/" in model_id:
        return
    if shape := presets().get(model_id.lower()):
        drawn = f"shape:{shape.name} for random weights" if shape.servable else ""
        ways = " or ".join(filter(None, (drawn, f"{shape.id} for the hub's" if shape.id else "")))
        raise ConfigError(f"{model_id!r} is the name of a shape; write {ways or 'another'}")
    if difflib.get_close_matches(model_id.lower(), [EMBEDDED_MODEL], n=1):
        raise ConfigError(
            f"{model_id!r} is no model known here; did you mean {EMBEDDED_MODEL!r}? A hub's ids look like OWNER/NAME"
        )
