"""Pair results of two sides, and test how each pair's figures differ. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import expm1
from typing import TYPE_CHECKING

from wattdock.analysis import Audit, conditions, statistics
from wattdock.reports.sessions import (
    MORE_RESTARTS,
    NOT_IN_TURNS,
    ON_BOTH_SIDES,
    ONE_SESSION,
    Outcome,
    apart,
    by_session,
    declared_difference,
    outcome,
    pooled,
    unshown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from wattdock.reports.sessions import SessionOf
    from wattdock.store import StoredResult

# Of A and of B: an experiment's results, one for each session, latest first.
Arms = tuple[list["StoredResult"], list["StoredResult"]]
# Largest p of a difference that is shown.
SIGNIFICANCE = 0.05
# Column of the table of results → +1 where more is worse.
QUANTITIES = {statistics.ENERGY: 1, statistics.SPEED: -1}
PRIMARY = statistics.ENERGY


@dataclass(frozen=True, kw_only=True)
class Test(Outcome):
    """One quantity of one pair.

    Attributes:
        a, b: Each side's figure; None where a side lacks the quantity.
        restarts, sessions: How many of each side.
        relative: B ÷ A − 1, by the test's own estimate of the ratio where there is one, else of `a` and `b`.
        declared: What equivalence is judged by where both sides have one session.
        p_holm: Adjusted for all tests of this quantity.
        differs: Whether a difference is shown; None where nothing was tested.
        equivalent: Whether the ratio is shown to lie within the margin asked for, or outside; None where neither is.
    """

    quantity: str
    a: float | None
    b: float | None
    restarts: tuple[int, int]
    sessions: tuple[int, int]
    relative: float | None = None
    declared: statistics.Difference | None = None
    p_holm: float | None = None
    differs: bool | None = None
    equivalent: bool | None = None

    def p_worse(self, allowed: float) -> float:
        """Return the chance of a difference this bad if B were worse by exactly `allowed`; one-sided."""
        assert self.difference
        more_is_worse = QUANTITIES[self.quantity] > 0
        return self.difference.p_not_above(allowed) if more_is_worse else self.difference.p_not_below(-allowed)

    def rules_out(self, allowed: float) -> bool:
        """Whether the whole interval lies within what is allowed."""
        assert self.difference
        interval, more_is_worse = self.difference.interval, QUANTITIES[self.quantity] > 0
        return interval.high <= allowed if more_is_worse else interval.low >= -allowed


@dataclass(frozen=True)
class Pair:
    """Two results of the same work, one from each side, and their tests.

    Attributes:
        a, b: Where the results are stored, the latest of each side.
        results: Of each side a result for each session, the latest first.
        quality: How the scores of the latest differ; None where they were not asked the same.
        other_questions: Names of the tasks that asked both sides otherwise, whose scores are not compared.
    """

    label: str
    a: str
    b: str
    tests: dict[str, Test]
    results: Arms = field(repr=False)
    quality: statistics.ScoreDifference | None = None
    other_questions: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[StoredResult, StoredResult]:
        """The latest result of each side."""
        a, b = self.results
        return a[0], b[0]

    @property
    def unmeasured(self) -> str:
        """Which side has no measured pass, and why; empty where both have one."""
        sides = [(side, row.result) for side, row in zip("AB", self.rows, strict=True) if not row.result.performance]
        return "; ".join(
            f"no pass was measured in {side}" + (f": {error.stage}: {error.message}" if (error := result.error) else "")
            for side, result in sides
        )

    @property
    def unscored(self) -> str:
        """Why a score of A is not compared; empty where each is, or A has none."""
        a, b = (row.result.quality for row in self.rows)
        answered = [task.name for task in b.tasks] if b else []
        lacking = [task.name for task in a.tasks if task.name not in answered] if a else []
        if self.other_questions:
            return f"A and B were not asked the same in {', '.join(self.other_questions)}"
        if lacking:
            return f"B has no score of {', '.join(lacking)}" + (f" ({b.failures[0]})" if b and b.failures else "")
        return "both share fewer than two items" if answered and a and a.tasks and not self.quality else ""

    @property
    def disturbed(self) -> list[tuple[str, str]]:
        """Each side whose CPUs or GPUs others used, and what showed it."""
        sides = [(side, row.result.audit) for side, rows in zip("AB", self.results, strict=True) for row in rows]
        return [(side, found) for side, audit in sides if audit and (found := Audit.disturbed_by(audit.checks))]

    @property
    def main(self) -> Test:
        """Joules per output token, or tokens per second where neither side has joules."""
        return self.tests[PRIMARY if any(self.tests[PRIMARY].restarts) else statistics.SPEED]

    @property
    def repeated(self) -> Test:
        """The test that judges a repetition of A: joules per output token where A has them, else tokens per second."""
        return self.tests[PRIMARY if self.tests[PRIMARY].restarts[0] else statistics.SPEED]


Match = tuple["StoredResult", "StoredResult"]


def matched(
    first: Sequence[StoredResult], second: Sequence[StoredResult]
) -> tuple[list[Match], tuple[list[StoredResult], list[StoredResult]]]:
    """Pair results by experiment, then by the settings that vary within the sides; also return the others."""
    pairs, unmatched = _paired(first, second, lambda row: row.result.experiment_id)
    sides = ([conditions.settings(row.result.config) for row in side] for side in (first, second))
    names = sorted({name for side in sides for name in conditions.differing(side)})
    more, unmatched = _paired(*unmatched, lambda row: tuple(map(conditions.settings(row.result.config).get, names)))
    return [*pairs, *more], unmatched


def _paired(
    first: Sequence[StoredResult], second: Sequence[StoredResult], key: Callable[[StoredResult], Hashable]
) -> tuple[list[Match], tuple[list[StoredResult], list[StoredResult]]]:
    """Pair results whose key is unique on both sides."""
    keyed = [[(key(row), row) for row in side] for side in (first, second)]
    counts = [Counter(value for value, _ in side) for side in keyed]
    unique = {value for value, count in counts[0].items() if count == counts[1][value] == 1}
    partner = dict(keyed[1])
    pairs = [(row, partner[value]) for value, row in keyed[0] if value in unique]
    unmatched = [[row for value, row in side if value not in unique] for side in keyed]
    return pairs, (unmatched[0], unmatched[1])


def tested(each: Sequence[Arms], quantity: str, margin: float | None, session_of: SessionOf) -> list[Test]:
    """Return a test of one quantity for each pair, p-values adjusted for how many there are."""
    return _adjusted([_test(arms, quantity, margin, session_of) for arms in each])


def _test(arms: Arms, quantity: str, margin: float | None, session_of: SessionOf) -> Test:
    by_sessions = [by_session(arm, quantity, session_of) for arm in arms]
    sides = [pooled(each) for each in by_sessions]
    a, b = (side.value if side and min(side.values) > 0 else None for side in sides)
    restarts, sessions = (len(sides[0]), len(sides[1])), (len(by_sessions[0]), len(by_sessions[1]))
    test = Test(quantity=quantity, a=a, b=b, restarts=restarts, sessions=sessions, relative=a and b and b / a - 1)
    reasons = [
        arm[0].result.status if value else "0 or less, so without a ratio," if side else "not measured"
        for arm, side, value in zip(arms, sides, (a, b), strict=True)
    ]
    # The last restart of a side that did not finish may be incomplete, too.
    if why := "; ".join(f"{reason} in {name}" for reason, name in zip(reasons, "AB", strict=True) if reason != "ok"):
        return replace(test, reason=why, more=MORE_RESTARTS if a and b else ON_BOTH_SIDES)
    unpaired, known = apart(*arms, session_of), unshown(*arms, quantity)
    found = outcome(by_sessions[0], by_sessions[1], unpaired, known=known)
    relative = found.difference.relative if found.difference else test.relative
    declared = declared_difference(*sides) if margin and found.reason in (ONE_SESSION, NOT_IN_TURNS) else None
    judged = found.difference or declared
    equivalent = is_equivalent(judged, margin) if judged and margin else None
    return replace(test, **vars(found), relative=relative, declared=declared, equivalent=equivalent)


def is_equivalent(difference: statistics.Difference, margin: float) -> bool | None:
    """Return whether a ratio is shown to lie inside the margin, or outside, by one-sided tests at 5 % (TOST).

    Source: Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657.
    """
    low, high = 1 / (1 + margin) - 1, margin
    if difference.p_not_above(low) < SIGNIFICANCE and difference.p_not_below(high) < SIGNIFICANCE:
        return True
    outside = difference.p_not_above(high) < SIGNIFICANCE or difference.p_not_below(low) < SIGNIFICANCE
    return False if outside else None


def equivalence_interval(difference: statistics.Difference) -> statistics.Interval:
    """Return the 90 % interval of a ratio − 1: `is_equivalent` where it lies inside the margin, or outside."""
    half = statistics.t_factor(difference.freedom, 1 - 2 * SIGNIFICANCE) * difference.log_error
    return statistics.Interval(expm1(difference.log_ratio - half), expm1(difference.log_ratio + half))


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    """Return the tests with p-values adjusted for how many of them there are."""
    adjusted = iter(statistics.holm([test.difference.p_value for test in tests if test.difference]))
    return [
        replace(test, p_holm=(p_holm := next(adjusted)), differs=p_holm < SIGNIFICANCE) if test.difference else test
        for test in tests
    ]
