"""From a `sweep:` to its points. Pure; knows no setting's meaning.

A point is a mapping of dotted setting → value.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config.study import LIMIT, MAX_POINTS, LinearRange, LogRange, PowerRange
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        raise SweepError(f"{_short(deep[0])}: no setting lies that deep", "sweep", deep[0])
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
        raise SweepError(f"zip: must hold settings with their values, not {_short(group)}", "sweep", ZIP)
    columns = {name: values(name, written) for name, written in group.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        seen = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise SweepError(f"zip: settings that go together need equally many values; there are: {seen}", "sweep", ZIP)
    return tuple(columns), list(zip(*columns.values(), strict=True))


def values(name: str, written: Any) -> list[Any]:
    """Return the values that a list or a range stands for.

    Raises:
        SweepError: It is neither, holds none, or more than a sweep may have.
    """
    if isinstance(written, list) and written:
        _check_count(name, len(written))
        return written
    kind = next((kind for key, kind in RANGES.items() if isinstance(written, dict) and key in written), None)
    if kind is None:
        raise _values_error(name, f"{_short(written)} is no list of values and no range; write {FORMS}")
    return _range_values(name, kind, written)


def _range_values(name: str, kind: type[Range], written: dict[str, Any]) -> list[Any]:
    try:
        given = kind.model_validate(written)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"][:1]))
        raise _values_error(name, f"{where}: {problem['msg'].lower()}, not {_short(problem['input'])}") from None
    if isinstance(given, PowerRange):
        return _powers(name, given)
    found = _linear(name, given) if isinstance(given, LinearRange) else _logarithmic(given)
    # Between whole numbers, people mean whole numbers.
    if all(isinstance(one, int) for one in (given.from_, given.to, getattr(given, "step", 0))):
        return list(dict.fromkeys(round(value) for value in found))
    return found


def _linear(name: str, given: LinearRange) -> list[float]:
    """Return from, from + step, … up to and with `to`; an end that is missed by a rounding error is hit."""
    steps = (given.to - given.from_) / given.step if given.step else -1
    if steps < 0:
        raise _values_error(name, f"from {given.from_} by {given.step} never gets to {given.to}; turn the step round")
    # A step can be so small that the quotient is no finite number.
    _check_count(name, math.floor(min(steps, LIMIT)) + 1)
    return [round(given.from_ + i * given.step, DIGITS) for i in range(math.floor(steps + 1e-9) + 1)]


def _powers(name: str, given: PowerRange) -> list[int]:
    powers = itertools.takewhile(lambda power: power <= given.to, (given.powers_of**k for k in itertools.count()))
    found = [power for power in powers if power >= given.from_]
    if not found:
        raise _values_error(name, f"there is no power of {given.powers_of} from {given.from_} to {given.to}")
    return found


def _logarithmic(given: LogRange) -> list[float]:
    factor = (given.to / given.from_) ** (1 / (given.log - 1))
    return [float(f"{given.from_ * factor**i:.{DIGITS}g}") for i in range(given.log)]


def _check_count(name: str, count: int) -> None:
    if count > MAX_POINTS:
        raise _values_error(name, f"{count:,} values, at most {MAX_POINTS:,} are possible; sweep less at once")


def _values_error(name: str, message: str) -> SweepError:
    return SweepError(f"{name}: {message}", "sweep", name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
