"""How long what is left will take, from what was seen: never a guess. Pure.

What was never seen counts with its lower bound, and the whole is then called "at least".
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattdock.analysis import StoredSpan
    from wattdock.config import ExperimentConfig
    from wattdock.execution.schedule import Groups
    from wattdock.metering import Span

PASS, OPENING = "pass", ("idle-empty", "launch", "load")
# What a restart needs beside its measured passes.
AROUND = ("idle-loaded-before", "warm-up", "one-token", "idle-loaded-after")


@dataclass(frozen=True)
class Cost:
    """Mean seconds of an experiment's parts; None where none was seen.

    Attributes:
        opening_s: Idle before a runner starts, launching it and loading the model.
        around_s: All warm-up and one-token passes of a restart, and its idle spans, together.
        pass_s: One measured pass.
    """

    opening_s: float | None
    around_s: float | None
    pass_s: float | None


@dataclass(frozen=True)
class Work:
    """What one experiment has left.

    Attributes:
        passes_left: Measured passes left, one number per restart that is not complete.
        cost: As seen in this study or in earlier results; None where it never ran.
    """

    config: ExperimentConfig
    passes_left: tuple[int, ...]
    cost: Cost | None


@dataclass(frozen=True)
class Duration:
    """Seconds, and whether they are all: a lower bound otherwise."""

    seconds: float
    whole: bool

    def __str__(self) -> str:
        if not self.whole and self.seconds < 1:
            return "time unknown"
        return words(self.seconds) if self.whole else f"at least {words(self.seconds)}"


def cost_of(spans: Iterable[Span] | Iterable[StoredSpan]) -> Cost:
    """Return what the spans of one or more restarts of an experiment cost."""
    seconds: dict[str, list[float]] = {}
    for span in spans:
        seconds.setdefault(span.name, []).append((span.end_ns - span.start_ns) / NS_PER_S)
    opening = [mean(seconds[name]) for name in OPENING if name in seconds]
    restarts = max((len(seconds.get(name, ())) for name in OPENING), default=0)
    return Cost(
        opening_s=sum(opening) if opening else None,
        around_s=sum(sum(seconds.get(name, ())) for name in AROUND) / max(restarts, 1),
        pass_s=mean(seconds[PASS]) if PASS in seconds else None,
    )


def duration(work: Sequence[Work], groups: Groups) -> Duration:
    """Return how long all of `work` takes.

    Args:
        groups: Load groups, positions in `work`: each is opened once for each restart that is left in it.
    """
    seconds, whole = 0.0, True
    opened = {one.config.backend: one.cost.opening_s for one in work if one.cost and one.cost.opening_s is not None}
    for group in groups:
        members = [work[position] for position in group]
        for member in members:
            part = _serving(member)
            seconds, whole = seconds + part.seconds, whole and part.whole
        part = _opening(members, opened)
        seconds, whole = seconds + part.seconds, whole and part.whole
    return Duration(seconds, whole)


def _serving(one: Work) -> Duration:
    left = sum(one.passes_left)
    if one.cost and one.cost.pass_s is not None:
        return Duration(left * one.cost.pass_s + len(one.passes_left) * (one.cost.around_s or 0.0), whole=True)
    return Duration(left * (one.config.workload.min_duration_s or 0.0), whole=not left)


def _opening(members: Sequence[Work], opened: Mapping[str, float]) -> Duration:
    """Opening takes what it took the same group, else the same backend."""
    restarts = max(len(one.passes_left) for one in members)
    own = next((one.cost.opening_s for one in members if one.cost and one.cost.opening_s is not None), None)
    seen_s = opened.get(members[0].config.backend) if own is None else own
    return Duration(restarts * (seen_s or 0.0), whole=seen_s is not None or not restarts)


def words(seconds: float) -> str:
    """Return a duration as people say it: "45 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
