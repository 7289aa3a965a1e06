"""Results of equal settings on several boards of one GPU model, with the board as a level of its own. Pure.

A board here is what one figure was measured on: a GPU by its UUID, or the set of those used together. Restarts on one
board say how a figure repeats there, and nothing of the model's other boards, which may differ by a hundred times more.
Boards measured in one session share its room; of boards in several sessions, these are a part of how boards differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

from wattdock.analysis import Budget, statistics
from wattdock.reports.sessions import LEAST_SESSIONS, ONE_SESSION, by_session, pooled, session_values, sessions_among
from wattdock.reports.wording import quantity_text
from wattdock.text import pluralize, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.reports.sessions import SessionOf, Sessions
    from wattdock.store import StoredResult

# Conditions that are equal for all results of a pool, beside the settings.
EQUAL = ("GPU", "weights", "model revision", "framework", "framework version", "GPU power limit, W", "energy boundary")
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pool:
    """Joules per output token of one experiment on several boards; intervals are of 95 %.

    Attributes:
        by_board: Restarts by board and session.
        sessions: The sessions that boards were measured in.
        boards: The boards' figures, which weigh alike; a board's is the mean over its sessions.
        over_boards: Interval of the mean, for boards of the model: Student's t on boards' figures.
        these_boards: Interval of the mean of these boards' figures; None with one unit on each.
        unit: What the work is counted in, in the plural.
        units: "sessions" where a board has several, else "restarts".
        between, within: Standard deviations of boards' figures, and of units around their own board's mean, pooled;
            `within` is None with one unit on each.
    """

    label: str
    by_board: dict[str, Sessions]
    sessions: set[str]
    boards: statistics.Restarts
    over_boards: statistics.Interval
    these_boards: statistics.Interval | None
    unit: str
    units: Literal["sessions", "restarts"]
    between: float
    within: float | None

    @classmethod
    def of(cls, label: str, by_board: dict[str, Sessions], budgets: Sequence[Sequence[Budget]], unit: str) -> Pool:
        """Return the pool of two boards or more; what each board's `budgets` hold beyond restarts, boards share."""
        names = {name for sessions in by_board.values() for name in sessions}
        of_sessions = [session_values(sessions) for sessions in by_board.values()]
        several = max(map(len, of_sessions)) > 1
        repeats = of_sessions if several else [pooled(sessions) for sessions in by_board.values()]
        boards = statistics.Restarts.of_values([values.value for values in of_sessions])
        within, these = statistics.pooled_deviation([of_board.values for of_board in repeats]), None
        every = [budget for of_board in budgets for budget in of_board]
        draws = Budget.PROMPTS, Budget.ANSWERS
        known = fmean([hypot(each.unshown, *map(each.part, draws)) for each in every] or [0.0])
        over = _interval(boards.value, boards.relative_error, len(boards) - 1, known)
        if within is not None and (several or not all(budgets)):
            sizes = list(map(len, repeats))
            error = within * sqrt(sum(1 / size for size in sizes)) / len(sizes) / boards.value
            these = _interval(boards.value, error, sum(sizes) - len(sizes), known)
        elif within is not None:
            # Sessions show their rooms and the scatter of blocks; restarts show neither.
            room = fmean(each.part(each.ROOM) for each in every)
            parts = [
                (entry.standard_uncertainty / len(of_board) / len(boards), entry.degrees_of_freedom or inf)
                for of_board in budgets
                for each in of_board
                if (entry := each.entry(each.RESTARTS))
            ]
            error = hypot(*(part for part, _ in parts))
            freedom = statistics.effective_freedom(error, parts)
            these = _interval(boards.value, error, freedom, hypot(known, room / sqrt(len(names))))
        units: Literal["sessions", "restarts"] = "sessions" if several else "restarts"
        return cls(label, by_board, names, boards, over, these, unit, units, stdev(boards.values), within)

    @property
    def mean(self) -> float:
        """Joules per output token: the mean over boards."""
        return self.boards.value

    def __str__(self) -> str:
        these = f", {self.these_boards} for these boards" if self.these_boards else ""
        spread = f"standard deviation between boards {self.between / self.mean:.2%}"
        spread += "" if self.within is None else f", of {self.units} on one {self.within / self.mean:.2%}"
        restarts = sum(len(pooled(sessions)) for sessions in self.by_board.values())
        sessions = pluralize(len(self.sessions), "session")
        counts = f"{len(self.by_board)} boards, {pluralize(restarts, 'restart')}, {sessions}"
        where = "" if len(self.sessions) > 1 else " in this session"
        mean = f"{significant(self.mean)} {quantity_text(statistics.ENERGY, self.unit)} {self.over_boards}"
        mean += f" for boards of the model{where}{these}"
        return f"{self.label}: {counts}: {mean}; {spread}"


def pools(results: Iterable[StoredResult], session_of: SessionOf | None = None) -> dict[Key, Pool]:
    """Return results that differ in their boards only, pooled; those of one board are left out.

    Args:
        session_of: Names a result's session; None tells sessions among these results.
    """
    grouped: dict[Key, dict[str, list[StoredResult]]] = {}
    rows = list(results)
    session_of = session_of or sessions_among(rows)
    for stored in rows:
        if (boards := _boards(stored.result)) and stored.result.status == "ok":
            of_key = grouped.setdefault(_key(stored.result), {})
            of_key.setdefault(", ".join(sorted(boards)), []).append(stored)
    found = {}
    for key, of_key in grouped.items():
        by_board = {board: by_session(same, statistics.ENERGY, session_of) for board, same in of_key.items()}
        by_board = {board: each for board, each in by_board.items() if each and session_values(each).value > 0}
        if len(by_board) > 1:
            config = next(iter(of_key.values()))[0].result.config
            budgets = [[row.result.budget for row in of_key[board] if row.result.budget] for board in by_board]
            found[key] = Pool.of(config.label, by_board, budgets, config.unit)
    return found


def _interval(value: float, error: float, freedom: float, known: float) -> statistics.Interval:
    """Return the 95 % interval of a value whose logarithm has this error, beside what is `known` exactly."""
    error, freedom = statistics.with_known(error, freedom, known)
    return statistics.Interval.around(value, statistics.t_factor(freedom) * error)


def over_boards(
    pairs: Iterable[tuple[str, StoredResult, StoredResult]], first: Mapping[Key, Pool], second: Mapping[Key, Pool]
) -> Iterator[str]:
    """Yield a line for each pair on different boards: its difference over boards, or that nothing is known of it.

    Args:
        first, second: The pools of each side.
    """
    for label, *rows in pairs:
        of_a, of_b = (set(_boards(row.result)) for row in rows)
        if not of_a or not of_b or of_a == of_b:
            continue
        a, b = (side.get(_key(row.result)) for side, row in zip((first, second), rows, strict=True))
        if not (a and b):
            yield f"{label}: A and B ran on different boards, and these differ, too; 2 boards a side tell them apart"
            continue
        over = statistics.difference(a.boards, b.boards)
        alone = a.sessions != b.sessions and min(len(a.sessions), len(b.sessions)) < LEAST_SESSIONS
        counts = f"{len(a.by_board)} and {len(b.by_board)} boards of the model"
        interval = f"no interval, {ONE_SESSION}" if alone else f"{over.interval:+.2%}"
        yield f"{label}, over {counts}: B / A − 1 = {over.relative:+.2%} {interval}"


def _key(result: ExperimentResult) -> Key:
    """What is equal for results that differ in their boards only."""
    named = ((name, text) for name, text in result.conditions.items() if name in EQUAL or name.startswith("setting: "))
    windows = result.energy.windows if result.energy else None
    window = ("window", windows.headline if windows else "")
    # Which GPUs is the board; how many is not.
    count = ("GPUs", str(len(_boards(result))))
    return (window, count, *((name, text) for name, text in named if name.split(".")[0] != "setting: gpus"))


def _boards(result: ExperimentResult) -> Sequence[str]:
    return result.environment.gpu_uuids if result.environment else ()
