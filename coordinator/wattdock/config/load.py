"""From a file or a mapping, and command-line flags, to checked experiments.

The only place that words a mistake in a person's settings: where it stands, what was seen, what to do.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from wattdock.config.expand import Study, expand, nested, override
from wattdock.config.experiment import ExperimentConfig
from wattdock.config.sections import section_class
from wattdock.config.study import Settings, StudyError, StudyFile, is_study, shortened
from wattdock.config.yaml_lines import Location, read_yaml
from wattdock.errors import Cause, ConfigError
from wattdock.secrets import holds_secret, is_secret_name
from wattdock.text import expected, from_json, json_text, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pydantic_core import ErrorDetails

    from wattdock.config.expand import Candidate


# Settings that flags give to the section of whichever backend.
ENGINE = "engine"
# As difflib's ratio. Engines have arguments that resemble declared ones, such as `data_parallel_size_local`.
MISSPELT = 0.88
# Of settings that hold one value.
ONE_VALUE = ("string_type", "int_type", "float_type", "bool_type", "literal_error", "int_parsing", "float_parsing")
# The same for keys at the level of the unknown key, which go before those of other levels.
ALIKE = 0.7


class Places:
    """Where each setting was written: a line of a file, or a flag.

    Args:
        source: The file's name, or what else stands for all settings.
    """

    def __init__(self, source: str, lines: Mapping[Location, int], flags: Mapping[Location, str]) -> None:
        self._source, self._lines, self._flags = source, lines, flags

    def with_swept(self, names: Iterable[str]) -> Places:
        """Return places that find each of these settings under `sweep:`."""
        lines = {name: line for name in names if (line := self._lines.get(("sweep", name))) is not None}
        moved: dict[Location, str] = {tuple(name.split(".")): f"{self._source}:{line}" for name, line in lines.items()}
        return Places(self._source, self._lines, {**moved, **self._flags})

    def moved(self, before: Location, after: Location) -> Places:
        """Return places that find what a flag gave under another name."""
        return Places(self._source, self._lines, {**self._flags, after: self._flags.get(before, "command line")})

    def is_flag(self, location: Location) -> bool:
        """Whether a flag gives exactly this setting."""
        return self._flags.get(location, "").startswith("--")

    def of(self, location: Location, prefixes: tuple[Location, ...]) -> str:
        """Return "file:line" or the flag for `location`, looked up under each prefix and then ever more roughly."""
        for end in range(len(location), 0, -1):
            if flag := self._flags.get(location[:end]):
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
        source: A YAML file that holds one experiment, or a study; what such a file would hold; None for none.
        flags: Dotted setting → value, as given on the command line, for instance {"workload.batch_size": 8}. What
            stands under "engine" goes to the section of each experiment's backend.
        written_as: Dotted setting → the flag it was given by; `--set` where it is not there.
        publishable: Whether what publication needs is laid under what was written.

    Raises:
        ConfigError: Anything wrong with what was written; names the place.
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
    places, under = Places(name, lines, flag_places), Settings()
    _refuse_secrets(data, (), places)
    _refuse_secrets(over, (), places)
    for setting, value in ExperimentConfig.PUBLICATION.items() if publishable else ():
        under = override(under, nested(setting, value))
    if not is_study(data):
        config = _check(override(override(under, data), over), places, ((),))
        return Study(name=path.stem if path else config.backend, experiments=(config,))
    written = _study_file(data, places)
    written = written.model_copy(update={"defaults": override(under, written.defaults)})
    try:
        study = expand(written, over, lambda candidate: _check_candidate(candidate, places))
    except StudyError as error:
        raise error.at(places.of(error.location, ((),))) from None
    return study if study.name or path is None else replace(study, name=path.stem)


def _refuse_secrets(value: Any, location: Location, places: Places) -> None:
    """Raise where a setting holds a secret: every result, journal and script of a cluster holds the settings."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _refuse_secrets(inner, (*location, key), places)
    name = next((part for part in reversed(location) if isinstance(part, str)), "")
    # The name tells a model from a key.
    named = is_secret_name(name) and value and isinstance(value, str | int | float) and not isinstance(value, bool)
    if named or (isinstance(value, str) and holds_secret(f"{name}: {value}", os.environ)):
        where = places.of(location, ((),))
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


def _study_file(data: Settings, places: Places) -> StudyFile:
    for key in data:
        if key not in StudyFile.model_fields:
            beside = next(name for name in ("experiments", "sweep", "defaults") if name in data)
            near = difflib.get_close_matches(str(key), StudyFile.model_fields, n=1, cutoff=ALIKE)
            known = key in ExperimentConfig.model_fields
            advice = f"did you mean {near[0]!r}?" if near and not known else "put it under `defaults:`"
            raise ConfigError(
                f"{places.of((key,), ((),))}: {key!r} stands beside `{beside}:`", advice, cause=Cause.UNKNOWN_SETTING
            )
    try:
        written = StudyFile.model_validate(data | {"defaults": data.get("defaults") or {}})
    except ValidationError as error:
        raise _config_error(error.errors(), (), places, ((),)) from None
    if written.defaults and not {"experiments", "sweep"} & data.keys():
        return written.model_copy(update={"experiments": [{}]})
    if not written.experiments and not written.sweep:
        where = places.of(("experiments",) if "experiments" in data else ("sweep",), ((),))
        raise ConfigError(f"{where}: a study needs a `sweep:` or at least one experiment under `experiments:`")
    return written


def _check_candidate(candidate: Candidate, places: Places) -> ExperimentConfig:
    if candidate.index is not None:
        return _check(candidate.settings, places, (("experiments", candidate.index), ("defaults",)))
    return _check(candidate.settings, places.with_swept(candidate.point), (("defaults",),))


def _check(settings: Settings, places: Places, prefixes: tuple[Location, ...]) -> ExperimentConfig:
    backend = settings.get("backend", ExperimentConfig.model_fields["backend"].default)
    root: Location = ()
    for name, value in settings.pop(ENGINE, {}).items():
        places = places.moved((ENGINE, name), (backend, name))
        settings = override(settings, {backend: {name: value}})
    try:
        # The section by itself first: inside an experiment, its errors would not name the section.
        if isinstance(backend, str) and isinstance(settings.get(backend), dict):
            root = (backend,)
            section = section_class(backend).model_validate(settings[backend])
            for name in section.passed_through:
                if near := difflib.get_close_matches(name, type(section).model_fields, n=1, cutoff=MISSPELT):
                    where = places.of((backend, name), prefixes)
                    raise ConfigError(
                        f"{where}: unknown key {name!r}", f"did you mean {near[0]!r}?", cause=Cause.UNKNOWN_SETTING
                    )
            root = ()
        return ExperimentConfig.model_validate(settings)
    except ValidationError as error:
        raise _config_error(error.errors(), root, places, prefixes) from None


def _config_error(
    errors: list[ErrorDetails], root: Location, places: Places, prefixes: tuple[Location, ...]
) -> ConfigError:
    # Of a union's branches, the branch that validated furthest is the one that was meant.
    first = max(errors, key=lambda error: (error["loc"][:1] == errors[0]["loc"][:1], len(error["loc"])))
    location = (*root, *(part for part in first["loc"] if not _names_a_branch(part)))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = places.of(location, prefixes)
    if location and not places.is_flag(location):
        where += f": {'.'.join(map(str, location))}"
    what, remedy = _mistake(first, location)
    cause = Cause.UNKNOWN_SETTING if first["type"] == "extra_forbidden" else Cause.INVALID_VALUE
    return ConfigError(f"{where}: {what}{more}", remedy, cause=cause)


def _names_a_branch(part: str | int) -> bool:
    """Pydantic puts the branches of a union into a location, by type name; every key of ours is lower case."""
    return isinstance(part, str) and (not part.isidentifier() or not part.islower())


def _mistake(error: ErrorDetails, location: Location) -> tuple[str, str | None]:
    """Return what is wrong with a setting, and what to write instead."""
    given = error["input"]
    if error["type"] == "extra_forbidden":
        wrong = str(error["loc"][-1])
        near = _nearest(wrong, location[:-1] if location[-1:] == (wrong,) else location)
        hint = f"did you mean {near!r}?" if near else "docs/study.schema.json has all keys"
        if near is None and location == (wrong,) and isinstance(given, dict):
            hint = f"the settings of a backend need `backend: {wrong}`; otherwise drop them"
        hint = "it is a key, but not here; docs/study.schema.json shows its place" if near == wrong else hint
        return f"unknown key {wrong!r}", hint
    if isinstance(given, list) and error["type"] in ONE_VALUE:
        name = ".".join(map(str, location))
        return f"takes one value, not {shortened(given)}", f"for each, put `{name}:` and the list under `sweep:`"
    if error["type"] == "model_type":
        return f"holds settings of its own, `key: value`, not {shortened(given)}", None
    if error["type"] in ("int_type", "float_type") and isinstance(given, str):
        return f"must be a number, not {shortened(given)}", "write it without quotes, and 1e-3 as 1.0e-3"
    if error["type"] == "string_type" and isinstance(given, int | float):
        return f"must be text, not {shortened(given)}", "quote it"
    if wanted := expected(error):
        is_bool = isinstance(given, bool)
        value = f"{given} (YAML reads yes and no as such)" if is_bool else shortened(given)
        return f"{wanted}, not {value}", None
    if error["type"] == "value_error":
        return str(error["ctx"]["error"]), None
    choices = re.findall(r"'(.+?)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else ()
    near = nearest(str(given), choices)
    text = error["msg"][:1].lower() + error["msg"][1:]
    return f"{text}, not {shortened(given)}", near and f"did you mean {near!r}?"


def _nearest(wrong: str, parents: Location) -> str | None:
    """Return the key that is most like `wrong`, written from the top unless it belongs under `parents`."""
    fleet = (path for path in _paths(StudyFile) if path.startswith("fleet."))
    paths = [tuple(path.split(".")) for path in (*_paths(ExperimentConfig), *fleet)]
    siblings = {path[-1] for path in paths if path[:-1] == parents} | (set() if parents else {*StudyFile.model_fields})
    if beside := difflib.get_close_matches(wrong, sorted(siblings - {wrong}), n=1, cutoff=ALIKE):
        return beside[0]
    near = difflib.get_close_matches(wrong, sorted({path[-1] for path in paths}), n=1)
    matches = [path for path in paths if path[-1] in near]
    if any(path[:-1] == parents for path in matches):
        return near[0]
    return ".".join(matches[0]) if matches else None


def _paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield the dotted name of every setting."""
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from (f"{name}.{path}" for path in _paths(inner))
