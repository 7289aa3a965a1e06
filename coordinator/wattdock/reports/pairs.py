"""Compare two sets of stored results: how their figures differ, and what else does. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattdock.analysis import (
    ABSENT,
    ENERGY,
    SPEED,
    Difference,
    difference,
    everything,
    geometric_mean,
    holm,
    labels,
    restart_values,
)
from wattdock.reports.matching import match
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.reports.matching import Match
    from wattdock.store import StoredResult

SIGNIFICANCE = 0.05
# Quantity → +1 where more is worse.
QUANTITIES = {ENERGY: 1, SPEED: -1}
PRIMARY = ENERGY


@dataclass(frozen=True)
class Test:
    """One quantity of one pair.

    Attributes:
        first, second: Geometric means of the restart values; None where a side lacks the quantity.
        restarts: How many of each side.
        relative: Second ÷ first − 1.
        difference: With interval and p-value; None where there is no test, `reason` says why.
        p_holm: Adjusted for all tests of this quantity.
    """

    quantity: str
    first: float | None
    second: float | None
    restarts: tuple[int, int]
    relative: float | None = None
    difference: Difference | None = None
    p_holm: float | None = None
    reason: str | None = None

    @property
    def differs(self) -> bool | None:
        """Whether a difference is shown; None where nothing was tested."""
        return None if self.p_holm is None else self.p_holm < SIGNIFICANCE


@dataclass(frozen=True)
class Pair:
    """Two results and their tests, by quantity."""

    label: str
    match: Match
    tests: dict[str, Test]

    @property
    def main(self) -> Test:
        """Joules per output token, or tokens per second where a side has no joules."""
        tested = self.tests[PRIMARY]
        return tested if tested.relative is not None else self.tests[SPEED]


@dataclass(frozen=True)
class Apart:
    """Something else in which pairs differ: what each side has, and in how many pairs."""

    name: str
    first: str
    second: str
    pairs: int


@dataclass(frozen=True)
class Comparison:
    """Two sides compared.

    Attributes:
        only_first, only_second: Names of results without a partner.
        repeated: Older rows of an experiment that a later one stands for.
    """

    pairs: tuple[Pair, ...]
    apart: tuple[Apart, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    repeated: int


def compare(first: Sequence[StoredResult], second: Sequence[StoredResult]) -> Comparison:
    """Return how two sets of results differ, pair by pair."""
    matched = match(first, second)
    names = _names(matched.pairs)
    tests = {quantity: _adjusted([_test(pair, quantity) for pair in matched.pairs]) for quantity in QUANTITIES}
    pairs = tuple(
        Pair(name, pair, {quantity: tests[quantity][at] for quantity in QUANTITIES})
        for at, (name, pair) in enumerate(zip(names, matched.pairs, strict=True))
    )
    alone = [tuple(labels([row.result for row in side])) for side in (matched.only_first, matched.only_second)]
    return Comparison(pairs, tuple(_apart(matched.pairs)), alone[0], alone[1], matched.repeated)


def _names(pairs: Sequence[Match]) -> list[str]:
    """Return what both sides call each pair; else the settings that it was found by, or both names."""
    first = labels([pair.first.result for pair in pairs])
    second = labels([pair.second.result for pair in pairs])
    return [
        one if one == other else pair.place or f"{one} / {other}"
        for pair, one, other in zip(pairs, first, second, strict=True)
    ]


def _test(pair: Match, quantity: str) -> Test:
    sides = [restart_values(row.result).get(quantity, []) for row in (pair.first, pair.second)]
    first, second = (geometric_mean(values) if values and min(values) > 0 else None for values in sides)
    test = Test(quantity, first, second, (len(sides[0]), len(sides[1])))
    if not first or not second:
        return replace(test, reason=_why_no_ratio(*sides))
    if why := _unfinished(pair) or _too_few(test.restarts):
        return replace(test, relative=second / first - 1, reason=why)
    found = difference(*sides)
    return replace(test, relative=found.relative, difference=found)


def _why_no_ratio(first: Sequence[float], second: Sequence[float]) -> str:
    sides = {"A": first, "B": second}
    reasons = {
        "not measured": [name for name, values in sides.items() if not values],
        "0 or less, so without a ratio,": [name for name, values in sides.items() if values and min(values) <= 0],
    }
    return "; ".join(f"{reason} in {' and '.join(names)}" for reason, names in reasons.items() if names)


def _unfinished(pair: Match) -> str | None:
    """Return which sides hold only a part of what was asked for; their last restart may be a part too."""
    sides = {"A": pair.first.result.status, "B": pair.second.result.status}
    return "; ".join(f"{status} in {name}" for name, status in sides.items() if status != "ok") or None


def _too_few(restarts: tuple[int, int]) -> str | None:
    first, second = restarts
    if min(restarts) > 1:
        return None
    return f"no test from {first} and {pluralize(second, 'restart')}; two of each are the least"


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    """Return the tests with p-values adjusted for how many of them there are."""
    tested = [one for one in tests if one.difference]
    adjusted = iter(holm([one.difference.p_value for one in tested if one.difference]))
    return [replace(one, p_holm=next(adjusted)) if one.difference else one for one in tests]


def _apart(pairs: Sequence[Match]) -> list[Apart]:
    """Return everything recorded that differs within pairs, the commonest first."""
    counts: dict[tuple[str, str, str], int] = {}
    for pair in pairs:
        own, other = everything(pair.first.result), everything(pair.second.result)
        for name in dict.fromkeys([*own, *other]):
            key = (name, own.get(name, ABSENT), other.get(name, ABSENT))
            if key[1] != key[2]:
                counts[key] = counts.get(key, 0) + 1
    return [Apart(*key, many) for key, many in sorted(counts.items(), key=lambda one: -one[1])]
