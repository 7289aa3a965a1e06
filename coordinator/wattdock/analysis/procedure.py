"""Completeness of the measured passes, and the work that they were sent. Pure."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field

from wattdock.analysis.mix import PassMix, mixes
from wattdock.analysis.performance import token_disagreements, undrained
from wattdock.values import Stored, all_known, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured


class Procedure(Stored):
    """Evidence that the passes were complete.

    Attributes:
        runners_per_restart: More than 1 where a restart was interrupted between passes and resumed; 0 without a pass.
        token_disagreements: Passes whose token counts contradict each other.
        undrained: Passes that ended before all their work was done.
        mix: Work that was sent, against what was declared.
        prompt_tokens, limit_tokens: Mean of a prompt, and of an answer at most, as settings or a file declare them, of
            answers else the mean of the limits sent; null where unknown, and in older results.
    """

    mix: list[PassMix] = Field(default_factory=list)
    prompt_tokens: float | None = None
    limit_tokens: float | None = None
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

    @property
    def draw_chance(self) -> float:
        """Standard deviation of `draw_difference` by chance, with passes that draw independently."""
        return sqrt(sum(mix.draw_chance**2 for mix in self.mix)) / max(1, len(self.mix))


def procedure(measured: Measured) -> Procedure:
    """Return the evidence from every restart."""
    runners = Counter(restart.restart for restart in measured.restarts if restart.passes)
    whole = ((each, run.declared.staggered) for run in measured.pass_records for each in run.requests)
    sent = all_known(request.max_output_tokens for request, staggered in whole if request.index >= staggered)
    declared = next((run.declared for run in measured.pass_records), None)
    return Procedure(
        mix=mixes(measured),
        prompt_tokens=declared and declared.prompt_tokens,
        limit_tokens=(declared and declared.output_tokens) or (fmean(sent) if sent else None),
        runners_per_restart=max(runners.values(), default=0),
        token_disagreements=token_disagreements(measured.pass_records),
        undrained=undrained(measured.pass_records),
    )
