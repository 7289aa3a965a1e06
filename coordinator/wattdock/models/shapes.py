"""Synthetic models: an architecture's config.json, for weights that a runner draws.

Figures live in data/shapes.yaml with their sources.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import ConfigError
from wattdock.models.build import build_once
from wattdock.models.folder import ModelFolder, describe_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    """Every known shape's config by name."""
    shapes: dict[str, dict[str, Any]] = yaml.safe_load((files("wattdock") / "data/shapes.yaml").read_text("utf-8"))
    return shapes


def shape_config(name: str) -> dict[str, Any]:
    """Return the config.json of a shape.

    Raises:
        ConfigError: No shape has this name.
    """
    if (config := _shapes().get(name)) is not None:
        return config
    near = difflib.get_close_matches(name.lower(), _shapes(), n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"unknown shape {name!r}; {hint}known are {', '.join(sorted(_shapes()))}")


def resolve_shape(name: str, *, home: Path, progress: Callable[[str], None]) -> ModelFolder:
    """Return a folder with nothing but the shape's config.json, made on first use.

    Raises:
        ConfigError: No shape has this name.
        PreflightError: `home` cannot be written to.
    """
    text = json.dumps(shape_config(name), indent=2, sort_keys=True) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = home / "models" / "shapes" / f"{name}-{digest[:8]}"
    build_once(folder, lambda scratch: _write(scratch / "config.json", text), progress=progress)
    return describe_folder(folder, kind="shape", name=f"shape:{name}", revision=f"config-sha256:{digest}")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
