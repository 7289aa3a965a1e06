"""Boards of one GPU model differ by more than restarts on one of them: the board is a level of its own."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.rows import row
from seams.analysis import Restarts, Window, budget
from seams.console import results_view
from seams.reports import Pool, latex, markdown, over_boards, paper

from wattdock.console.views import show
from wattdock.reports import compare, points_of, pools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.store import StoredResult

# Three boards that differ by up to 11 %, each repeating within a few parts in a thousand.
RESTARTS = {"GPU-a": [1.000, 1.001, 1.002], "GPU-b": [1.110, 1.111], "GPU-c": [1.050, 1.049, 1.051]}


def on(board: str, restarts: Sequence[float], **changes: object) -> StoredResult:
    """Return a finished result of one board, whose experiment asked for that board."""
    own = {"environment.gpu_uuids": [board], "config.gpus": [board], "config.name": "one", "status": "ok"}
    return row(f"on-{board}", {**own, **changes}, restarts=restarts)


def pooled() -> Pool:
    [pool] = pools(on(board, values) for board, values in RESTARTS.items()).values()
    return pool


def test_board_means_give_the_interval_for_the_model_and_restarts_the_one_for_these_boards(stats: Any) -> None:
    """Student's t on three means; the spreads of each board's restarts, with Welch's degrees of freedom."""
    pool, means = pooled(), [fmean(values) for values in RESTARTS.values()]
    assert pool.mean == pytest.approx(fmean(means))
    over = stats.t.interval(0.95, 2, 0, stats.sem(np.log(means)))
    assert list(pool.over_boards) == pytest.approx(list(fmean(means) * np.exp(over)))
    squares = sum((value - fmean(values)) ** 2 for values in RESTARTS.values() for value in values)
    within = (squares / 5) ** 0.5
    assert pool.within is not None
    assert pool.within == pytest.approx(within)
    assert pool.between == pytest.approx(stdev(means))
    parts = [(stdev(np.log(values)) ** 2 / len(values) / 9, len(values) - 1) for values in RESTARTS.values()]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / of_part for part, of_part in parts)
    assert pool.these_boards is not None
    these = stats.t.interval(0.95, freedom, 0, variance**0.5)
    assert list(pool.these_boards) == pytest.approx(list(fmean(means) * np.exp(these)))
    assert pool.over_boards.high - pool.mean > 50 * (pool.these_boards.high - pool.mean)


def block_window(joules: Any, celsius: Any) -> Window:
    """Return a window of 20 blocks of 2 s, a token each, after 45 s of work."""
    return Window(
        total_j=float(joules.sum()),
        output_tokens=20,
        timing_j=0.002,
        lead_in_s=45,
        block_s=np.full(20, 2.0),
        block_j=joules,
        block_tokens=np.ones(20),
        block_c=celsius,
    )


def measured_boards(random: Any, count: int, sessions: str, scatter: float) -> tuple[Pool, float]:
    """Return the pool of boards that differ by 1 %, and the mean of their figures in the mean room, settled.

    What a degree costs and what is left of the first seconds is the same on all; a room is its session's.
    """
    cost, first, rooms = random.normal(0.0006, 0.0003), random.normal(0, 0.0005), dict[str, float]()
    by_board: dict[str, Any] = {}
    budgets, truths = [], np.exp(random.normal(0, 0.01, count))
    for board, true_j in enumerate(truths):
        by_board[str(board)], of_board = {}, []
        for number in range(2 if sessions == "two each" else 1):
            session = "same" if sessions == "one" else f"{board}, {number}"
            room_c = rooms.setdefault(session, random.normal(0, 1.5))
            colder_c = random.uniform(0, 6) * np.exp(-np.arange(1, 41, 2) / random.uniform(30, 120))
            restarts = []
            for _ in range(3):
                noise = (1 + random.normal(0, scatter)) * (1 + random.normal(0, 0.004, 20))
                joules = true_j * (1 + cost * (room_c - colder_c) + first) * noise
                read_c = np.round(60 + room_c - colder_c + random.normal(0, 0.4, 20))
                restarts.append([block_window(joules, read_c)])
            of_board.append(budget(restarts))
            by_board[str(board)][session] = Restarts.of_values(of_board[-1].per_restart)
        budgets.append(of_board)
    return Pool.of("x", by_board, budgets, "output tokens"), float(truths.mean())


@pytest.mark.parametrize("scatter", [0.001, 0.01])
@pytest.mark.parametrize("sessions", ["one", "one each", "two each"])
@pytest.mark.parametrize("count", [2, 4])
def test_intervals_of_both_levels_hold_the_truth(count: int, sessions: str, scatter: float) -> None:
    """Of the model, and of these boards, whose restarts share warmth, first seconds and room: in 93 to 99 of 100."""
    held, worlds = np.zeros(2), 200
    for seed in range(worlds):
        pool, true_j = measured_boards(np.random.default_rng(seed), count, sessions, scatter)
        intervals = ((1.0, pool.over_boards), (true_j, pool.these_boards))
        held += [bool(ends and ends.low <= truth <= ends.high) for truth, ends in intervals]
    assert held.min() >= 0.92 * worlds
    assert held[1] < worlds


def test_two_boards_are_known_about_as_well_as_each_of_them() -> None:
    """What restarts do not show is no smaller on two; by restarts alone it would be a fifth."""
    for seed in range(20):
        pool, _ = measured_boards(np.random.default_rng(seed), 2, "one", 0.0)
        assert pool.these_boards
        assert 0.002 < pool.these_boards.high / pool.mean - 1 < 0.005


def test_only_results_that_differ_in_nothing_but_their_board_are_pooled() -> None:
    """Another batch size, number of GPUs, GPU model or window, an unfinished result and a board twice are not."""
    first = on("GPU-a", [1.0, 1.1])
    assert pools([first, on("GPU-b", [1.0, 1.1], **{"environment.gpu_uuids": ["GPU-b", "GPU-c"]})]) == {}
    assert pools([first, on("GPU-b", [1.0, 1.1], **{"config.workload.batch_size": 99})]) == {}
    assert pools([first, on("GPU-b", [1.0, 1.1], **{"environment.gpu_names": ["another"]})]) == {}
    assert pools([first, on("GPU-b", [1.0, 1.1], status="failed")]) == {}
    assert pools([first, on("GPU-b", [-1.0, 0.1])]) == {}
    assert pools([first, on("GPU-b", [1.0, 1.1], **{"energy.windows.headline": "steady_state"})]) == {}
    assert pools([first, on("GPU-a", [1.2])]) == {}
    [pool] = pools([first, on("GPU-a", [1.2]), on("GPU-b", [1.3])]).values()
    values = [restarts.values for of_board in pool.by_board.values() for restarts in of_board.values()]
    assert values == [pytest.approx([1.0, 1.1, 1.2]), pytest.approx([1.3])]


def test_one_restart_on_each_board_says_nothing_of_the_spread_within() -> None:
    """And so there is no interval for these boards alone."""
    [pool] = pools(studied(board, "s", [joules]) for board, joules in (("a", 1.0), ("b", 1.1))).values()
    assert (pool.within, pool.these_boards) == (None, None)
    assert "2 boards, 2 restarts, 1 session: " in str(pool)
    assert "for boards of the model in this session; standard deviation between boards" in str(pool)
    assert "on one" not in str(pool)


def test_boards_without_budgets_are_pooled_by_their_restarts(stats: Any) -> None:
    """As versions before the budget stored them: the pooled spread of eight restarts, five degrees of freedom."""
    [pool] = pools(on(board, values, budget=None) for board, values in RESTARTS.items()).values()
    assert pool.within is not None
    assert pool.these_boards is not None
    error = pool.within * (1 / 3 + 1 / 2 + 1 / 3) ** 0.5 / 3 / pool.mean
    assert list(pool.these_boards) == pytest.approx(list(pool.mean * np.exp(stats.t.interval(0.95, 5, 0, error))))


def studied(board: str, study: str, restarts: Sequence[float], **changes: object) -> StoredResult:
    return on(board, restarts, study={"study_id": study, "attempt": 1}, **changes)


def test_sessions_on_the_same_boards_are_the_repeats_of_these_boards(stats: Any) -> None:
    """Two sessions on each of two boards, which lie further apart than restarts: two degrees of freedom, not eight."""
    drawn = {("GPU-a", "s1"): 1.00, ("GPU-a", "s2"): 1.02, ("GPU-b", "s3"): 1.10, ("GPU-b", "s4"): 1.14}
    rows = [studied(board, study, [joules, joules + 0.001, joules - 0.001]) for (board, study), joules in drawn.items()]
    [pool] = pools(rows).values()
    assert (pool.units, len(pool.sessions)) == ("sessions", 4)
    assert pool.mean == pytest.approx(1.065)
    within = ((2 * 0.01**2 + 2 * 0.02**2) / 2) ** 0.5
    assert pool.within is not None
    assert pool.within == pytest.approx(within)
    these = stats.t.interval(0.95, 2, 0, within * (1 / 2 + 1 / 2) ** 0.5 / 2 / 1.065)
    assert list(pool.these_boards or ()) == pytest.approx(list(1.065 * np.exp(these)))
    assert "2 boards, 12 restarts, 4 sessions: 1.065 J/output token" in str(pool)
    assert "for boards of the model, [" in str(pool)
    assert " for these boards; standard deviation" in str(pool)


def test_boards_of_one_session_a_side_have_a_ratio_over_boards_and_no_interval() -> None:
    """Each side's boards share a room, which may be what differs; boards of the same session share it on both sides."""
    sides = [
        [studied(f"GPU-{server}{at}", study, [value] * 3, **changes) for at, value in enumerate(values)]
        for server, study, values, changes in (
            ("a", "s1", (1.0, 1.1), {"config.gpus": [0]}),
            ("b", "s2", (1.3, 1.5), {"config.gpus": [0]}),
            ("c", "s1", (1.3, 1.5), {"config.gpus": [0]}),
        )
    ]
    # Boards of one session and experiment: the pair's rows are its latest, its boards are all.
    own = [pools(side) for side in sides]
    rows = [side[0] for side in sides]
    [apart] = over_boards([("one", rows[0], rows[1])], own[0], own[1])
    assert apart.endswith("boards of the model: B / A − 1 = +33.33% no interval, no test: one session on a side")
    [same] = over_boards([("one", rows[0], rows[2])], own[0], own[2])
    assert same.startswith("one, over 2 and 2 boards of the model: B / A − 1 = +33.33% [")


def test_tables_say_how_many_boards_stand_behind_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """On the terminal and in papers: each row is of one, the pool of three."""
    rows = [on(board, values) for board, values in RESTARTS.items()]
    said = "one: 3 boards, 8 restarts, 3 sessions: 1.054 J/output token ["
    assert said in "\n".join(str(line) for line in results_view(rows) if isinstance(line, str))
    for form in (markdown, latex):
        text = form(points_of(rows))
        assert paper.BOARDS_NOTE in text
        assert said in text
    show(rows[:1])
    assert "board" in capsys.readouterr().out


def test_a_difference_between_boards_is_not_taken_for_one_between_settings() -> None:
    """One board a side tells nothing, two a side give the difference over boards; the same board needs no word."""
    a, b = on("GPU-a", [1.0, 1.001]), on("GPU-b", [1.11, 1.111])
    [line] = compare([a], [b]).over_boards
    assert (line.startswith("one: "), "%" in line) == (True, False)
    assert compare([a], [on("GPU-a", [1.2, 1.21])]).over_boards == ()
    sides = [
        [on(f"GPU-{server}{at}", [value], **{"config.gpus": [at], "config.workload.batch_size": size})]
        for server, size, values in (("a", 8, (1.0, 1.1)), ("b", 16, (1.3, 1.5)))
        for at, value in enumerate(values)
    ]
    compared = compare(sides[0] + sides[1], sides[2] + sides[3])
    assert len(compared.pairs) == len(compared.over_boards) == 2
    # The means of 1.3 and 1.5, and of 1 and 1.1.
    assert all("= +33.33%" in line for line in compared.over_boards)
