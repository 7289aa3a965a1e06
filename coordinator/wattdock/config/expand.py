"""From a written study to its experiments: sweep, leave out, name, merge duplicates. Pure.

Knows how settings are laid over each other, not what any of them means; whether a point is valid is asked of `check`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from wattdock.config.experiment import ExperimentConfig, model_mapping
from wattdock.config.study import Settings, SweepError, points
from wattdock.config.workload import prompts_mapping
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wattdock.config.study import Point, StudyFile

DEFAULT_BACKEND: str = ExperimentConfig.model_fields["backend"].default
MODEL_NAMES = {"id", "path", "shape"}
NAME_CHARACTERS = 40
# So many invalid points in a row, and no valid one, are invalid for the same reason.
MANY = 200


@dataclass(frozen=True)
class Candidate:
    """An experiment before it is checked.

    Attributes:
        given: Its settings, laid over each other.
        point: The swept ones among them, dotted; empty for an explicit experiment.
        index: Its place under `experiments:`; None for a point of the sweep.
    """

    given: Settings
    point: Point
    index: int | None = None


@dataclass(frozen=True)
class InvalidPoint:
    """A combination that cannot be an experiment, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Study:
    """What is to be measured, expanded and checked.

    Attributes:
        name: For people and folder names.
        experiments: Each different from all others, in the order written.
        invalid: Points that cannot be experiments; none may be left when measuring begins.
        notes: What a person should know about the expansion, such as duplicates that were merged.
        stop_after_failures: Failures of one kind in a row before a backend is given up; None for never.
    """

    name: str
    experiments: tuple[ExperimentConfig, ...]
    invalid: tuple[InvalidPoint, ...] = ()
    notes: tuple[str, ...] = ()
    order: Literal["shuffled", "written"] = "shuffled"
    seed: int = 0
    stop_after_failures: int | None = 3

    @property
    def digest(self) -> str:
        """Hash of what is measured and in which order; equal for files that differ in their writing only."""
        ids = [experiment.experiment_id for experiment in self.experiments]
        identity = [self.order, self.seed, ids if self.order == "written" else sorted(ids)]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def expand(written: StudyFile, flags: Settings, check: Callable[[Candidate], ExperimentConfig]) -> Study:
    """Return the study, every experiment checked.

    Args:
        flags: Laid over every experiment.
        check: Turns a candidate into an experiment.

    Raises:
        ConfigError: The sweep makes no sense, an exclusion excludes nothing, or no point at all is valid.
    """
    candidates, notes = _candidates(written, flags)
    valid: list[ExperimentConfig] = []
    invalid: list[InvalidPoint] = []
    first_error: ConfigError | None = None
    for candidate in candidates:
        try:
            valid.append(check(candidate))
        except ConfigError as error:
            if candidate.index is not None:
                raise
            first_error = first_error or error
            invalid.append(InvalidPoint(str(candidate.given["name"]), str(error)))
        if first_error and not valid and len(invalid) == min(MANY, len(candidates)):
            # What is wrong with every point is wrong with the study.
            raise first_error
    experiments, merged = without_duplicates(valid)
    if not experiments and not invalid:
        raise ConfigError("no experiment is left to measure: `exclude:` takes every point")
    return Study(
        name=written.name,
        experiments=experiments,
        invalid=tuple(invalid),
        notes=(*notes, *merged),
        order=written.order,
        seed=written.seed,
        stop_after_failures=written.stop_after_failures,
    )


def without_duplicates(
    experiments: Sequence[ExperimentConfig],
) -> tuple[tuple[ExperimentConfig, ...], tuple[str, ...]]:
    """Return each different experiment once, the first of equals, and a line per duplicate."""
    unique: dict[str, ExperimentConfig] = {}
    lines = []
    for experiment in experiments:
        first, label = unique.setdefault(experiment.experiment_id, experiment), experiment.label
        if first is not experiment:
            lines.append(f"duplicate: {label!r} is the same experiment as {first.label!r} and is measured once")
    return tuple(unique.values()), tuple(lines)


def laid_over(under: Settings, over: Settings) -> Settings:
    """Return `under` with `over` laid over it, mappings key by key; short forms are written out first.

    A model that is named anew replaces the whole model below: a revision means nothing to another model.
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
            merged[key] = laid_over(below, value)
    return merged


def nested(name: str, value: Any) -> Settings:
    """Return {"a": {"b": value}} for "a.b"."""
    for part in reversed(name.split(".")):
        value = {part: value}
    settings: Settings = value
    return settings


def _written_out(data: Settings) -> Settings:
    """Return `data` with the strings that stand for mappings replaced by these."""
    forms = {"model": model_mapping, "prompts": prompts_mapping}
    return data | {key: form(data[key]) for key, form in forms.items() if key in data}


def _candidates(written: StudyFile, flags: Settings) -> tuple[list[Candidate], list[str]]:
    """Return all points and explicit experiments, and a line about those that were left out."""
    sections = backends_of(written) | {str(flags.get("backend", DEFAULT_BACKEND))}
    swept = _swept(written, flags, sections) if written.sweep else []
    included = [point for point in swept if not any(_matches(entry, point.given) for entry in written.exclude)]
    for number, entry in enumerate(written.exclude):
        if not any(_matches(entry, point.given) for point in swept):
            raise SweepError(f"exclude: {entry} excludes no point; correct or remove it", "exclude", number)
    explicit = [
        Candidate(_own_section(laid_over(laid_over(written.defaults, given), flags), sections), {}, index)
        for index, given in enumerate(written.experiments)
    ]
    left_out = len(swept) - len(included)
    return [*included, *explicit], [f"excluded: {left_out} of {len(swept)} points"] if left_out else []


def _swept(written: StudyFile, flags: Settings, sections: set[str]) -> list[Candidate]:
    names = _short_names(written.sweep)
    found: list[Candidate] = []
    seen = set()
    for point in points(written.sweep):
        given = written.defaults
        for name, value in point.items():
            given = laid_over(given, nested(name, value))
        given = laid_over(given, flags)
        foreign = sections - {given.get("backend", DEFAULT_BACKEND)}
        own = {name: value for name, value in point.items() if name.partition(".")[0] not in foreign}
        if len(own) < len(point):
            # What is swept in one backend's section multiplies that backend's points only.
            key = json.dumps(own, sort_keys=True, default=str)
            if key in seen:
                continue
            seen.add(key)
        words = [str(given["name"])] if given.get("name") else []
        words += [_named(names[name], value, whole=name in sections) for name, value in own.items()]
        found.append(Candidate(_own_section(given, sections) | {"name": " ".join(words)}, own))
    return found


def backends_of(written: StudyFile) -> set[str]:
    """Return every backend that the study names; its defaults may hold a section for each of them."""
    layers = [written.defaults, *written.experiments]
    named = [layer["backend"] for layer in layers if "backend" in layer]
    if written.sweep:
        named += [point["backend"] for point in points(written.sweep) if "backend" in point]
    return {name for name in named if isinstance(name, str)} - ExperimentConfig.model_fields.keys()


def _own_section(given: Settings, sections: Iterable[str]) -> Settings:
    backend = given.get("backend", DEFAULT_BACKEND)
    return {key: value for key, value in given.items() if key == backend or key not in sections}


def _matches(entry: Settings, given: Settings) -> bool:
    return all(_has(given, name, wanted) for name, wanted in entry.items())


def _has(given: Settings, name: str, wanted: Any) -> bool:
    """Whether the setting `name` has the wanted value, or one of a list; a setting not written has its default."""
    seen: Any = laid_over(DEFAULTS, given)
    for part in name.split("."):
        seen = seen.get(part) if isinstance(seen, dict) else None
    options = wanted if isinstance(wanted, list) else [wanted]
    written_out = [laid_over({}, nested(name, option)) for option in options]
    return any(option == seen or _lies_in(part, given) for option, part in zip(options, written_out, strict=True))


def _lies_in(part: Any, whole: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(whole, dict):
        return bool(part == whole)
    return all(key in whole and _lies_in(value, whole[key]) for key, value in part.items())


DEFAULTS: Settings = ExperimentConfig().model_dump(mode="json")


def _short_names(sweep: Settings) -> dict[str, str]:
    """Return how each swept setting is called in names: its last word, where that is clear."""
    names = [*_swept_names(sweep)]
    lasts = Counter(name.rpartition(".")[2] for name in names)
    return {name: last if lasts[last := name.rpartition(".")[2]] == 1 else name for name in names}


def _swept_names(sweep: Settings) -> Iterator[str]:
    for name, written in sweep.items():
        if name == "zip":
            for group in written if isinstance(written, list) else [written]:
                yield from group
        else:
            yield name


def _named(name: str, value: Any, *, whole: bool) -> str:
    """Return a swept setting and its value; of a whole section its settings, which alone tell it from the others."""
    if whole and isinstance(value, dict):
        return " ".join(f"{key}={_value_name(setting)}" for key, setting in value.items())
    return f"{name}={_value_name(value)}"


def _value_name(value: Any) -> str:
    if isinstance(value, dict):
        value = next(iter(value.values()), "")
    text = str(value)
    return text if len(text) <= NAME_CHARACTERS else text[: NAME_CHARACTERS - 1] + "…"
