"""Compare two sets of stored results: pair them, test how their figures differ, and list what else differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from wattdock.analysis import Audit, ExperimentResult, conditions, statistics
from wattdock.reports.boards import over_boards, pools
from wattdock.reports.sessions import (
    NO_TEST,
    ONE_SESSION,
    Outcome,
    arms_of,
    by_session,
    declared_difference,
    outcome,
    pooled,
    sessions_among,
)
from wattdock.reports.wording import quantity_text, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from wattdock.reports.sessions import SessionOf
    from wattdock.store import StoredResult

# Of A and of B: an experiment's results, one for each session, latest first.
Arms = tuple[list["StoredResult"], list["StoredResult"]]
# Largest p of a difference that is shown, and one side of a 95 % interval.
SIGNIFICANCE, ONE_SIDED = 0.05, (1 - statistics.CONFIDENCE) / 2
# Largest fall of a score that does not matter, unless another is given.
SCORE_MARGIN = 0.02
# Column of the table of results → +1 where more is worse.
QUANTITIES = {statistics.ENERGY: 1, statistics.SPEED: -1}
PRIMARY = statistics.ENERGY
METHOD = (
    "A and B: sums over all restarts ÷ sums. Experiments of one study are measured in turns: paired t-test on the "
    "logarithms of their restarts' ratios. Else sessions (runs of a study) are the units: Welch's t-test. 95 % "
    "intervals of B / A − 1, each pair's own; p adjusted for the number of pairs (Holm), differs: p < 0.05. They hold "
    "for these machines, not for other GPUs or prompts, and leave out the sensors' gain."
)
AS_DECLARED = f", sessions taken to differ by {statistics.BETWEEN_SESSIONS:.1%}"
TOO_FEW = f"{statistics.LEAST_RESTARTS} restarts of each are the least"
OPEN = "the interval reaches over the margin; more restarts make it narrower"


@dataclass(frozen=True, kw_only=True)
class Test(Outcome):
    """One quantity of one pair.

    Attributes:
        a, b: Each side's figure; None where a side lacks the quantity.
        restarts, sessions: How many of each side.
        relative: B ÷ A − 1.
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
        a, b: Folders of the results, the latest of each side.
        results: Of each side a result for each session, the latest first.
        quality: How the scores of the latest differ; None where they were not asked the same.
    """

    label: str
    a: str
    b: str
    tests: dict[str, Test]
    results: Arms = field(repr=False)
    quality: statistics.ScoreDifference | None = None

    @property
    def rows(self) -> tuple[StoredResult, StoredResult]:
        """The latest result of each side."""
        a, b = self.results
        return a[0], b[0]

    @property
    def main(self) -> Test:
        """Joules per output token, or tokens per second where a side has no joules."""
        tested = self.tests[PRIMARY]
        return tested if tested.relative is not None else self.tests[statistics.SPEED]

    @property
    def repeated(self) -> Test:
        """The test that judges a repetition of A: joules per output token where A has them, else tokens per second."""
        return self.tests[PRIMARY] if self.tests[PRIMARY].a else self.main


@dataclass(frozen=True)
class RecordedDifference:
    """A recorded condition or setting that differs: the text of each side, and in how many pairs."""

    name: str
    a: str
    b: str
    pairs: int


@dataclass(frozen=True)
class Regression:
    """What can be said of an allowed regression, and why.

    Attributes:
        lines: One for each pair, or missing partner, that decided the verdict.
        advice: How to reach a verdict where there is none.
    """

    verdict: Literal["regression", "no regression", "cannot be decided"]
    allowed: float
    lines: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two sides compared.

    Attributes:
        only_in_a, only_in_b: Names of results without a partner.
        older_left_out: How many results are left out because another of their session replaces them, or since they
            are unfinished.
        regression: None where no allowed regression was given.
        over_boards: What can be said of boards of the model, where a pair's sides ran on different ones.
        disturbed: A line for each side of a pair whose CPUs or GPUs others used.
        margin: Largest difference that does not matter, 0.05 for a ratio from 1 ÷ 1.05 to 1.05; None without one.
        score_margin: Largest fall of a score that does not matter.
    """

    pairs: tuple[Pair, ...]
    differs_in: tuple[RecordedDifference, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    older_left_out: int
    regression: Regression | None = None
    margin: float | None = None
    over_boards: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    method: str = METHOD
    score_margin: float = SCORE_MARGIN

    @property
    def across_models(self) -> str:
        """The first pair whose sides ran on different GPU models, in words; empty without one."""
        for pair in self.pairs:
            models = [
                {frozenset(row.result.environment.gpu_names) for row in side if row.result.environment} - {frozenset()}
                for side in pair.results
            ]
            if all(models) and len(models[0] | models[1]) > 1:
                a, b = (", ".join(sorted(frozenset().union(*side))) for side in models)
                return f"{pair.label}: A ran on {a}, B on {b}"
        return ""

    @property
    def untested(self) -> str:
        """Why pairs have no test for want of sessions, and what gives one; empty with a margin, or if all have one."""
        reasons = {test.reason for pair in self.pairs for test in pair.tests.values()}
        return NO_TEST if ONE_SESSION in reasons and not self.margin else ""

    @property
    def unit(self) -> str:
        """What the work of all pairs is counted in, in the plural."""
        return unit_of(row.result for pair in self.pairs for row in pair.rows)

    @property
    def quality_lines(self) -> list[str]:
        """What can be said of the score of each pair whose sides were asked the same."""
        margin = f"{self.score_margin:.3g}"
        words: dict[bool | None, str] = {
            True: f"fell by more than {margin}",
            False: f"did not fall by more than {margin}",
        }
        return [
            f"{pair.label}: score {found.difference:+.3f} {found.interval:+.3f} over {found.items} items: "
            + words.get(
                found.fell, f"a fall by {margin} cannot be told, these items rule out one by {found.least_margin:.3f}"
            )
            + f"; {found.same_answers:.0%} of answers are the same"
            for pair in self.pairs
            if (found := pair.quality)
        ]

    @property
    def equivalence_lines(self) -> list[str]:
        """Whether each pair is equivalent within the margin, in words; none without a margin."""
        if not self.margin:
            return []
        lines = []
        for pair in self.pairs:
            test = pair.repeated
            verdict = {True: "equivalent", False: "not equivalent", None: "undecided"}[test.equivalent]
            reason = AS_DECLARED if test.declared else ""
            if test.equivalent is None:
                why = TOO_FEW if test.reason == ONE_SESSION else test.reason
                reason = f": {OPEN if test.difference or test.declared else why}"
            ratio = f"the ratio of {quantity_text(test.quantity, self.unit)}{reason}"
            lines.append(f"{pair.label}: {verdict} within ± {self.margin:.3g}, {ratio}")
        return lines


def compare(
    first: Sequence[StoredResult],
    second: Sequence[StoredResult],
    *,
    allowed: float | None = None,
    margin: float | None = None,
    score_margin: float = SCORE_MARGIN,
) -> Comparison:
    """Return how two sets of results differ, pair by pair.

    Results are paired by experiment, then by the settings that vary within the sides: a sweep in float16 matches the
    same sweep in bfloat16 batch size by batch size. Of several results of an experiment in one session the latest
    counts.

    Args:
        allowed: Regression to judge, 0.03 for 3 %.
        margin: Difference within which both are equivalent, 0.05 for 5 %.
        score_margin: Largest fall of a score that does not matter, 0.02 for two points of a hundred.
    """
    session_of = sessions_among([*first, *second])
    arms = [arms_of(side, session_of) for side in (first, second)]
    own = [pools(side, session_of) for side in (first, second)]
    matches, unmatched = _matched(*([arm[0] for arm in side.values()] for side in arms))
    results = [(arms[0][a.result.experiment_id], arms[1][b.result.experiment_id]) for a, b, *_ in matches]
    # A pair's name is the label that both sides share, else the settings that match, else both labels.
    in_a = ExperimentResult.labels([a.result for a, *_ in matches])
    in_b = ExperimentResult.labels([b.result for _, b, *_ in matches])
    names = [a if a == b else place or f"{a} / {b}" for (_, _, place), a, b in zip(matches, in_a, in_b, strict=True)]
    tests = [_adjusted([_test(both, quantity, margin, session_of) for both in results]) for quantity in QUANTITIES]
    pairs = tuple(
        Pair(
            *(name, str(a.folder), str(b.folder), dict(zip(QUANTITIES, of_pair, strict=True)), both),
            quality=scores.compared(b.result.quality, score_margin) if (scores := a.result.quality) else None,
        )
        for name, (a, b, _), of_pair, both in zip(names, matches, zip(*tests, strict=True), results, strict=True)
    )
    compared = Comparison(
        pairs=pairs,
        differs_in=tuple(_recorded_differences(pairs)),
        only_in_a=tuple(ExperimentResult.labels([row.result for row in unmatched[0]])),
        only_in_b=tuple(ExperimentResult.labels([row.result for row in unmatched[1]])),
        older_left_out=len(first) + len(second) - sum(len(arm) for side in arms for arm in side.values()),
        over_boards=tuple(over_boards([(pair.label, *pair.rows) for pair in pairs], *own)),
        disturbed=tuple(
            f"{side} of {pair.label}: {found}; its figures may be of that, too"
            for pair in pairs
            for side, rows in zip("AB", pair.results, strict=True)
            for row in rows
            if row.result.audit and (found := Audit.disturbed_by(row.result.audit.checks))
        ),
        margin=margin,
        score_margin=score_margin,
    )
    return compared if allowed is None else replace(compared, regression=_judge(compared, allowed))


# Both results, and in short the settings that matched them where they are not of one experiment.
Match = tuple["StoredResult", "StoredResult", str]


def _matched(
    first: Sequence[StoredResult], second: Sequence[StoredResult]
) -> tuple[list[Match], tuple[list[StoredResult], list[StoredResult]]]:
    """Pair results by experiment, then by the settings that vary within the sides; also return the others."""
    pairs, unmatched = _paired(first, second, lambda row: row.result.experiment_id)
    sides = ([conditions.settings(row.result.config) for row in side] for side in (first, second))
    names = sorted({name for side in sides for name in conditions.differing(side)})

    def place(row: StoredResult) -> str:
        values = conditions.settings(row.result.config)
        return " ".join(f"{name.rpartition('.')[2]}={values[name]}" for name in names if name in values)

    more, unmatched = _paired(*unmatched, lambda row: tuple(map(conditions.settings(row.result.config).get, names)))
    return [*((a, b, "") for a, b in pairs), *((a, b, place(a)) for a, b in more)], unmatched


def _paired(
    first: Sequence[StoredResult], second: Sequence[StoredResult], key: Callable[[StoredResult], Hashable]
) -> tuple[list[tuple[StoredResult, StoredResult]], tuple[list[StoredResult], list[StoredResult]]]:
    """Pair results whose key is unique on both sides."""
    keyed = [[(key(row), row) for row in side] for side in (first, second)]
    counts = [Counter(value for value, _ in side) for side in keyed]
    unique = {value for value, count in counts[0].items() if count == counts[1][value] == 1}
    partner = dict(keyed[1])
    pairs = [(row, partner[value]) for value, row in keyed[0] if value in unique]
    unmatched = [[row for value, row in side if value not in unique] for side in keyed]
    return pairs, (unmatched[0], unmatched[1])


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
        return replace(test, reason=why)
    found = outcome(*by_sessions)
    relative = found.difference.relative if found.difference else test.relative
    declared = declared_difference(*sides) if margin and found.reason == ONE_SESSION else None
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


def _adjusted(tests: Sequence[Test]) -> list[Test]:
    """Return the tests with p-values adjusted for how many of them there are."""
    adjusted = iter(statistics.holm([test.difference.p_value for test in tests if test.difference]))
    return [
        replace(test, p_holm=(p_holm := next(adjusted)), differs=p_holm < SIGNIFICANCE) if test.difference else test
        for test in tests
    ]


def _recorded_differences(pairs: Sequence[Pair]) -> list[RecordedDifference]:
    """Return everything recorded that differs within pairs, the commonest first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for pair in pairs:
        a, b = (row.result.conditions for row in pair.rows)
        texts = [(name, *(side.get(name, conditions.ABSENT) for side in (a, b))) for name in dict.fromkeys([*a, *b])]
        counts.update((name, of_a, of_b) for name, of_a, of_b in texts if of_a != of_b)
    return [RecordedDifference(*difference, many) for difference, many in counts.most_common()]


def _judge(compared: Comparison, allowed: float) -> Regression:
    """Return whether any pair got worse by more than `allowed`, by joules per token where both sides have them.

    A regression is shown where the lower end of a pair's 95 % interval of it lies above `allowed`; with several pairs
    by Holm's adjustment of the same one-sided tests. None is shown where the upper end of every pair's lies at or
    below. Everything else, a pair without a test or a result without a partner too, cannot be decided.
    """
    tested = [pair for pair in compared.pairs if pair.main.difference]
    p_values = statistics.holm([pair.main.p_worse(allowed) for pair in tested])
    worse = [_line(pair, "worse than allowed") for pair, p in zip(tested, p_values, strict=True) if p < ONE_SIDED]
    if worse:
        return Regression("regression", allowed, tuple(worse))
    open_pairs = [pair for pair in compared.pairs if not (pair.main.difference and pair.main.rules_out(allowed))]
    undecided = [
        _line(pair, "may be worse than allowed") if pair.main.difference else f"{pair.label}: {pair.main.reason}"
        for pair in open_pairs
    ]
    only = {"A": compared.only_in_a, "B": compared.only_in_b}
    alone = [f"{name}: in {side} only" for side, names in only.items() for name in names]
    advice = list(dict.fromkeys(pair.main.more for pair in open_pairs))
    advice += ["measure on both sides what only one has, or leave it out"] if alone else []
    if not advice:
        return Regression("no regression", allowed)
    ruled_out = len(compared.pairs) - len(undecided)
    passed = [f"{ruled_out} of {len(compared.pairs)} pairs: not worse than allowed"] if ruled_out else []
    return Regression("cannot be decided", allowed, (*undecided, *alone, *passed), "; ".join(advice))


def _line(pair: Pair, verdict: str) -> str:
    interval = f" {pair.main.difference.interval:+.2%}" if pair.main.difference else ""
    return f"{pair.label}: {pair.main.quantity} {pair.main.relative or 0.0:+.2%}{interval}, {verdict}"
