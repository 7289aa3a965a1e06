"""From a file or a mapping, and command-line flags, to checked experiments.

The only place that words a mistake in a person's settings: where it stands, what was seen, what to do.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from wattdock.config.expand import Study, expand, nested, override
from wattdock.config.experiment import ExperimentConfig
from wattdock.config.sections import section_class
from wattdock.config.study import Settings, StudyError, StudyFile, is_study, mistakes_text, shortened
from wattdock.config.yaml_lines import Location, read_yaml
from wattdock.errors import Cause, ConfigError
from wattdock.files import require_text
from wattdock.secrets import holds_secret, is_secret_name
from wattdock.text import expected, from_json, json_text, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from wattdock.config.expand import Candidate

# The prefix of flags for the section of whichever backend an experiment has.
ENGINE = "engine"
# Settings that say what is measured instead of an engine that wattdock starts, and why no engine goes with them.
WITHOUT_ENGINE = {
    "url": "a server that runs already has its own engine",
    "measure": "a command of your own is measured in an engine's place",
}
# As difflib's ratio: keys at the level of an unknown key that are so similar go before those of other levels. Of
# values, only one so similar is suggested: `gpu` is not meant as `cpu`.
ALIKE = 0.7
# As difflib's ratio: engines have arguments that resemble declared ones, such as `data_parallel_size_local`.
MISSPELT = 0.88


class SourceLocations:
    """Where each setting was written: a line of a file, or a flag.

    Args:
        source: The file's name, or another name of all settings.
    """

    def __init__(self, source: str, lines: Mapping[Location, int], flags: Mapping[Location, str]) -> None:
        self._source, self._lines, self._flags = source, lines, flags

    def with_swept(self, names: Iterable[str]) -> SourceLocations:
        """Return locations that find each of these settings, and the section it is in, under `sweep:`."""
        swept: dict[Location, str] = {}
        for name in names:
            location = tuple(name.split("."))
            if (line := self._lines.get(("sweep", name))) is not None:
                swept[location] = swept[location[:1]] = f"{self._source}:{line}"
        return SourceLocations(self._source, self._lines, swept | dict(self._flags))

    def of(self, location: Location, prefixes: tuple[Location, ...] = ((),)) -> str:
        """Return "file:line" or the flag for `location`, looked up under each prefix and then ever more roughly."""
        for end in range(len(location), 0, -1):
            engine_flag = self._flags.get((ENGINE, *location[1:end]))
            if flag := self._flags.get(location[:end], engine_flag):
                return flag
            for prefix in prefixes:
                if (line := self._lines.get((*prefix, *location[:end]))) is not None:
                    return f"{self._source}:{line}"
        return self._source


def load_study(
    source: Path | Mapping[str, Any] | None,
    flags: Mapping[str, Any],
    *,
    written_as: Mapping[str, str] | None = None,
    publishable: bool = False,
) -> Study:
    """Return what `source` asks for (or one experiment of defaults), each experiment overridden by `flags`.

    Args:
        source: A YAML file that holds one experiment or a study, or the content of such a file; None for defaults.
        flags: Dotted setting → value, as given on the command line, for instance {"workload.batch_size": 8}. Settings
            under "engine" go to the section of each experiment's backend.
        written_as: Dotted setting → the flag that gave it; `--set` for settings that are missing here.
        publishable: Whether the settings that publication needs are laid under the written ones.

    Raises:
        ConfigError: A setting is wrong; names the place.
    """
    path, data, lines, name = _read(source)
    if data is None:
        raise ConfigError(f"{name}: is empty", "write at least `model: NAME`")
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: holds {shortened(data)} where settings were expected", "write `key: value` lines")
    over: Settings = {}
    flag_places: dict[Location, str] = {}
    for setting, value in flags.items():
        flag_places[tuple(setting.split("."))] = (written_as or {}).get(setting, f"--set {setting}")
        over = override(over, nested(setting, value))
    # A flag wins over GPUs that the file asks for, too.
    over = {"gpus": "auto", **over} if over.get("accelerator") == "cpu" else over
    places, under = SourceLocations(name, lines, flag_places), Settings()
    for settings in (data, over):
        _refuse_unstorable(settings, (), places)
    written = _study_file(data, places) if is_study(data) else None
    # Parts that may name a command of the user's own, whose settings hold little of a publication's.
    parts = [over, *((written.defaults, *written.experiments) if written else (data,))]
    is_command = any("measure" in (*part, part.get("backend")) for part in parts)
    for setting, value in ExperimentConfig.PUBLICATION.items() if publishable else ():
        if setting in ExperimentConfig.PUBLICATION_OF_COMMANDS or not is_command:
            under = override(under, nested(setting, value))
    if written is None:
        config = _check(override(override(under, data), over), places)
        return Study(name=path.stem if path else config.backend, experiments=(config,))
    written = written.model_copy(update={"defaults": override(under, written.defaults)})

    def check(candidate: Candidate) -> ExperimentConfig:
        if candidate.index is None:
            return _check(candidate.settings, places.with_swept(candidate.point), (("defaults",),))
        return _check(candidate.settings, places, (("experiments", candidate.index), ("defaults",)))

    try:
        study = expand(written, over, check)
    except StudyError as error:
        raise error.at(places.of(error.location)) from None
    return study if study.name or path is None else replace(study, name=path.stem)


def _refuse_unstorable(value: Any, location: Location, places: SourceLocations) -> None:
    """Raise where a setting holds a secret or no text: every result, journal and script of a cluster holds it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _refuse_unstorable(inner, (*location, key), places)
        require_text(str(key), f"key of {places.of(location)}")
    if isinstance(value, str):
        require_text(value, f"setting of {places.of(location)}")
    name = next((part for part in reversed(location) if isinstance(part, str)), "")
    # The name tells a model from a key.
    is_named_so = is_secret_name(name) and value and isinstance(value, str | int | float) and value is not True
    if is_named_so or (isinstance(value, str) and holds_secret(f"{name}: {value}", os.environ)):
        where = places.of(location)
        raise ConfigError(
            f"{where}: holds what looks like a key or password, and results hold settings",
            "leave it out",
            cause=Cause.SECRET,
        )


def _read(source: Path | Mapping[str, Any] | None) -> tuple[Path | None, Any, Mapping[Location, int], str]:
    """Return the file, what it holds and in which lines, and what to call it."""
    if isinstance(source, Mapping):
        try:
            # As a file would hold them: tuples are lists, paths are text.
            return None, from_json(json_text(dict(source), default=os.fspath)), {}, "settings"
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"settings: {error}", "use text, numbers, lists and mappings") from None
    return (source, *read_yaml(source), str(source)) if source else (None, {}, {}, "command line")


def _study_file(data: Settings, places: SourceLocations) -> StudyFile:
    if misplaced := sorted(data.keys() & (ExperimentConfig.model_fields.keys() - StudyFile.model_fields.keys())):
        key, beside = misplaced[0], next(name for name in ("experiments", "sweep", "defaults") if name in data)
        raise ConfigError(
            f"{places.of((key,))}: {key!r} stands beside `{beside}:`",
            "put it under `defaults:`",
            cause=Cause.UNKNOWN_SETTING,
        )
    try:
        written = StudyFile.model_validate(data | {"defaults": data.get("defaults") or {}})
    except ValidationError as error:
        raise _config_error(error.errors(), (), places) from None
    if written.defaults and not {"experiments", "sweep"} & data.keys():
        return written.model_copy(update={"experiments": [{}]})
    if not written.experiments and not written.sweep:
        where = places.of(("experiments",) if "experiments" in data else ("sweep",))
        raise ConfigError(f"{where}: a study needs a `sweep:` or at least one experiment under `experiments:`")
    return written


def _check(settings: Settings, places: SourceLocations, prefixes: tuple[Location, ...] = ((),)) -> ExperimentConfig:
    for name, why in WITHOUT_ENGINE.items():
        if name in settings:
            if (other := settings.get("backend", name)) != name:
                where = places.of((name, *(("base_url",) if name == "url" else ())), prefixes)
                raise ConfigError(f"{where}: {why}", f"leave out backend: {other}")
            settings = {**settings, "backend": name}
    backend = settings.get("backend", ExperimentConfig.model_fields["backend"].default)
    root: Location = ()
    engine = settings.pop(ENGINE, {})
    if engine != {} and isinstance(backend, str):
        settings = override(settings, {backend: engine})
    try:
        # The section by itself first: inside an experiment, its errors would not name the section.
        if isinstance(backend, str) and isinstance(settings.get(backend), dict):
            root = (backend,)
            section = section_class(backend).model_validate(settings[backend])
            root = ()
            for name in section.passed_through:
                # Engines' arguments are names in Python, whatever their command lines call them.
                near = difflib.get_close_matches(name, type(section).model_fields, n=1, cutoff=MISSPELT)
                near = [name.replace("-", "_")] if "-" in name else near
                if near or name in engine:
                    where = places.of((backend, name), prefixes)
                    remedy = f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(type(section).model_fields)}"
                    what = f"{where}: unknown setting {name!r} for {backend}"
                    raise ConfigError(what, remedy, cause=Cause.UNKNOWN_SETTING)
        return ExperimentConfig.model_validate(settings)
    except ValidationError as error:
        raise _config_error(error.errors(), root, places, prefixes) from None


def _config_error(
    errors: list[ErrorDetails], root: Location, places: SourceLocations, prefixes: tuple[Location, ...] = ((),)
) -> ConfigError:
    """Return one error about all mistakes, a line for each setting; its remedy and cause are the last one's."""
    # Pydantic puts the branches of a union into a location, by type name; every key of ours is lower case and no type.
    meant: dict[Location, ErrorDetails] = {}
    for error in errors:
        keys = (part for part in error["loc"] if part not in ("str", "int", "float", "bool"))
        parts = (part for part in keys if isinstance(part, int) or (part.isidentifier() and part.islower()))
        meant.setdefault((*root, *parts), error)
    # A person meant the branch that validated furthest.
    deepest = [each for each in meant if not any(other[: len(each)] == each != other for other in meant)]
    lines: list[str] = []
    for location in deepest:
        where = places.of(location, prefixes)
        if location and not where.startswith("--"):
            where += f": {'.'.join(map(str, location))}"
        what, remedy = _mistake(meant[location], location)
        lines.append(f"{where}: {what}{f'; {remedy}' if remedy else ''}")
    cause = Cause.UNKNOWN_SETTING if meant[deepest[-1]]["type"] == "extra_forbidden" else Cause.INVALID_VALUE
    # A single mistake has its remedy apart.
    return (
        ConfigError(mistakes_text(lines), cause=cause)
        if lines[1:]
        else ConfigError(f"{where}: {what}", remedy, cause=cause)
    )


def _mistake(error: ErrorDetails, location: Location) -> tuple[str, str | None]:
    """Return what is wrong with a setting, and what to write instead."""
    value, is_list = shortened(error["input"]), isinstance(error["input"], list)
    match error["type"]:
        case "int_type" | "float_type" | "string_type" | "bool_type" | "literal_error" if is_list:
            return f"takes one value, not {value}", "to measure each of them, write it under `sweep:`"
        case "extra_forbidden":
            key = str(error["loc"][-1])
            return f"unknown key {key!r}", _remedy_for_unknown(key, location, error["input"])
        case "value_error":
            return str(error["ctx"]["error"]), None
        case "model_type":
            kind = {list: "a list", type(None): "null"}.get(type(error["input"]), value)
            return f"holds settings of its own, `key: value`, not {kind}", None
        case "int_type" | "float_type" if isinstance(error["input"], str):
            return f"must be a number, not the text {value}", "write digits without quotes or colons"
        case "string_type":
            return f"must be text, not {value}", "quote it"
        case "literal_error":
            allowed = [name.strip("'") for name in re.split(", | or ", error["ctx"]["expected"])]
            near = nearest(str(error["input"]), allowed, cutoff=ALIKE)
            return f"{value} is not one of {', '.join(allowed)}", f"did you mean {near!r}?" if near else None
    wanted = expected(error) or error["msg"][:1].lower() + error["msg"][1:]
    return f"{wanted}, not {value}", None


def _remedy_for_unknown(key: str, location: Location, value: Any) -> str:
    """Return the most similar key as a question, else how a backend's section or any key is found."""
    parents = ".".join(map(str, location[:-1] if location[-1:] == (key,) else location))
    paths = [*_paths(ExperimentConfig), *_paths(StudyFile)]
    siblings = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == parents]
    by_last_word = {path.rpartition(".")[2]: path for path in reversed(paths)}
    if key in paths:
        of_experiment = key in ExperimentConfig.model_fields
        level = "an experiment" if of_experiment else "a study's file, which has settings under `defaults:`"
        return f"write `{key}:` at the top level of {level}"
    begun = [name for name in siblings if name.startswith(f"{key}_")]
    if near := begun or difflib.get_close_matches(key, siblings, n=1, cutoff=ALIKE):
        return f"did you mean {near[0]!r}?"
    if near := difflib.get_close_matches(key, by_last_word, n=1, cutoff=ALIKE):
        return f"did you mean {by_last_word[near[0]]!r}?"
    if location == (key,) and isinstance(value, dict):
        return f"the settings of a backend need `backend: {key}`; otherwise drop them"
    return "docs/study.schema.json has all keys"


def _paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield the dotted name of every setting."""
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from (f"{name}.{path}" for path in _paths(inner))
