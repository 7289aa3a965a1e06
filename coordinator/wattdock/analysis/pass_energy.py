"""One pass's energy, whole and in a window: the schema. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from wattdock.values import Stored

# Joules ÷ output tokens as measured: the budget's figure is corrected. Earlier results have the other name.
AS_MEASURED = Field(validation_alias=AliasChoices("measured_per_output_token_j", "energy_per_output_token_j"))
MeasuredPerToken = Annotated[float | None, AS_MEASURED]


class PassEnergy(Stored):
    """Energy of one measured pass over the GPUs used, with the reuse of prompts.

    Attributes:
        reason: Why `total_j` is null, where it is.
        measured_per_output_token_j: Of the headline's window, not corrected.
        prompt_repeats: How often the pass repeated its list of prompts.
        prompts_reused: An earlier pass of the restart had some of the prompts already.
        host_j: CPU packages and memory in the pass, by domain; never part of `total_j`.
        cpu_others_share: Share of the runner's CPUs' time that others than the runner and the coordinator used, 0 to 1;
            on a virtual machine, other machines included. Null where unknown.
        lease_fault: Why other measurements were not kept off, although the leases were held; null where they were.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    duration_s: float
    output_tokens: int
    total_j: float | None
    timing_j: float | None
    per_gpu_j: dict[str, float | None]
    measured_per_output_token_j: MeasuredPerToken
    reason: str | None
    prompt_repeats: int
    prompts_reused: bool
    host_j: dict[str, float | None] = Field(default_factory=dict)
    cpu_others_share: float | None = None
    lease_fault: str | None = None


class WindowFigure(Stored):
    """One pass under one window definition; null with the reason where there is no such window or no energy in it."""

    window: str
    restart: int
    pass_index: int = Field(alias="pass")
    start_ns: int | None = None
    end_ns: int | None = None
    duration_s: float | None = None
    output_tokens: int | None = None
    total_j: float | None = None
    timing_j: float | None = None
    measured_per_output_token_j: MeasuredPerToken = None
    reason: str | None = None

    def holds(self, at_ns: int | None) -> bool:
        """Whether an instant lies in the window; the whole pass holds everything, known or not."""
        if self.window == "drained":
            return True
        if at_ns is None or self.start_ns is None or self.end_ns is None:
            return False
        return self.start_ns < at_ns <= self.end_ns
