"""Warm-up, drift and completeness of the measured passes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydantic import Field

from wattdock.analysis.drift import Drift, drift
from wattdock.analysis.mix import PassMix, answers_difference, draw_difference, mixes
from wattdock.analysis.performance import token_disagreements, undrained
from wattdock.analysis.steadiness import Steadiness, warm_up_steadiness
from wattdock.values import Stored

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.analysis.windows import WindowSummary
    from wattdock.records import RestartRecord


class WarmUp(Steadiness):
    """One restart's warm-up.

    Attributes:
        converged: Nothing drifted any more when it ended; null under the quick profile, which does not check.
    """

    restart: int
    profile: str
    converged: bool | None


class Procedure(Stored):
    """Evidence that the passes were complete and in a steady state.

    Attributes:
        runners_per_restart: More than 1 where a restart was interrupted between passes and resumed; 0 without a pass.
        token_disagreements: Passes whose token counts contradict each other.
        undrained: Passes that ended before all their work was done.
        mix: Work that was sent, against what was declared.
    """

    warm_up: list[WarmUp]
    drift: list[Drift]
    mix: list[PassMix] = Field(default_factory=list)
    runners_per_restart: int = 0
    token_disagreements: list[str] = Field(default_factory=list)
    undrained: list[str] = Field(default_factory=list)

    @property
    def answers_difference(self) -> float | None:
        """See `mix.answers_difference`."""
        return answers_difference(self.mix)

    @property
    def draw_difference(self) -> float | None:
        """See `mix.draw_difference`."""
        return draw_difference(self.mix)


def procedure(measured: Measured, windows: WindowSummary | None) -> Procedure:
    """Return the evidence from every restart."""
    runners = Counter(restart.restart for restart in measured.restarts if restart.passes)
    return Procedure(
        warm_up=[_warm_up(measured, restart) for restart in measured.restarts],
        drift=[drift(measured, *of_pass) for of_pass in measured.passes],
        mix=mixes(measured, windows),
        runners_per_restart=max(runners.values(), default=0),
        token_disagreements=token_disagreements(measured.pass_records),
        undrained=undrained(measured.pass_records),
    )


def _warm_up(measured: Measured, restart: RestartRecord) -> WarmUp:
    limits = measured.config.warmup
    if limits.profile == "steady":
        last = warm_up_steadiness(restart.warm_up, limits, measured.used)
        return WarmUp(restart=restart.restart, profile=limits.profile, converged=not last.drifting, **dict(last))
    duration_s = sum(span.duration_s for span in restart.spans if span.name == "warm-up")
    return WarmUp(restart=restart.restart, profile=limits.profile, converged=None, duration_s=duration_s)
