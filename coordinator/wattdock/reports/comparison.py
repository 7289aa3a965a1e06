"""Compare two sets of stored results: how their figures differ, pair by pair, and what else differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.analysis import conditions, statistics
from wattdock.errors import ConfigError
from wattdock.reports.boards import over_boards, pools
from wattdock.reports.labels import labels, pair_labels
from wattdock.reports.pairs import QUANTITIES, Pair, equivalence_interval, matched, tested
from wattdock.reports.regression import Regression, judged
from wattdock.reports.sessions import NO_TEST, ONE_SESSION, arms_of, sessions_among
from wattdock.reports.wording import cut_text, no_joules_text, quantity_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.store import StoredResult

# Largest fall of a score that does not matter, unless another is given.
SCORE_MARGIN = 0.02
METHOD = (
    "A and B: of the windows of all restarts, joules per unit as their budget corrects them. "
    "B / A: of experiments of one study, measured in turns, the geometric mean "
    "of their restarts' ratios (paired t-test on the logarithms); else of sessions (runs of a study) the ratio of the "
    "means over sessions (Welch's t-test); without a test the ratio of B and A as shown. 95 % intervals of B / A − 1, "
    "each pair's own; p adjusted for the number of pairs (Holm), differs: p < 0.05. Of joules on different boards they "
    "hold what the budgets hold beyond restarts and room, of different lists of prompts their draw. They are of these "
    "machines, not of other GPUs or prompts, and leave out the sensors' gain."
)
AS_DECLARED = f", sessions taken to differ by {statistics.BETWEEN_SESSIONS:.1%}"
TOO_FEW = f"{statistics.LEAST_RESTARTS} restarts of each are the least"
# Beginnings of names of conditions that make another work, whose joules are another figure.
THE_WORK = ("model", "weights", "setting: model.", "setting: workload.")
# The conditions that name a file of prompts, which may lie elsewhere, and the one that tells its content.
PROMPTS_FROM, PROMPTS_SHA256 = ("prompts", "setting: workload.prompts.source"), conditions.SPELLED["dataset_sha256"]
OPEN = "the interval reaches over the margin"


@dataclass(frozen=True)
class RecordedDifference:
    """A recorded condition or setting that differs: the text of each side, and in how many pairs."""

    name: str
    a: str
    b: str
    pairs: int


@dataclass(frozen=True)
class Comparison:
    """Two sides compared; what else differs, and other boards and programs, only of pairs with a pass on both sides.

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
    def measured(self) -> list[Pair]:
        """The pairs with a measured pass on both sides."""
        return [pair for pair in self.pairs if not pair.unmeasured]

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
    def uncompared(self) -> str:
        """Why no pair has joules of both sides, or speeds where neither has joules, by the first pair; else empty."""
        pair = self.pairs[0]
        if any(each.main.relative is not None for each in self.pairs):
            return ""
        sides = zip("AB", pair.rows, (pair.main.a, pair.main.b), strict=True)
        whys = [f" ({side}: {why})" for side, row, of in sides if not of and (why := no_joules_text(row.result))]
        reason = f"{quantity_text(pair.main.quantity, self.unit)}: {pair.main.reason}{''.join(whys)}"
        return f"{pair.label}: {pair.unmeasured or reason}"

    @property
    def untested(self) -> str:
        """Why pairs have no test for want of sessions, and what gives one; empty with a margin, or if all have one."""
        reasons = {test.reason for pair in self.pairs for test in pair.tests.values()}
        return NO_TEST if ONE_SESSION in reasons and not self.margin else ""

    @property
    def unit(self) -> str:
        """What the work of all pairs is counted in, in the plural; "units" where pairs differ."""
        units = {row.result.config.unit for pair in self.pairs for row in pair.rows}
        return units.pop() if len(units) == 1 else "units"

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
            + "".join(
                f"; {side}: {text}" for side, row in zip("AB", pair.rows, strict=True) if (text := cut_text(row.result))
            )
            for pair in self.pairs
            if (found := pair.quality)
        ] + [f"{pair.label}: the score is not compared: {pair.unscored}" for pair in self.pairs if pair.unscored]

    @property
    def equivalence_lines(self) -> list[str]:
        """Whether each pair is equivalent within the margin, in words; none without a margin."""
        if not self.margin:
            return []
        lines = []
        for pair in self.measured:
            test = pair.repeated
            verdict = {True: "equivalent", False: "not equivalent", None: "undecided"}[test.equivalent]
            reason = AS_DECLARED if test.declared else ""
            if test.equivalent is None:
                why = TOO_FEW if test.reason == ONE_SESSION else test.reason
                reason = f": {OPEN if test.difference or test.declared else why}"
            judged = test.difference or test.declared
            interval = f", 90 % {equivalence_interval(judged):+.2%}" if judged else ""
            ratio = f"the ratio of {quantity_text(test.quantity, self.unit)}{interval}{reason}"
            lines.append(f"{pair.label}: {verdict} within ± {self.margin * 100:.3g} %, {ratio}")
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

    Raises:
        ConfigError: A pair's sides count their work in different units.
    """
    session_of = sessions_among([*first, *second])
    arms = [arms_of(side, session_of) for side in (first, second)]
    own = [pools(side, session_of) for side in (first, second)]
    matches, unmatched = matched(*([arm[0] for arm in side.values()] for side in arms))
    results = [(arms[0][a.result.experiment_id], arms[1][b.result.experiment_id]) for a, b in matches]
    names = pair_labels([a for a, _ in matches], [b for _, b in matches])
    for a, b in matches:
        if a.result.config.unit != b.result.config.unit:
            what = f"{a.place} counts {a.result.config.unit}, {b.place} {b.result.config.unit}"
            raise ConfigError(what, "name one of each that do the same work, as STUDY:EXPERIMENT")
    tests = [tested(results, quantity, margin, session_of) for quantity in QUANTITIES]
    pairs = tuple(
        Pair(
            *(name, a.place, b.place, dict(zip(QUANTITIES, of_pair, strict=True)), both),
            quality=None if others or not scores else scores.compared(b.result.quality, score_margin),
            other_questions=others,
        )
        for name, (a, b), of_pair, both in zip(names, matches, zip(*tests, strict=True), results, strict=True)
        for scores, others in [(a.result.quality, a.result.other_questions(b.result))]
    )
    measured = [pair for pair in pairs if not pair.unmeasured]
    only = [tuple(labels(side)) for side in unmatched]
    return Comparison(
        pairs=pairs,
        differs_in=tuple(_recorded_differences(measured)),
        only_in_a=only[0],
        only_in_b=only[1],
        older_left_out=len(first) + len(second) - sum(len(arm) for side in arms for arm in side.values()),
        over_boards=tuple(over_boards([(pair.label, *pair.rows) for pair in measured], *own)),
        disturbed=tuple(
            f"{side} of {pair.label}: {found}; its figures may be of that, too"
            for pair in measured
            for side, found in pair.disturbed
        ),
        regression=None if allowed is None else judged(pairs, dict(zip("AB", only, strict=True)), allowed),
        margin=margin,
        score_margin=score_margin,
    )


def _recorded_differences(pairs: Sequence[Pair]) -> list[RecordedDifference]:
    """Return everything recorded that differs within pairs: first what makes the work another, then the commonest."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for pair in pairs:
        a, b = (row.result.conditions for row in pair.rows)
        same_prompts = a.get(PROMPTS_SHA256) == b.get(PROMPTS_SHA256) not in (None, conditions.UNKNOWN)
        named = [name for name in conditions.differing([a, b]) if not (same_prompts and name in PROMPTS_FROM)]
        counts.update((name, a.get(name, conditions.ABSENT), b.get(name, conditions.ABSENT)) for name in named)
    found = [RecordedDifference(*difference, many) for difference, many in counts.most_common()]
    return sorted(found, key=lambda difference: not difference.name.startswith(THE_WORK))
