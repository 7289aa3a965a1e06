"""A study as a person writes it, how a cluster is asked to run it, and the points of its sweep. Pure.

Knows no setting's meaning; `expand` makes experiments of the points, `load` checks each.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from wattdock.config.lengths import StrictSettings
from wattdock.config.workload import Seed
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Settings = dict[str, Any]
# Value by dotted setting.
Point = dict[str, Any]
# Settings that take their values together, one tuple of values per step.
Axis = tuple[tuple[str, ...], list[tuple[Any, ...]]]
# Keys that only a study's file has.
STUDY_MARKS = {"experiments", "sweep", "defaults"}
ZIP = "zip"
# Most experiments of a sweep, which a plan lists in seconds, and most dots in a setting's name.
MAX_POINTS, MAX_DEPTH = 20_000, 10
# How many mistakes of a file are told at once.
MOST_MISTAKES = 20


def _option(text: str) -> str:
    if not re.fullmatch(r"--(?!array)[a-z][^\n\r]*", text):
        raise ValueError(f"{text!r} is no option for every job; write one of sbatch's, as in --qos=low, but --array")
    return text


# As sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours, ….
Time = Annotated[str, Field(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")]
# What stands in one line of a script, as one word.
Word = Annotated[str, Field(pattern=r"^[^\s'\"\\#]+$")]
Line = Annotated[str, Field(pattern=r"^[^\n\r]+$")]
Option = Annotated[str, AfterValidator(_option)]


class FleetSpec(StrictSettings):
    """How Slurm is asked to run a study whose tasks are its load groups; see `run --on slurm`.

    Attributes:
        partition: Slurm's partition; the cluster's default without it.
        account: Whom the time is charged to.
        time: Limit of a task, as sbatch takes it: "90" minutes, "1:30:00", "1-12". A task that meets it ends the pass
            it measures and queues itself again.
        end_before_s: Seconds before that limit at which a task is told to end; more than a pass takes.
        constraint: Features that a node must have.
        exclusive: Whether a task has its node, all GPUs included, to itself; by default, under `exclusive: machine`.
        tasks_at_once: Most tasks of an array that run at one time; an array holds tasks with equally many GPUs.
        prepare: Where models and the backends' environments are made, in WATTDOCK_HOME and the checkout, which all
            nodes share: "here" is the machine that submits, before the first task, so that nodes need no network. With
            "none" each task makes what its node lacks.
        setup: Shell lines before each task, as in `module load cuda`.
        more: Other options of sbatch, as in `--cpus-per-gpu=16`; those that a task depends on win over them.
    """

    partition: Word | None = None
    account: Word | None = None
    time: Time | None = None
    end_before_s: Annotated[int, Field(ge=1, le=65_535)] = 300
    constraint: Word | None = None
    exclusive: bool | None = None
    tasks_at_once: Annotated[int, Field(ge=1)] | None = None
    prepare: Literal["here", "none"] = "here"
    setup: list[Line] = Field(default_factory=list)
    more: list[Option] = Field(default_factory=list)


class StudyFile(StrictSettings):
    """A file with `experiments:` or `sweep:`; a file without either is one experiment.

    Attributes:
        name: Name of the study; the file's name by default.
        order: "shuffled" draws a new order of load groups, and of experiments in them, for each restart; "written"
            keeps the file's.
        seed: Seed of the shuffles.
        defaults: Laid under each experiment.
        sweep: Setting, written with dots → list of values; every combination is an experiment. `zip:` holds settings
            whose values go together.
        experiments: Each laid over the defaults; not swept.
        fleet: How a cluster is asked to run it; means nothing to a run on this machine.
    """

    name: str = ""
    order: Literal["shuffled", "written"] = "shuffled"
    seed: Seed = 0
    defaults: Settings = Field(default_factory=dict)
    sweep: Settings = Field(default_factory=dict)
    experiments: list[Settings] = Field(default_factory=list)
    fleet: FleetSpec = FleetSpec()


class StudyError(ConfigError):
    """A study that makes no sense; `location` is the place in the file."""

    def __init__(self, what: str, *location: str | int, remedy: str | None = None) -> None:
        super().__init__(what, remedy)
        self.location = location


def is_study(data: Settings) -> bool:
    """Whether a file's settings are a study's, not one experiment's."""
    return not STUDY_MARKS.isdisjoint(data)


def points(sweep: Mapping[str, Any]) -> Iterator[Point]:
    """Yield every combination, the first setting slowest.

    Raises:
        StudyError: A setting without a list of values, settings that are swept twice, a group of unequal lengths, or
            too many points.
    """
    axes: list[Axis] = []
    for name, values in sweep.items():
        if name != ZIP:
            axes.append(((name,), [(value,) for value in _listed(name, values)]))
            continue
        if not isinstance(values, dict) or not values:
            raise StudyError(f"zip: must hold settings with their values, not {shortened(values)}", "sweep", ZIP)
        columns = {zipped: _listed(zipped, column) for zipped, column in values.items()}
        if len({len(column) for column in columns.values()}) > 1:
            lengths = ", ".join(f"{zipped} {len(column)}" for zipped, column in columns.items())
            what = "zip: settings that go together need equally many values"
            raise StudyError(what, "sweep", ZIP, remedy=f"there are: {lengths}")
        axes.append((tuple(columns), list(zip(*columns.values(), strict=True))))
    names = [name for group, _ in axes for name in group]
    if deep := [name for name in names if name.count(".") > MAX_DEPTH]:
        raise StudyError(f"{shortened(deep[0])}: no setting lies that deep", "sweep", deep[0])
    if twice := [name for name in names if names.count(name) > 1]:
        raise StudyError(f"{twice[0]}: is swept twice", "sweep", twice[0], remedy="keep one")
    count = math.prod(len(steps) for _, steps in axes)
    if count > MAX_POINTS:
        raise StudyError(f"{count:,} points, at most {MAX_POINTS:,} are possible", "sweep", remedy="sweep less at once")
    for steps in itertools.product(*(steps for _, steps in axes)):
        yield dict(zip(names, itertools.chain.from_iterable(steps), strict=True))


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, list) and values:
        return values
    raise StudyError(f"{name}: {shortened(values)} is not a list of values", "sweep", name, remedy="write [1, 2]")


def mistakes_text(lines: Iterable[str]) -> str:
    """Return mistakes as an error tells them: each once, a line for each."""
    once = list(dict.fromkeys(lines))
    more = f" (and {len(once) - MOST_MISTAKES} more)" if once[MOST_MISTAKES:] else ""
    return "\n".join(once[:MOST_MISTAKES]) + more


def shortened(value: Any) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
