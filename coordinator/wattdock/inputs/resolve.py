"""One way in for every kind of model: check its name, get its folder, or its figures without loading it.

Known names need no network, folders only their own files, hub models their config and the headers of their weights.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError
from wattdock.host import Machine
from wattdock.inputs import model_folder
from wattdock.inputs.embedded import resolve_embedded
from wattdock.inputs.locate import Location, locate
from wattdock.inputs.model_folder import ModelFolder
from wattdock.inputs.served import ServedModels
from wattdock.inputs.shapes import ModelFigures, preset_of, presets, resolve_shape, shape_config, unknown_model
from wattdock.inputs.weights import stored_weights
from wattdock.opening import open_data
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.config import CommandSection, ExperimentConfig

# Largest file among a command's words that is taken for a part of its program.
MOST_HASHED_BYTES = 1 << 26


def check_model(spec: ModelSpec, config: ExperimentConfig | None = None) -> None:
    """Check what can be checked of a model without network and without writing.

    Args:
        config: The experiment, whose backend decides which weights are read; None checks what suits any.

    Raises:
        ConfigError: Unknown shape, impossible id, a shape's name or nearly the embedded model's as an id, or a revision
            of a model that has none; or as `check_folder`.
        PreflightError: As `check_folder`.
    """
    if spec.revision is not None and not spec.on_hub:
        what = spec.id or spec.shape or spec.path
        raise ConfigError(f"revision {spec.revision!r} is given, but {what} has none", "only a hub model has revisions")
    if spec.shape is not None:
        shape_config(spec.shape)
    elif spec.path is not None:
        place = locate(spec.path)
        model_folder.check_folder(place.folder, gguf=place.gguf, **_reader(config))
    elif spec.id is not None and spec.on_hub:
        from wattdock.inputs.hub import check_id

        check_id(spec.id)
        if "/" in spec.id:
            return
        name, embedded = spec.id.lower(), ModelSpec.EMBEDDED
        if shape := presets().get(name):
            hint = f"write shape:{name} for random weights{f' or {shape.id} for the hub' if shape.id else ''}"
        elif embedded.startswith(name) or difflib.get_close_matches(name, [embedded], n=1):
            hint = f"did you mean {embedded!r}? A hub's ids look like OWNER/NAME"
        else:
            return
        raise ConfigError(f"{spec.id!r} is no model's id", hint, cause=Cause.UNKNOWN_SETTING)


def _reader(config: ExperimentConfig | None) -> dict[str, Any]:
    """Return what decides which weights of a folder are read; see `weight_files`. A server has read its own."""
    if config is None or config.section.server_url:
        return {}
    return {"backend": config.backend, "load_format": config.section.engine_args().get("load_format")}


def resolve_model(
    spec: ModelSpec, *, home: Path, progress: Callable[[str], None], config: ExperimentConfig | None = None
) -> ModelFolder:
    """Return a folder that a runner can load, fetching or making it on first use.

    Args:
        config: As in `check_model`.
        home: WATTDOCK_HOME; everything fetched or made goes below `<home>/models`.
        progress: Gets one line per slow step, download sizes first.

    Raises:
        ConfigError: No model can be called that.
        PreflightError: The model cannot be fetched or made here.
    """
    if config and config.command:
        return _command(config.command)
    folder = _resolved(spec, home, progress, config)
    if config is None or config.draft is None:
        return folder
    return replace(folder, draft=_resolved(config.draft, home, progress, config)).read_again(progress)


def _command(command: CommandSection) -> ModelFolder:
    """Return, in a model's place, what pins a command: the files that its words name, and its folder's commit."""
    folder, files, words = command.working_folder, {}, command.filled_in("{gpus}")[0]
    for name in Machine.named_files(folder, words):
        with suppress(OSError, ValueError), open_data(path := folder / name) as stream:
            if path.stat().st_size <= MOST_HASHED_BYTES:
                files[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    checkout = Machine.checkout(folder, *words)
    changed = f" ({listed(checkout.changes)})" if checkout.changes else ""
    revision = checkout.revision and checkout.revision + changed
    return ModelFolder(folder, "none", command.label, revision, False, False, files=files)


def _resolved(
    spec: ModelSpec, home: Path, progress: Callable[[str], None], config: ExperimentConfig | None
) -> ModelFolder:
    url = config.section.server_url if config else ""
    # Asked anew for each restart: the server may have been started again with another model.
    served = ServedModels.at(url).meant_by(config) if config and url else None
    if served and spec.id == ModelSpec.SERVED:
        if (path_here := served.path(url)) is None:
            known = {} if served.vocab_size is None else {"vocab_size": served.vocab_size}
            return ModelFolder(Path(), "served", served.name, None, True, False, known, served_as=served.name)
        spec = ModelSpec(path=path_here)
    check_model(spec, config)
    with_code, commit = spec.trust_remote_code, ""
    if spec.shape is not None:
        folder = resolve_shape(spec.shape, home=home, progress=progress)
    elif spec.path is not None:
        place = locate(spec.path)
        place = Location(model_folder.real_folder(place.folder), place.gguf)
        folder = replace(model_folder.describe_folder(place.folder, kind="path", name=place.name), gguf=place.gguf)
        commit = place.cached[1] if place.cached else ""
    elif spec.id == ModelSpec.EMBEDDED:
        folder = resolve_embedded(home=home, progress=progress)
    else:
        from wattdock.inputs.hub import is_as_fetched, resolve_hub

        assert spec.id is not None
        how: dict[str, Any] = {"with_code": with_code, "with_weights": served is None}
        path = resolve_hub(spec.id, revision=spec.revision, home=home, progress=progress, **how)
        if not served:
            model_folder.check_folder(path, **_reader(config))
        folder, commit = model_folder.describe_folder(path, kind="hub", name=spec.id), path.name
    folder = replace(folder, with_code=with_code, served_as=served.name if served else "").read_again(progress)
    if folder.kind == "hub" and is_as_fetched(folder.path, folder.files):
        return replace(folder, revision=commit)
    cached = f"hub-cache:{commit}+" if commit else ""
    return replace(folder, revision=folder.revision or f"{cached}{model_folder.fingerprint(folder.files)}")


def figures_of(name: str, *, home: Path) -> ModelFigures:
    """Return the figures of a model by its known name, its hub id, `shape:NAME` or ./folder.

    Args:
        home: WATTDOCK_HOME, where a hub model's config is kept.

    Raises:
        ConfigError: No model can be called that.
        PreflightError: The model's config cannot be fetched.
    """
    if figures := known_figures(ModelSpec.model_validate(name)):
        return figures
    if "/" not in name:
        raise unknown_model(name)
    return _on_hub(name, None, home)


@functools.cache
def _on_hub(name: str, revision: str | None, home: Path) -> ModelFigures:
    from wattdock.inputs.hub import hub_figures

    config, stored = hub_figures(name, revision=revision, home=home)
    return ModelFigures(name, config, "config.json and safetensors headers on the hub", stored=stored)


def known_figures(
    spec: ModelSpec, *, home: Path | None = None, config: ExperimentConfig | None = None
) -> ModelFigures | None:
    """Return the figures of a model; None if only the hub has them, and it is not to be asked.

    Args:
        home: WATTDOCK_HOME, where a hub model's config is kept, to ask the hub for a model: once in this process.
        config: As in `check_model`.

    Raises:
        ConfigError: No shape has this name; or a folder is missing, or not whole.
        PreflightError: The hub does not have the model, or does not answer.
    """
    if spec.shape is not None:
        shape_config(spec.shape)
        return replace(presets()[spec.shape], name=f"shape:{spec.shape}", quantization=None)
    if spec.path is not None:
        place, reader = locate(spec.path), _reader(config)
        model_folder.check_folder(place.folder, gguf=place.gguf, **reader)
        stored = stored_weights(place.folder, gguf=place.gguf, **reader)
        source = f"config.json and files in {place.folder}"
        return ModelFigures(place.name, model_folder.read_config(place.folder), source, stored=stored)
    if spec.id == ModelSpec.EMBEDDED:
        return replace(presets()["smollm2-135m"], name=spec.id)
    if home is not None and spec.id:
        return _on_hub(spec.id, spec.revision, home)
    return preset_of(spec.id) if spec.id else None
