"""Judge whether any pair of a comparison got worse by more than is allowed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wattdock.analysis import statistics
from wattdock.reports.sessions import ON_BOTH_SIDES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.reports.pairs import Pair

# One side of a 95 % interval.
ONE_SIDED = (1 - statistics.CONFIDENCE) / 2


@dataclass(frozen=True)
class Regression:
    """What can be said of an allowed regression, with a line for each pair that decided, and how to reach a verdict."""

    verdict: Literal["regression", "no regression", "cannot be decided"]
    allowed: float
    lines: tuple[str, ...] = ()
    advice: str = ""


def judged(pairs: Sequence[Pair], alone: Mapping[str, Sequence[str]], allowed: float) -> Regression:
    """Return whether any pair got worse by more than `allowed`, by joules per token where a side has them.

    A regression is shown where the lower end of a pair's 95 % interval of it lies above `allowed`; with several pairs
    by Holm's adjustment of the same one-sided tests. None is shown where the upper end of every pair's lies at or
    below. Everything else, a pair without a test or a result without a partner too, cannot be decided.

    Args:
        alone: Names of results without a partner, by side.
    """
    tested = [pair for pair in pairs if pair.main.difference]
    p_values = statistics.holm([pair.main.p_worse(allowed) for pair in tested])
    worse = [_line(pair, "worse than allowed") for pair, p in zip(tested, p_values, strict=True) if p < ONE_SIDED]
    if worse:
        return Regression("regression", allowed, tuple(worse))
    open_pairs = [pair for pair in pairs if not (pair.main.difference and pair.main.rules_out(allowed))]
    undecided = [
        _line(pair, "may be worse than allowed") if pair.main.difference else f"{pair.label}: {pair.main.reason}"
        for pair in open_pairs
    ]
    unpaired = [f"{name}: in {side} only" for side, names in alone.items() for name in names]
    advice = list(dict.fromkeys(pair.main.more for pair in open_pairs))
    advice += [ON_BOTH_SIDES] if unpaired and ON_BOTH_SIDES not in advice else []
    if not advice:
        return Regression("no regression", allowed)
    ruled_out = len(pairs) - len(undecided)
    passed = [f"{ruled_out} of {len(pairs)} pairs: not worse than allowed"] if ruled_out else []
    return Regression("cannot be decided", allowed, (*undecided, *unpaired, *passed), "; ".join(advice))


def _line(pair: Pair, verdict: str) -> str:
    interval = f" {pair.main.difference.interval:+.2%}" if pair.main.difference else ""
    return f"{pair.label}: {pair.main.quantity} {pair.main.relative or 0.0:+.2%}{interval}, {verdict}"
