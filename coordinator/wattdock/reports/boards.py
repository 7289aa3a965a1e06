"""Results of equal settings on several boards of one GPU model, with the board as a level of its own. Pure.

A board here is what one figure was measured on: a GPU by its UUID, or the set of those used together. Restarts on one
board say how a figure repeats there, and nothing of the model's other boards, which may differ by a hundred times more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import stdev
from typing import TYPE_CHECKING

from wattdock.analysis import conditions, statistics
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.store import StoredResult

# Conditions that are equal for all results of a pool, beside the settings.
EQUAL = ("GPU", "weights", "model revision", "framework", "framework version", "GPU power limit, W")
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pool:
    """Joules per output token of one experiment on several boards; intervals are of 95 %.

    Attributes:
        by_board: Restarts by board.
        boards: The boards' figures, which weigh alike.
        over_boards: Interval of the mean, for boards of the model: Student's t on boards' figures.
        these_boards: Interval of the mean, for more restarts on these boards only; None with one restart on each.
        between, within: Standard deviations of boards' figures, and of restarts around their own board's mean, pooled,
            each with its interval (χ²); `within` is None with one restart on each.
    """

    label: str
    by_board: dict[str, statistics.Restarts]
    boards: statistics.Restarts
    over_boards: statistics.Interval
    these_boards: statistics.Interval | None
    between: tuple[float, statistics.Interval]
    within: tuple[float, statistics.Interval] | None

    @classmethod
    def of(cls, label: str, by_board: dict[str, statistics.Restarts]) -> Pool:
        """Return the pool of two boards or more."""
        boards = statistics.Restarts.of_values([restarts.value for restarts in by_board.values()])
        sizes = list(map(len, by_board.values()))
        freedom = sum(sizes) - len(sizes)
        within, these = statistics.pooled_deviation([restarts.values for restarts in by_board.values()]), None
        if within is not None:
            error = within * sqrt(sum(1 / size for size in sizes)) / len(sizes) / boards.value
            these = statistics.Interval.around(boards.value, statistics.t_factor(freedom) * error)
        between = _with_interval(stdev(boards.values), len(boards) - 1)
        spread = None if within is None else _with_interval(within, freedom)
        over = statistics.Interval.around(boards.value, statistics.t_factor(len(boards) - 1) * boards.relative_error)
        return cls(label, by_board, boards, over, these, between, spread)

    @property
    def mean(self) -> float:
        """Joules per output token: the mean over boards."""
        return self.boards.value

    def __str__(self) -> str:
        these = f", {self.these_boards:.4g} for these boards alone" if self.these_boards else ""
        within = f", within one {self._share(*self.within)}" if self.within else ""
        counts = f"{len(self.by_board)} boards, {pluralize(sum(map(len, self.by_board.values())), 'restart')}"
        mean = f"{self.mean:.4g} J/output token {self.over_boards:.4g} for boards of the model{these}"
        return f"{self.label}: {counts}: {mean}; standard deviation between boards {self._share(*self.between)}{within}"

    def _share(self, deviation: float, interval: statistics.Interval) -> str:
        relative = statistics.Interval(interval.low / self.mean, interval.high / self.mean)
        return f"{deviation / self.mean:.2%} {relative:.2%}"


def pools(results: Iterable[StoredResult]) -> dict[Key, Pool]:
    """Return results that differ in their boards only, pooled; those of one board are left out."""
    grouped: dict[Key, dict[str, statistics.Restarts]] = {}
    labels: dict[Key, str] = {}
    for stored in results:
        restarts = stored.result.restarts(statistics.ENERGY)
        if restarts and (boards := _boards(stored.result)) and stored.result.status == "ok":
            key = _key(stored.result)
            labels.setdefault(key, stored.result.config.label)
            of_key, board = grouped.setdefault(key, {}), ", ".join(sorted(boards))
            of_key[board] = of_key.get(board, statistics.Restarts()) + restarts
    return {key: Pool.of(labels[key], by_board) for key, by_board in grouped.items() if len(by_board) > 1}


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
        if a and b:
            over = statistics.difference(a.boards, b.boards)
            counts = f"{len(a.by_board)} and {len(b.by_board)} boards of the model"
            yield f"{label}, over {counts}: B / A − 1 = {over.relative:+.2%} {over.interval:+.2%}"
        else:
            yield f"{label}: A and B ran on different boards, and these differ, too; 2 boards a side tell them apart"


def _key(result: ExperimentResult) -> Key:
    """What is equal for results that differ in their boards only."""
    equal = conditions.everything(result.config, result.environment)
    named = ((name, text) for name, text in equal.items() if name in EQUAL or name.startswith("setting: "))
    windows = result.energy.windows if result.energy else None
    window = ("window", windows.headline if windows else "")
    return (window, *((name, text) for name, text in named if name.split(".")[0] != "setting: gpus"))


def _boards(result: ExperimentResult) -> Sequence[str]:
    return result.environment.gpu_uuids if result.environment else ()


def _with_interval(deviation: float, freedom: int) -> tuple[float, statistics.Interval]:
    """Return a standard deviation with its 95 % interval, by χ²."""
    from scipy.special import chdtri

    tail = (1 - statistics.CONFIDENCE) / 2
    low, high = (deviation * sqrt(freedom / float(chdtri(freedom, share))) for share in (tail, 1 - tail))
    return deviation, statistics.Interval(low, high)
