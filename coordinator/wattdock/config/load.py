"""From a file and command-line flags to checked experiments.

The only place that words a mistake in a person's settings: where it stands, what was seen, what to do.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from wattdock.config import experiment as settings
from wattdock.config.experiment import ExperimentConfig
from wattdock.config.lines import Location, read_yaml
from wattdock.config.sections.base import section_class
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

# Keys of the study, not of one experiment.
STUDY_KEYS = ("experiments", "defaults")
Settings = dict[str, Any]


class Places:
    """Where each setting was written: a line of a file, or a flag."""

    def __init__(self, path: Path | None, lines: Mapping[Location, int], flags: Mapping[Location, str]) -> None:
        self._path, self._lines, self._flags = path, lines, flags

    def of(self, location: Location, prefixes: tuple[Location, ...]) -> str:
        """Return "file:line" or the flag for `location`, looked up under each prefix and then ever more roughly."""
        for end in range(len(location), 0, -1):
            if flag := self._flags.get(location[:end]):
                return flag
            for prefix in prefixes:
                if (line := self._lines.get((*prefix, *location[:end]))) is not None:
                    return f"{self._path}:{line}"
        return str(self._path) if self._path else "command line"


def load_experiments(path: Path | None, flags: Mapping[str, Any]) -> tuple[ExperimentConfig, ...]:
    """Return the experiments in `path` (or one of defaults), each overridden by `flags`.

    Args:
        path: A YAML file that holds one experiment, or `experiments:` with optional `defaults:`; None for none.
        flags: Dotted setting → value, as given on the command line, for instance {"workload.batch_size": 8}.

    Raises:
        ConfigError: Anything wrong with what was written; names the place.
    """
    data, lines = read_yaml(path) if path else ({}, {})
    if data is None:
        raise ConfigError(f"{path}: is empty; write at least `model: NAME`")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {_seen(data)} where settings were expected; write `key: value` lines")
    flag_settings: Settings = {}
    flag_places: dict[Location, str] = {}
    for name, value in flags.items():
        location = tuple(name.split("."))
        flag_places[location] = "--" + location[-1].replace("_", "-")
        _put(flag_settings, location, value)
    places = Places(path, lines, flag_places)
    experiments, prefixes = _split(data, path, lines)
    return tuple(
        _check(_merged(given, flag_settings), places, prefix)
        for given, prefix in zip(experiments, prefixes, strict=True)
    )


def _split(
    data: Settings, path: Path | None, lines: Mapping[Location, int]
) -> tuple[list[Settings], list[tuple[Location, ...]]]:
    """Return each experiment's settings and where its keys may stand in the file."""
    if "experiments" not in data:
        return [data], [((),)]
    if stray := [key for key in data if key not in STUDY_KEYS]:
        raise ConfigError(
            f"{path}:{lines[(stray[0],)]}: {stray[0]!r} stands beside `experiments:`; put it under `defaults:`"
        )
    written, defaults = data["experiments"], data.get("defaults") or {}
    if not isinstance(written, list) or not written or not all(isinstance(one, dict) for one in written):
        raise ConfigError(f"{path}:{lines[('experiments',)]}: `experiments:` must be a list of at least one experiment")
    if not isinstance(defaults, dict):
        raise ConfigError(f"{path}:{lines[('defaults',)]}: `defaults:` must hold settings, not {_seen(defaults)}")
    prefixes: list[tuple[Location, ...]] = [(("experiments", index), ("defaults",)) for index in range(len(written))]
    return [_merged(defaults, one) for one in written], prefixes


def _merged(under: Any, over: Any) -> Any:
    """Return `under` with `over` laid over it, mappings key by key."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return under | {key: _merged(under[key], value) if key in under else value for key, value in over.items()}


def _put(data: Settings, location: tuple[str, ...], value: Any) -> None:
    for name in location[:-1]:
        data = data.setdefault(name, {})
    data[location[-1]] = value


def _check(given: Settings, places: Places, prefixes: tuple[Location, ...]) -> ExperimentConfig:
    backend = given.get("backend", ExperimentConfig.model_fields["backend"].default)
    root: Location = ()
    try:
        # By itself first: inside an experiment, a section's errors would not tell that they stand in the section.
        if isinstance(backend, str) and isinstance(given.get(backend), dict):
            root = (backend,)
            section_class(backend).model_validate(given[backend])
            root = ()
        return ExperimentConfig.model_validate(given)
    except ValidationError as error:
        raise _config_error(error.errors(), root, places, prefixes) from None


def _config_error(
    errors: list[ErrorDetails], root: Location, places: Places, prefixes: tuple[Location, ...]
) -> ConfigError:
    # Of a union's branches, the one that got furthest is the one that was meant.
    first = max(errors, key=lambda error: (error["loc"][:1] == errors[0]["loc"][:1], len(error["loc"])))
    location = (*root, *(part for part in first["loc"] if not _names_a_branch(part)))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    name = ".".join(map(str, location)) or "settings"
    return ConfigError(f"{places.of(location, prefixes)}: {name}: {_message(first)}{more}")


def _names_a_branch(part: str | int) -> bool:
    """Pydantic puts the branches of a union into a location, by type name; every key of ours is lower case."""
    return isinstance(part, str) and (not part.isidentifier() or not part.islower())


def _message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        wrong = str(error["loc"][-1])
        near = difflib.get_close_matches(wrong, _all_names(), n=1)
        return f"unknown key {wrong!r}; " + (f"did you mean {near[0]!r}?" if near else "see `wattdock plan --help`")
    text = error["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    return text if error["type"] == "value_error" else f"{text}, not {_seen(error['input'])}"


def _seen(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _all_names() -> list[str]:
    models = [one for one in vars(settings).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    return sorted({name for model in models for name in model.model_fields} | set(STUDY_KEYS))
