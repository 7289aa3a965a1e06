"""How often intervals hold and tests find differences that are not there: `python benchmarks/error_rates.py`.

Simulated restarts and sessions are judged by the product's own code; prints the tables of
docs/decisions/comparing-arms.md.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.statistics import Restarts, difference
from wattdock.reports.sessions import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock.reports.sessions import Sessions

Draw = np.random.Generator
COUNTS = (3, 5, 10)
SESSION, RESTART = 0.003, 0.002
# Kind of restarts, whose figures have the mean 1 → a draw of some figures; longest restart ÷ shortest.
KINDS: dict[str, tuple[Callable[[Draw, int], np.ndarray], int]] = {
    "normal, 2 %": (lambda draw, count: draw.normal(1, 0.02, count), 1),
    "log-normal, 5 %": (lambda draw, count: draw.lognormal(-(0.05**2) / 2, 0.05, count), 1),
    "log-normal, 20 %": (lambda draw, count: draw.lognormal(-(0.2**2) / 2, 0.2, count), 1),
    "log-normal, 50 %": (lambda draw, count: draw.lognormal(-(0.5**2) / 2, 0.5, count), 1),
    "normal, 2 %, lengths 1 to 3": (lambda draw, count: draw.normal(1, 0.02, count), 3),
    "log-normal, 20 %, lengths 1 to 3": (lambda draw, count: draw.lognormal(-(0.2**2) / 2, 0.2, count), 3),
    "one in ten scatters 5 times as much": (
        lambda draw, count: draw.normal(1, 0.01 * np.where(draw.random(count) < 0.1, 5, 1)),
        1,
    ),
    "one in ten 5 deviations higher": (
        lambda draw, count: 1 + 0.01 * (draw.normal(size=count) + 5 * (draw.random(count) < 0.1) - 0.5),
        1,
    ),
}


def coverage(kind: str, count: int, trials: int) -> list[float]:
    """Return which share of intervals hold 1: the product's, and Student's t on the figure itself."""
    values, longest = KINDS[kind]
    draw, held = np.random.default_rng(count), np.zeros(2)
    for _ in range(trials):
        tokens = draw.uniform(1000, 1000 * longest, count)
        restarts = Restarts(tuple((tokens * values(draw, count)).tolist()), tuple(tokens.tolist()))
        low, high = restarts.interval or (0, 0)
        half = np.log(high / low) / 2
        held += [low <= 1 <= high, abs(restarts.value - 1) <= half * restarts.value]
    return list(held / trials)


def room(draw: Draw, restarts: int) -> np.ndarray:
    """Return the logarithm of the room's effect on each restart of a session, which warms while it lasts."""
    return draw.normal(0, SESSION) + np.linspace(0, SESSION, restarts)


def arm(draw: Draw, *rooms: np.ndarray) -> Sessions:
    """Return an arm that was measured once in each of these rooms."""
    scattered = (np.exp(each + draw.normal(0, RESTART, len(each))) for each in rooms)
    return {f"{at} {each.mean()}": Restarts.of_values(each.tolist()) for at, each in enumerate(scattered)}


def false_differences(count: int, sessions: int, trials: int) -> list[float]:
    """Return how often equal arms differ: by Welch's test over restarts, in pairs, and by as many sessions each."""
    draw, found = np.random.default_rng(count), np.zeros(3)
    for _ in range(trials):
        [first], [second] = (arm(draw, np.full(count, draw.normal(0, SESSION))).values() for _ in range(2))
        shared = room(draw, count)
        pair = [{"": restarts} for _ in range(2) for restarts in arm(draw, shared).values()]
        several = [arm(draw, *(room(draw, count) for _ in range(sessions))) for _ in range(2)]
        seen = (difference(first, second), outcome(*pair).difference, outcome(*several).difference)
        found += [each is not None and each.p_value < 0.05 for each in seen]
    return list(found / trials)


def table(trials: int) -> Iterator[str]:
    """Yield both tables' lines."""
    yield f"| restarts | {' | '.join(f'{count}: logarithm, plain' for count in COUNTS)} |"
    yield "|---|" + "---|" * len(COUNTS)
    for kind in KINDS:
        cells = (", ".join(f"{share:.1%}" for share in coverage(kind, count, trials)) for count in COUNTS)
        yield f"| {kind} | {' | '.join(cells)} |"
    yield ""
    heads = "Welch over restarts, one session each", "pairs of one session", "sessions each", "Welch over sessions"
    yield f"| restarts | {' | '.join(heads)} |"
    yield "|---|---|---|---|---|"
    for count, sessions in zip(COUNTS, (2, 3, 5), strict=True):
        welch, pairs, over = (f"{share:.1%}" for share in false_differences(count, sessions, trials))
        yield f"| {count} | {welch} | {pairs} | {sessions} | {over} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000, help="simulated experiments of each kind")
    sys.stdout.write("\n".join(table(parser.parse_args().trials)) + "\n")


if __name__ == "__main__":
    main()
