"""A study as a person writes it, and the points of its sweep: dotted setting → value. Pure.

Knows no setting's meaning; `expand` makes experiments of the points, `load` checks each.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from wattdock.config.workload import Written
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Beyond this nothing that can be swept makes sense, and floats lose whole numbers.
LIMIT = 2**53
Number = (
    Annotated[int, Field(strict=True, ge=-LIMIT, le=LIMIT)]
    | Annotated[float, Field(strict=True, ge=-LIMIT, le=LIMIT, allow_inf_nan=False)]
)
Settings = dict[str, Any]
MAX_POINTS = 20_000


class LinearRange(Written):
    """`{from: 0, to: 10, step: 5}`: 0, 5, 10; whole numbers stay whole."""

    from_: Number = Field(alias="from")
    to: Number
    step: Number


class PowerRange(Written):
    """`{from: 1, to: 512, powers_of: 2}`: every power of 2 from 1 to 512."""

    from_: Annotated[Number, Field(gt=0, alias="from")]
    to: Annotated[Number, Field(gt=0)]
    powers_of: Annotated[int, Field(strict=True, ge=2)]


class LogRange(Written):
    """`{from: 0.1, to: 10, log: 5}`: 5 values, each the same factor above the one before.

    Between whole numbers they are rounded to whole numbers.
    """

    from_: Annotated[Number, Field(gt=0, alias="from")]
    to: Annotated[Number, Field(gt=0)]
    log: Annotated[int, Field(strict=True, ge=2, le=MAX_POINTS)]


class StudyFile(Written):
    """A file with `experiments:` or `sweep:`; a file without either is one experiment.

    Attributes:
        name: How the study is called; the file's name unless given.
        order: "shuffled" draws a new order of load groups, and of experiments in them, for each restart; "written"
            keeps the file's.
        seed: Of the shuffles.
        stop_after_failures: Attempts in a row that fail at the same stage in the same way before the rest of that
            backend is given up; null never does.
        defaults: Laid under each experiment.
        sweep: Setting, written with dots → values or a range; every combination is an experiment. `zip:` holds
            settings whose values go together.
        exclude: Settings of points to leave out; a point goes if it has all the settings of one entry. A list stands
            for any of its values.
        experiments: Each laid over the defaults; not swept.
    """

    name: str = ""
    order: Literal["shuffled", "written"] = "shuffled"
    seed: Annotated[int, Field(ge=0)] = 0
    stop_after_failures: Annotated[int, Field(ge=1)] | None = 3
    defaults: Settings = Field(default_factory=dict)
    sweep: Settings = Field(default_factory=dict)
    exclude: list[Settings] = Field(default_factory=list)
    experiments: list[Settings] = Field(default_factory=list)


STUDY_MARKS = {"experiments", "sweep", "defaults"}


def is_study(data: Settings) -> bool:
    """Whether a file's settings are a study's, not one experiment's."""
    return not STUDY_MARKS.isdisjoint(data)


ZIP = "zip"
Range = LinearRange | PowerRange | LogRange
RANGES: dict[str, type[Range]] = {"step": LinearRange, "powers_of": PowerRange, "log": LogRange}
FORMS = "[1, 2], {from: 1, to: 9, step: 2}, {from: 1, to: 512, powers_of: 2} or {from: 1, to: 100, log: 5}"
MAX_DEPTH = 10
# Decimals that a person can have meant; the rest is how floats add up.
DIGITS = 12


class SweepError(ConfigError):
    """A sweep that makes no sense; `location` is the place in the file."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(message)
        self.location = location


Point = dict[str, Any]
# Settings that take their values together, one tuple of values per step.
Axis = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def points(sweep: Mapping[str, Any]) -> Iterator[Point]:
    """Yield every combination, the first setting slowest.

    Raises:
        SweepError: Values that are none, settings that are swept twice, a group of unequal lengths, or too many points.
    """
    axes = [*_axes(sweep)]
    names = [name for group, _ in axes for name in group]
    if deep := [name for name in names if name.count(".") > MAX_DEPTH]:
        raise SweepError(f"{seen(deep[0])}: no setting lies that deep", "sweep", deep[0])
    if twice := [name for name in names if names.count(name) > 1]:
        raise SweepError(f"{twice[0]}: is swept twice; keep one", "sweep", twice[0])
    count = math.prod(len(steps) for _, steps in axes)
    if count > MAX_POINTS:
        raise SweepError(f"{count:,} points, at most {MAX_POINTS:,} are possible; sweep less at once", "sweep")
    for steps in itertools.product(*(steps for _, steps in axes)):
        yield dict(zip(names, itertools.chain.from_iterable(steps), strict=True))


def _axes(sweep: Mapping[str, Any]) -> Iterator[Axis]:
    for name, written in sweep.items():
        if name != ZIP:
            yield (name,), [(value,) for value in values(name, written)]
            continue
        groups = written if isinstance(written, list) else [written]
        for group in groups:
            yield _zipped(group)


def _zipped(group: Any) -> Axis:
    if not isinstance(group, dict) or not group:
        raise SweepError(f"zip: must hold settings with their values, not {seen(group)}", "sweep", ZIP)
    columns = {name: values(name, written) for name, written in group.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise SweepError(f"zip: settings that go together need equally many values; there are: {lengths}", "sweep", ZIP)
    return tuple(columns), list(zip(*columns.values(), strict=True))


def values(name: str, written: Any) -> list[Any]:
    """Return the values that a list or a range stands for.

    Raises:
        SweepError: It is neither, holds none, or more than a sweep may have.
    """
    if isinstance(written, list) and written:
        return written
    kind = next((kind for key, kind in RANGES.items() if isinstance(written, dict) and key in written), None)
    if kind is None:
        raise _error(name, f"{seen(written)} is no list of values and no range; write {FORMS}")
    return _range_values(name, kind, written)


def _range_values(name: str, kind: type[Range], written: dict[str, Any]) -> list[Any]:
    try:
        given = kind.model_validate(written)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"][:1]))
        raise _error(name, f"{where}: {problem['msg'].lower()}, not {seen(problem['input'])}") from None
    if isinstance(given, PowerRange):
        return _powers(name, given)
    found = _linear(name, given) if isinstance(given, LinearRange) else _logarithmic(given)
    # Between whole numbers, people mean whole numbers.
    if all(isinstance(number, int) for number in (given.from_, given.to, getattr(given, "step", 0))):
        return list(dict.fromkeys(round(value) for value in found))
    return found


def _linear(name: str, given: LinearRange) -> list[float]:
    """Return from, from + step, … up to and with `to`; an end that is missed by a rounding error is hit."""
    steps = (given.to - given.from_) / given.step if given.step else -1
    if steps < 0:
        raise _error(name, f"from {given.from_} by {given.step} never gets to {given.to}; turn the step round")
    # A step can be so small that the quotient is no finite number.
    if (count := math.floor(min(steps, LIMIT)) + 1) > MAX_POINTS:
        raise _error(name, f"{count:,} values, at most {MAX_POINTS:,} are possible; sweep less at once")
    return [round(given.from_ + i * given.step, DIGITS) for i in range(math.floor(steps + 1e-9) + 1)]


def _powers(name: str, given: PowerRange) -> list[int]:
    powers = itertools.takewhile(lambda power: power <= given.to, (given.powers_of**k for k in itertools.count()))
    found = [power for power in powers if power >= given.from_]
    if not found:
        raise _error(name, f"there is no power of {given.powers_of} from {given.from_} to {given.to}")
    return found


def _logarithmic(given: LogRange) -> list[float]:
    factor = (given.to / given.from_) ** (1 / (given.log - 1))
    return [float(f"{given.from_ * factor**i:.{DIGITS}g}") for i in range(given.log)]


def _error(name: str, message: str) -> SweepError:
    return SweepError(f"{name}: {message}", "sweep", name)


def seen(value: Any) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
