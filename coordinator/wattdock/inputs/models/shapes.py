"""Models that are known by name: their figures, and synthetic shapes of them whose weights a runner draws.

Figures live in data/shapes.yaml with their sources.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import ConfigError
from wattdock.inputs.models.build import build_once
from wattdock.inputs.models.folder import ModelFolder, describe_folder
from wattdock.text import nearest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Preset:
    """A model as it was published.

    Attributes:
        config: Its config.json.
        source: Where the figures were read.
        verified: They were found in a source that was read.
        id: What the hub calls it; None for one that nobody published.
        parameters: Each tied weight once; None where nobody counted.
        quantization: How the published weights are quantised; as a shape they are not.
        servable: Some engine here has the architecture.
        note: What a user has to know of it.
    """

    name: str
    config: dict[str, Any]
    source: str
    verified: bool
    id: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    servable: bool = True
    note: str | None = None


@cache
def presets() -> dict[str, Preset]:
    """Return every model known by name."""
    written: dict[str, dict[str, Any]] = yaml.safe_load((files("wattdock.inputs") / "shapes.yaml").read_text("utf-8"))
    return {name: Preset(name, **facts) for name, facts in written.items()}


def preset_of(name: str) -> Preset | None:
    """Return the model with this name or hub id, in either case."""
    wanted = name.lower()
    return next((one for one in presets().values() if wanted in (one.name, (one.id or one.name).lower())), None)


def shape_config(name: str) -> dict[str, Any]:
    """Return the config.json of a shape.

    Raises:
        ConfigError: No shape has this name, or no engine could serve it.
    """
    known = {one.name for one in presets().values() if one.servable}
    if name in known:
        return presets()[name].config
    if name in presets():
        raise ConfigError(f"shape {name!r} cannot be served: {presets()[name].note}")
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    raise ConfigError(f"unknown shape {name!r}; {hint}known are {', '.join(sorted(known))}")


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
