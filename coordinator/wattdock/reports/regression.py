"""Whether one set of results is worse than another by more than was allowed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from wattdock.analysis import CONFIDENCE, holm
from wattdock.reports.pairs import QUANTITIES

if TYPE_CHECKING:
    from wattdock.analysis import Difference
    from wattdock.reports.pairs import Comparison, Pair, Test

# One side of a 95 % interval.
ONE_SIDED = (1 - CONFIDENCE) / 2


class Outcome(Enum):
    """What can be said of an allowed regression."""

    REGRESSION = "regression"
    NONE = "no regression"
    UNDECIDED = "cannot be decided"


@dataclass(frozen=True)
class Gate:
    """What can be said, and why.

    Attributes:
        lines: One for each pair, or missing partner, that made the outcome.
        advice: What would decide it, where it is open.
    """

    outcome: Outcome
    lines: tuple[str, ...]
    advice: str = ""


def judge(compared: Comparison, allowed: float) -> Gate:
    """Return whether any pair got worse by more than `allowed` (0.03 for 3 %), by joules per token where both have it.

    A regression is shown where the lower end of a pair's 95 % interval of it lies above `allowed`; with several pairs
    by Holm's adjustment of the same one-sided tests. None is shown where the upper end of every pair's lies at or
    below. Everything else, a pair without a test or a result without a partner too, cannot be decided.
    """
    tested = [(pair, found) for pair in compared.pairs if (found := pair.main.difference)]
    shown = holm([_p_worse(pair.main, found, allowed) for pair, found in tested])
    worse = [_line(pair, "worse than allowed") for (pair, _), p in zip(tested, shown, strict=True) if p < ONE_SIDED]
    if worse:
        return Gate(Outcome.REGRESSION, tuple(worse))
    open_ = [
        _line(pair, "may be worse than allowed") for pair, found in tested if not _within(pair.main, found, allowed)
    ]
    open_ += [f"{pair.label}: {pair.main.reason}" for pair in compared.pairs if not pair.main.difference]
    alone = [f"{name}: in A only" for name in compared.only_first]
    advice = ["more restarts tell"] if open_ else []
    advice += ["measure in B what only A has, or leave it out of A"] if alone else []
    ruled_out = len(compared.pairs) - len(open_)
    passed = [f"{ruled_out} of {len(compared.pairs)} pairs: not worse than allowed"] if ruled_out else []
    lines = (*open_, *alone, *passed)
    return Gate(Outcome.UNDECIDED, lines, "; ".join(advice)) if advice else Gate(Outcome.NONE, ())


def _p_worse(test: Test, found: Difference, allowed: float) -> float:
    return found.p_not_above(allowed) if QUANTITIES[test.quantity] > 0 else found.p_not_below(-allowed)


def _within(test: Test, found: Difference, allowed: float) -> bool:
    return found.high <= allowed if QUANTITIES[test.quantity] > 0 else found.low >= -allowed


def _line(pair: Pair, said: str) -> str:
    found = pair.main.difference
    interval = f" [{found.low:+.2%}, {found.high:+.2%}]" if found else ""
    return f"{pair.label}: {pair.main.quantity} {pair.main.relative or 0.0:+.2%}{interval}, {said}"
