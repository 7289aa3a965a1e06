"""From a file and command-line flags to checked experiments.

The only place that words a mistake in a person's settings: where it stands, what was seen, what to do.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from wattdock.config import experiment as settings
from wattdock.config.experiment import ExperimentConfig, model_mapping, prompts_mapping
from wattdock.config.lines import Location, read_yaml
from wattdock.config.sections.base import section_class
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

# Keys of the study, not of one experiment.
STUDY_KEYS = ("experiments", "defaults")
MODEL_NAMES = {"id", "path", "shape"}
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


def load_experiments(
    path: Path | None, flags: Mapping[str, Any], *, written_as: Mapping[str, str] | None = None
) -> tuple[ExperimentConfig, ...]:
    """Return the experiments in `path` (or one of defaults), each overridden by `flags`.

    Args:
        path: A YAML file that holds one experiment, or `experiments:` with optional `defaults:`; None for none.
        flags: Dotted setting → value, as given on the command line, for instance {"workload.batch_size": 8}.
        written_as: Dotted setting → the flag it was given by; `--set` where it is not there.

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
        flag_places[location] = (written_as or {}).get(name, f"--set {name}")
        flag_settings = _merged(flag_settings, _nested(location, value))
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


def _merged(under: Settings, over: Settings) -> Settings:
    """Return `under` with `over` laid over it, mappings key by key; short forms are written out first.

    A model that is named anew replaces the other whole: the revision of one means nothing to the other.
    """
    under, over = _written_out(under), _written_out(over)
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        if not (isinstance(below, dict) and isinstance(value, dict)) or (
            key == "model" and not MODEL_NAMES.isdisjoint(value)
        ):
            merged[key] = value
        else:
            merged[key] = _merged(below, value)
    return merged


def _written_out(data: Settings) -> Settings:
    """Return `data` with the strings that stand for mappings replaced by these."""
    forms = {"model": model_mapping, "prompts": prompts_mapping}
    return data | {key: form(data[key]) for key, form in forms.items() if key in data}


def _nested(location: tuple[str, ...], value: Any) -> Settings:
    for name in reversed(location):
        value = {name: value}
    nested: Settings = value
    return nested


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
    if error["type"] == "model_type":
        return f"holds settings of its own, `key: value`, not {_seen(error['input'])}"
    if error["type"] == "string_type" and isinstance(error["input"], int | float):
        return f"must be text, not {_seen(error['input'])}; quote it"
    text = error["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    return text if error["type"] == "value_error" else f"{text}, not {_seen(error['input'])}"


def _seen(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _all_names() -> list[str]:
    models = [one for one in vars(settings).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    return sorted({name for model in models for name in model.model_fields} | set(STUDY_KEYS))
