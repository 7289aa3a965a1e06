"""Warm-up, drift and completeness of the measured passes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydantic import Field

from wattdock.analysis.drift import Drift, drift
from wattdock.analysis.mix import PassMix, mixes
from wattdock.analysis.performance import token_disagreements, undrained
from wattdock.analysis.steadiness import Steadiness, warm_up_steadiness
from wattdock.values import Stored, all_known, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.analysis.windows import WindowSummary


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
        """Answer tokens ÷ declared answer tokens − 1, over all passes; None where a pass declares no lengths.

        As every prompt is the declared one, output tokens per prompt token are off by as much.
        """
        declared = known_sum(mix.declared_answer_tokens for mix in self.mix)
        return sum(mix.answer_tokens for mix in self.mix) / declared - 1 if declared else None

    @property
    def draw_difference(self) -> float | None:
        """Mean over passes of what their draws differ from the long run by; None where a pass has none."""
        known = all_known(mix.draw_difference for mix in self.mix)
        return sum(known) / len(known) if known else None


def procedure(measured: Measured, windows: WindowSummary | None) -> Procedure:
    """Return the evidence from every restart."""
    runners = Counter(restart.restart for restart in measured.restarts if restart.passes)
    limits, warm_ups = measured.config.warmup, []
    for restart in measured.restarts:
        if limits.profile == "steady":
            last = warm_up_steadiness(restart.warm_up, limits, measured.used)
            converged = not last.drifting
        else:
            last = Steadiness(duration_s=sum(span.duration_s for span in restart.spans if span.name == "warm-up"))
            converged = None
        warm_ups.append(WarmUp(restart=restart.restart, profile=limits.profile, converged=converged, **dict(last)))
    return Procedure(
        warm_up=warm_ups,
        drift=[drift(measured, *of_pass) for of_pass in measured.passes],
        mix=mixes(measured, windows),
        runners_per_restart=max(runners.values(), default=0),
        token_disagreements=token_disagreements(measured.pass_records),
        undrained=undrained(measured.pass_records),
    )
