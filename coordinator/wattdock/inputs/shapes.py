"""Models that are known by name: their figures, and synthetic shapes of them whose weights a runner draws.

`shapes.yaml` holds the figures with their sources.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import Cause, ConfigError
from wattdock.host import folders
from wattdock.inputs.model_folder import ModelFolder, describe_folder
from wattdock.text import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from wattdock.inputs.memory import StoredWeights


@dataclass(frozen=True)
class ModelFigures:
    """Figures of a model that is not loaded.

    Attributes:
        config: Its config.json; of a model that is known by name without how its weights are quantised.
        source: Where the figures were read.
        verified: Whether the figures were found in a source that was read.
        note: For the user.
        stored: The checkpoint's tensors; None without a file.
        id: On the hub; None for a model that is not published.
        parameters: Each tied weight once; None where not counted.
        quantization: Quantisation of the published weights; a shape's weights are not quantised.
    """

    name: str
    config: Mapping[str, Any]
    source: str
    verified: bool = True
    note: str | None = None
    stored: StoredWeights | None = None
    id: str | None = None
    parameters: int | None = None
    quantization: str | None = None

    @property
    def published_config(self) -> dict[str, Any]:
        """Its config.json, with how the weights are quantised."""
        quantised = {"quantization_config": {"quant_method": self.quantization}} if self.quantization else {}
        return {**self.config, **quantised}


@cache
def presets() -> dict[str, ModelFigures]:
    """Return every model known by name."""
    by_name: dict[str, dict[str, Any]] = yaml.safe_load((files("wattdock.inputs") / "shapes.yaml").read_text("utf-8"))
    return {name: ModelFigures(name, **figures) for name, figures in by_name.items()}


def preset_of(name: str) -> ModelFigures | None:
    """Return the model with this name or hub id, in either case."""
    known = presets().values()
    return next((preset for preset in known if name.lower() in (preset.name, (preset.id or preset.name).lower())), None)


def shape_config(name: str) -> dict[str, Any]:
    """Return the config.json of a shape.

    Raises:
        ConfigError: No shape has this name.
    """
    if preset := presets().get(name):
        return dict(preset.config)
    raise unknown_model(name)


def unknown_model(name: str) -> ConfigError:
    """Return what is wrong with a name that is none of a known model's, and the most similar known name."""
    near = nearest(name, presets())
    hint = f"did you mean {near}? " if near else ""
    return ConfigError(
        f"model {name!r} is not known",
        f"{hint}write OWNER/NAME, ./FOLDER, or shape: and one of {', '.join(sorted(presets()))}",
        cause=Cause.UNKNOWN_SETTING,
    )


def resolve_shape(name: str, *, home: Path, progress: Callable[[str], None]) -> ModelFolder:
    """Return a folder with nothing but the shape's config.json, made on first use.

    Raises:
        ConfigError: No shape has this name.
        PreflightError: `home` cannot be written to.
    """
    text = json.dumps(shape_config(name), indent=2, sort_keys=True) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = home / "models" / "shapes" / f"{name}-{digest[:8]}"

    def build(scratch: Path) -> None:
        (scratch / "config.json").write_text(text, encoding="utf-8")

    folders.build_once(folder, build, progress=progress)
    return describe_folder(folder, kind="shape", name=f"shape:{name}", revision=f"config-sha256:{digest}")
