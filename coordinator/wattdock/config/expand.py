"""From a written study to its experiments: sweep, name, merge duplicates. Pure.

Knows how settings are laid over each other, not what any setting means; `check` decides whether a point is valid.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wattdock.config.experiment import ExperimentConfig, model_mapping
from wattdock.config.study import FleetSpec, Settings, StudyError, mistakes_text, points
from wattdock.config.workload import prompts_mapping
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.config.study import Point, StudyFile

DEFAULT_BACKEND: str = ExperimentConfig.model_fields["backend"].default
# Settings that each name another model.
MODEL_NAMES = {"id", "path", "shape"}
# A swept value that says itself which option of a command it is, as in `--seed=1`.
OPTION = re.compile(r"--?[A-Za-z]\S*")


@dataclass(frozen=True)
class Candidate:
    """An experiment before it is checked.

    Attributes:
        settings: Laid over each other.
        point: The swept settings among them, dotted; empty for an explicit experiment.
        index: Its place under `experiments:`; None for a point of the sweep.
    """

    settings: Settings
    point: Point
    index: int | None = None


@dataclass(frozen=True)
class Study:
    """What is to be measured, expanded and checked.

    Attributes:
        name: For people and folder names.
        experiments: Each different from all others, in the order written; names are unique.
        notes: Lines for a person about the expansion, such as duplicates that were merged.
        fleet: How a cluster is asked to run it.
    """

    name: str
    experiments: tuple[ExperimentConfig, ...]
    notes: tuple[str, ...] = ()
    order: Literal["shuffled", "written"] = "shuffled"
    seed: int = 0
    fleet: FleetSpec = field(default_factory=FleetSpec)

    @property
    def digest(self) -> str:
        """Hash of the experiments and their order; equal for files that differ in formatting only."""
        ids = [experiment.experiment_id for experiment in self.experiments]
        identity = [self.order, self.seed, ids if self.order == "written" else sorted(ids)]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def expand(written: StudyFile, flags: Settings, check: Callable[[Candidate], ExperimentConfig]) -> Study:
    """Return the study, every experiment checked.

    Args:
        flags: Laid over every experiment.
        check: Turns a candidate into an experiment.

    Raises:
        ConfigError: The sweep makes no sense, a point cannot be an experiment, or two experiments have the same name.
    """
    sweep = list(points(written.sweep)) if written.sweep else []
    layers = [written.defaults, *written.experiments, *sweep, flags, {"backend": DEFAULT_BACKEND}]
    backends = {backend for layer in layers if isinstance(backend := layer.get("backend"), str)}
    # The defaults may hold a section for each backend.
    sections = backends - ExperimentConfig.model_fields.keys()
    explicit = [
        Candidate(_with_its_section(override(override(written.defaults, settings), flags), sections), {}, index)
        for index, settings in enumerate(written.experiments)
    ]
    experiments, merged = _unique([*_swept(written, sweep, flags, sections), *explicit], check)
    return Study(
        name=written.name,
        experiments=experiments,
        notes=(*merged, *dict.fromkeys(each.section.caveat for each in experiments if each.section.caveat)),
        order=written.order,
        seed=written.seed,
        fleet=written.fleet,
    )


def _unique(
    candidates: Sequence[Candidate], check: Callable[[Candidate], ExperimentConfig]
) -> tuple[tuple[ExperimentConfig, ...], list[str]]:
    """Return each different experiment once, the first of equals, and a line per duplicate."""
    unique: dict[str, ExperimentConfig] = {}
    by_name: dict[str, ExperimentConfig] = {}
    mistakes: dict[str, ConfigError] = {}
    lines = []
    for candidate in candidates:
        try:
            experiment = check(candidate)
        except ConfigError as error:
            mistakes.setdefault(str(error), error)
            continue
        first = unique.setdefault(experiment.experiment_id, experiment)
        if first is not experiment:
            lines.append(
                f"duplicate: {experiment.label!r} is the same experiment as {first.label!r} and is measured once"
            )
        same_name = by_name.setdefault(experiment.name, experiment)
        if experiment.name and same_name.experiment_id != experiment.experiment_id:
            place = ("sweep",) if candidate.index is None else ("experiments", candidate.index, "name")
            raise StudyError(
                f"name: two different experiments are called {experiment.name!r}", *place, remedy="rename one"
            )
    if mistakes:
        (mistake, *others), told = mistakes.values(), "\n".join(mistakes).split("\n")
        raise ConfigError(mistakes_text(told), cause=mistake.cause) if others else mistake
    return tuple(unique.values()), lines


def override(under: Settings, over: Settings) -> Settings:
    """Return `under` with `over` laid over it, mappings key by key; short forms are written out first.

    A model that is named anew replaces the whole model below: a revision means nothing to another model.
    """
    under, over = _expand_short_forms(under), _expand_short_forms(over)
    if isinstance(model := over.get("model"), dict) and not MODEL_NAMES.isdisjoint(model):
        under.pop("model", None)
    return _merged(under, over)


def nested(name: str, value: Any) -> Settings:
    """Return {"a": {"b": value}} for "a.b"."""
    for part in reversed(name.split(".")):
        value = {part: value}
    settings: Settings = value
    return settings


def _expand_short_forms(settings: Settings) -> Settings:
    """Return a copy with mappings in place of the strings that stand for them."""
    settings = dict(settings)
    if "model" in settings:
        settings["model"] = model_mapping(settings["model"])
    if isinstance(settings.get("url"), str):
        settings["url"] = {"base_url": settings["url"]}
    if isinstance(work := settings.get("workload"), dict) and "prompts" in work:
        settings["workload"] = work | {"prompts": prompts_mapping(work["prompts"])}
    return settings


def _merged(under: Settings, over: Settings) -> Settings:
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _swept(written: StudyFile, sweep: Sequence[Point], flags: Settings, sections: set[str]) -> list[Candidate]:
    """Return the points of a sweep with their settings, each named by what is swept."""
    lasts = Counter(name.rpartition(".")[2] for name in (sweep[0] if sweep else ()))
    candidates: dict[str, Candidate] = {}
    for point in sweep:
        settings = written.defaults
        for name, value in point.items():
            settings = override(settings, nested(name, value))
        settings = override(settings, flags)
        # What is swept in one backend's section multiplies that backend's points only.
        foreign = {name for name in sections if name != settings.get("backend", DEFAULT_BACKEND)}
        applied = {name: value for name, value in point.items() if name.partition(".")[0] not in foreign}
        words = [str(settings["name"])] if settings.get("name") else []
        for name, value in applied.items():
            if name in sections and isinstance(value, dict):
                words += [f"{key}={_value_name(setting)}" for key, setting in value.items()]
            elif isinstance(value, str) and OPTION.fullmatch(value):
                words.append(value)
            else:
                last = name.rpartition(".")[2]
                words.append(f"{last if lasts[last] == 1 else name}={_value_name(value)}")
        candidate = Candidate(_with_its_section(settings, sections) | {"name": " ".join(words)}, applied)
        is_whole = len(applied) == len(point)
        key = str(len(candidates)) if is_whole else json.dumps(applied, sort_keys=True, default=str)
        candidates.setdefault(key, candidate)
    return list(candidates.values())


def _with_its_section(settings: Settings, sections: set[str]) -> Settings:
    """Return the settings without other backends' sections."""
    backend = settings.get("backend", DEFAULT_BACKEND)
    return {key: value for key, value in settings.items() if key == backend or key not in sections}


def _value_name(value: Any) -> str:
    # A command's words are told from one text as a shell tells them.
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return " ".join(map(_value_name, value.values())) if isinstance(value, dict) else str(value) or "''"
