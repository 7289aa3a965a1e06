"""The session as a level: one run of a study, whose room and day all its restarts share. Pure.

Results of one study whose starts lie more than 12 h apart, such as after a retry or a resumption on another day, are of
different sessions. A session begins with its earliest result; what starts within 12 h of that belongs to it.

Two arms in one session were measured in turns, so that their restarts make pairs, unless one was measured anew behind
the other (a retry). Arms in different sessions differ by their sessions, too, which no number of restarts shows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import chain
from math import hypot, sqrt
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis import statistics
from wattdock.text import pluralize
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from wattdock.analysis import Budget, ExperimentResult
    from wattdock.store import StoredResult

    # Names a result's session.
    SessionOf = Callable[[StoredResult], str]

LEAST_SESSIONS = 2
# Most requests of a window whose lines are counted: a forged result may claim any number.
MOST_REQUESTS = 10_000_000
# Longest time between the starts of two results of one session: rooms change from day to night.
SESSION_LENGTH = timedelta(hours=12)
ONE_SESSION = "no test: one session on a side"
NOT_IN_TURNS = "no test: restarts were not measured in turns, as after a retry"
UNKNOWN_DRAW = "no test: restarts send one list of prompts, and windows of few blocks do not tell how lists differ"
LONGER_WINDOWS = "measure longer windows (workload.min_duration_s), or send the same prompts on both sides"
# Least correlation of lines with which an unknown draw cancels.
SAME_LINES = 0.999
NO_TEST = (
    f"no test where a side has one session, a run of a study: sessions differ by {statistics.BETWEEN_SESSIONS:.1%} "
    "and more, which a test over restarts would take for a difference between A and B. Put both into one study: "
    "`wattdock run STUDY.yaml` measures its experiments in turns, `wattdock compare STUDY:A STUDY:B` compares restarts "
    "in pairs"
)
MORE_RESTARTS, MORE_SESSIONS = "measure more restarts", "measure more sessions"
IN_ONE_STUDY = "measure both in one study, or each in two sessions"
ON_BOTH_SIDES = "measure on both sides what only one has, or leave it out"
# One quantity of an experiment: its restarts, by session.
Sessions = dict[str, statistics.Restarts]


@dataclass(frozen=True)
class Outcome:
    """What can be said of the difference between two arms.

    Attributes:
        method: Name of the test, with how many restarts or sessions it took; empty without a test.
        difference: None where there is no test, and `reason` says why.
        more: What would tell, or tell more.
    """

    method: str = ""
    difference: statistics.Difference | None = None
    reason: str | None = None
    more: str = MORE_RESTARTS


def sessions_among(results: Iterable[StoredResult]) -> SessionOf:
    """Return what names the session of each of these results: its study, on a cluster the task, and its beginning.

    Without a study, a result's folder stands for it.
    """
    begins: dict[str, list[datetime]] = {}
    for run, start in sorted(map(_run_and_start, results)):
        of_run = begins.setdefault(run, [start])
        if start - of_run[-1] > SESSION_LENGTH:
            of_run.append(start)

    def session_of(stored: StoredResult) -> str:
        run, start = _run_and_start(stored)
        return f"{run}, {begins[run][bisect_right(begins[run], start) - 1]}"

    return session_of


def _run_and_start(stored: StoredResult) -> tuple[str, datetime]:
    """Return whose run measured a result, and when it began."""
    result = stored.result
    job = result.environment and result.environment.job
    study = result.study.study_id if result.study else str(stored.folder)
    return f"{study}, job {job.id}" if job else study, datetime.fromisoformat(result.started_utc).astimezone(UTC)


def arms_of(side: Sequence[StoredResult], session_of: SessionOf) -> dict[str, list[StoredResult]]:
    """Return each experiment's finished results, one for each session, the latest first; else its latest result."""
    arms: dict[str, dict[str, StoredResult]] = {row.result.experiment_id: {} for row in side}
    for row in sorted(side, key=lambda row: (row.result.status == "ok", row.result.started_utc), reverse=True):
        arms[row.result.experiment_id].setdefault(session_of(row), row)
    every = {name: list(rows.values()) for name, rows in arms.items()}
    return {name: [row for row in rows if row.result.status == "ok"] or rows[:1] for name, rows in every.items()}


def by_session(results: Iterable[StoredResult], quantity: str, session_of: SessionOf) -> Sessions:
    """Return a quantity's restarts in each session, where the session has the quantity."""
    sessions: Sessions = {}
    for stored in results:
        if restarts := stored.result.restarts(quantity):
            session = session_of(stored)
            sessions[session] = sessions.get(session, statistics.Restarts()) + restarts
    return sessions


def apart(first: Iterable[StoredResult], second: Iterable[StoredResult], session_of: SessionOf) -> set[str]:
    """Return the sessions that two arms share without having been measured in turns."""
    theirs = [(session_of(b), b) for b in second]
    return {name for a in first for name, b in theirs if name == session_of(a) and not _in_turns(a, b)}


def _in_turns(a: StoredResult, b: StoredResult) -> bool:
    """Whether no restart of either begins before the other's restart of the number before has ended.

    A restart of one that began on another clock than the other's of its number was tried again after a reboot.
    """
    sides = _restart_times(a), _restart_times(b)
    numbers = [{number for _, number in side} for side in sides]
    on_other_clocks = {number for _, number in sides[0].keys() ^ sides[1].keys()}
    return not on_other_clocks & numbers[0] & numbers[1] and all(
        end_ns <= other[clock, number + 1][0]
        for one, other in (sides, sides[::-1])
        for (clock, number), (_, end_ns) in one.items()
        if (clock, number + 1) in other
    )


def _restart_times(stored: StoredResult) -> dict[tuple[str, int], tuple[int, int]]:
    """Return when each restart's passes begin and end, by their clock's identity and the restart's number."""
    environment, times = stored.result.environment, dict[tuple[str, int], tuple[int, int]]()
    # Without its identity a clock is that of every other result of the study.
    identities = dict(enumerate(environment.clock.identities)) if environment else {}
    for span in stored.result.spans:
        if span.pass_index is not None:
            key = identities.get(span.clock, ""), span.restart
            begin_ns, end_ns = times.get(key, (span.start_ns, span.end_ns))
            times[key] = min(begin_ns, span.start_ns), max(end_ns, span.end_ns)
    return times


def pooled(sessions: Mapping[str, statistics.Restarts]) -> statistics.Restarts:
    """Return the restarts of all sessions."""
    return reduce(add, sessions.values(), statistics.Restarts())


def session_values(sessions: Mapping[str, statistics.Restarts]) -> statistics.Restarts:
    """Return a value for each session."""
    return statistics.Restarts.of_values([restarts.value for restarts in sessions.values()])


def unshown(first: Sequence[StoredResult], second: Sequence[StoredResult], quantity: str) -> float | None:
    """Return the standard uncertainty of the ratio's logarithm that restarts do not show; None where it is unknown.

    Of both quantities it is of the list that all restarts of a result send, but for what both sides' windows hold in
    common. Of joules, by the budgets, also of answers whose lengths nothing declares, and on the same boards of the
    slopes that each result fitted, on others of warmth, first seconds, mix and timing.
    """
    sides = [[row.result for row in side] for side in (first, second)]
    boards = [{frozenset(result.environment.gpu_uuids) for result in side if result.environment} for side in sides]
    budgets = [[result.budget for result in side if result.budget] for side in sides]
    known = [all_known(_draw(result, quantity) for result in side) for side in sides]
    one, two = (max(draws, default=0.0) for draws in (of_side or () for of_side in known))
    common = _lines_in_common(*sides) if one or two or None in known else 0.0
    # Unknown draws of the same lines cancel.
    if None in known and common < SAME_LINES:
        return None
    draws = 0.0 if None in known else sqrt(max(0.0, one**2 + two**2 - 2 * one * two * common))
    if quantity != statistics.ENERGY:
        return draws
    draws = hypot(draws, max((_answers(a, b) for a in budgets[0] for b in budgets[1]), default=0.0))
    if boards[0] == boards[1]:
        return hypot(draws, max((a.apart(b) for a in budgets[0] for b in budgets[1]), default=0.0))
    return hypot(draws, *(max((budget.unshown for budget in side), default=0.0) for side in budgets))


def _answers(a: Budget, b: Budget) -> float:
    """Return the standard uncertainty of the logarithm of two figures' ratio by the lengths of answers."""
    sketches = [np.array(each.answers_sketch or [0.0]) for each in (a, b)]
    own = sum(each.part(each.ANSWERS) ** 2 - np.mean(part**2) for each, part in zip((a, b), sketches, strict=True))
    return sqrt(max(0.0, own) + np.mean((sketches[0] - sketches[1]) ** 2))


def _lines_in_common(*sides: Sequence[ExperimentResult]) -> float:
    """Return the correlation of how often two sides' windows hold each line of one file; 0 where it is unknown.

    A faster engine's windows lie elsewhere in the list.

    Source: draws without replacement, of N lines: the covariance of Σ a x and Σ b x is S² (Σ a b - Σ a Σ b ÷ N).
    """
    # Of one file, the seed makes the order, but for a trace.
    sent = {
        (ran and ran.dataset_sha256, work.arrival == "trace" or str(work.seed))
        for ran, work in ((result.environment, result.config.workload) for result in chain(*sides))
    }
    passes = [[mix for result in side if result.procedure for mix in result.procedure.mix] for side in sides]
    known = all_known(mix.lines for mix in chain(*passes))
    most = max((mix.places[1] - mix.places[0] for mix in chain(*passes) if mix.places), default=0)
    if not known or len(sent) > 1 or most > MOST_REQUESTS:
        return 0.0
    first, second = (
        Counter(mix.lines.of(index) for mix in side if mix.lines for index in mix.indexes) for side in passes
    )

    def covariance(a: Counter[int], b: Counter[int]) -> float:
        return sum(count * b[line] for line, count in a.items()) - a.total() * b.total() / known[0].total

    variances = covariance(first, first) * covariance(second, second)
    return covariance(first, second) / sqrt(variances) if variances > 0 else 0.0


def _draw(result: ExperimentResult, quantity: str) -> float | None:
    """Return the relative standard uncertainty by the list that all restarts send; None where it is unknown.

    A budget holds one part in R of its square, of R restarts, in what scatters within windows.
    """
    if quantity != statistics.ENERGY:
        return result.performance.draw_of_speed if result.performance else 0.0
    if not (budget := result.budget):
        return 0.0
    restarts = len(budget.per_restart)
    is_unknown = any(part.name == budget.PROMPTS for part in budget.not_included)
    return None if is_unknown else budget.part(budget.PROMPTS) * sqrt(restarts / max(1, restarts - 1))


def outcome(first: Sessions, second: Sessions, unpaired: Collection[str] = (), *, known: float | None = 0.0) -> Outcome:
    """Return how two arms differ: by pairs of restarts where they share a session, else by sessions.

    Args:
        unpaired: Sessions that make no pairs, see `apart`.
        known: What `unshown` returns.
    """
    if known is None:
        return Outcome(reason=UNKNOWN_DRAW, more=LONGER_WINDOWS)
    # A result makes no pairs with itself, unless the whole side is compared with itself.
    common = [name for name in first if name in second and (first[name] != second[name] or first == second)]
    common = [name for name in common if name not in unpaired]
    # A finished experiment has all restarts, so that a restart's place is its number.
    shared = [pair for name in common for pair in zip(first[name].values, second[name].values, strict=False)]
    if len(shared) >= statistics.LEAST_RESTARTS:
        return Outcome(f"paired t-test, {len(shared)} restarts", statistics.paired_difference(shared, known=known))
    if min(len(first), len(second)) >= LEAST_SESSIONS:
        welch = statistics.difference(session_values(first), session_values(second), known=known)
        return Outcome(f"Welch's t-test, {len(first)} and {len(second)} sessions", welch, more=MORE_SESSIONS)
    if shared:
        few = pluralize(len(shared), "pair of restarts", "pairs of restarts")
        return Outcome(reason=f"no test from {few}; {statistics.LEAST_RESTARTS} are the least")
    return Outcome(reason=NOT_IN_TURNS if unpaired else ONE_SESSION, more=IN_ONE_STUDY)


def declared_difference(first: statistics.Restarts, second: statistics.Restarts) -> statistics.Difference | None:
    """Return the difference of arms in different sessions if these differ as declared; None from too few restarts.

    It serves to show equivalence within a margin, for which a bound is enough.
    """
    if min(len(first), len(second)) < statistics.LEAST_RESTARTS:
        return None
    return statistics.difference(first, second, known=sqrt(2) * statistics.BETWEEN_SESSIONS)
