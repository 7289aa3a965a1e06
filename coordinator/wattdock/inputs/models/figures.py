"""A model's config.json and the size of its weights, by any name that a person gives it, without loading it.

Known names need no network, folders only their own files, hub models their config and the headers of their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock.config import EMBEDDED_MODEL, ModelSpec
from wattdock.errors import ConfigError
from wattdock.inputs.models.folder import check_folder, read_config, weight_data_bytes
from wattdock.inputs.models.shapes import preset_of, presets, shape_config
from wattdock.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wattdock.inputs.models.shapes import Preset


@dataclass(frozen=True)
class ModelFigures:
    """What an estimate starts from.

    Attributes:
        config: Its config.json.
        weight_bytes: Of the checkpoint's tensors; None where there is no file.
        source: Where the figures come from.
        verified: They were read there.
        note: What a user has to know of it.
    """

    name: str
    config: Mapping[str, Any]
    weight_bytes: int | None
    source: str
    verified: bool = True
    note: str | None = None


def figures_of(name: str, *, home: Path) -> ModelFigures:
    """Return the figures of a known name or its hub id, of `shape:NAME`, of ./folder, or of another model of the hub.

    Args:
        home: WATTDOCK_HOME, for what is fetched.

    Raises:
        ConfigError: Nothing can be called that.
        PreflightError: It cannot be had.
    """
    if preset := preset_of(name):
        return _published(preset)
    found = known_figures(ModelSpec.model_validate(name))
    if found is not None:
        return found
    if "/" not in name:
        near = nearest(name, presets())
        hint = f"did you mean {near}? " if near else ""
        known = ", ".join(sorted(presets()))
        raise ConfigError(f"model {name!r} is not known; {hint}write OWNER/NAME, ./FOLDER, or one of {known}")
    from wattdock.inputs.models.hub import hub_figures

    config, weight_bytes = hub_figures(name, revision=None, home=home)
    return ModelFigures(name, config, weight_bytes, "config.json and safetensors headers on the hub")


def known_figures(spec: ModelSpec) -> ModelFigures | None:
    """Return the figures of a model without asking anybody; None where that cannot be.

    Raises:
        ConfigError: No shape has this name.
        PreflightError: A folder is missing, or not whole.
    """
    if spec.shape is not None:
        config, of = shape_config(spec.shape), presets()[spec.shape]
        return ModelFigures(f"shape:{spec.shape}", config, None, of.source, of.verified, of.note)
    if spec.path is not None:
        path = spec.path.expanduser().absolute()
        check_folder(path)
        return ModelFigures(path.name, read_config(path), weight_data_bytes(path), f"config.json and files in {path}")
    if spec.id and spec.id != EMBEDDED_MODEL and (preset := preset_of(spec.id)):
        return _published(preset)
    return None


def _published(preset: Preset) -> ModelFigures:
    """A known model as it was published, which may be quantised where its shape is not."""
    quantised = {"quantization_config": {"quant_method": preset.quantization}} if preset.quantization else {}
    return ModelFigures(preset.name, preset.config | quantised, None, preset.source, preset.verified, preset.note)
