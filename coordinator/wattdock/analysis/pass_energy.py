"""One pass's energy: whole, of its steady state, and each figure's uncertainty; the schema. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wattdock.analysis.joules import NORMAL95
from wattdock.values import Stored


class Uncertainty(Stored):
    """The uncertainty budget of `total_j`; its parts are never added up.

    Attributes:
        timing_j: Standard uncertainty from tick brackets, interpolation and the counters' lag.
        statistical_j: From the spread between restarts; null with fewer than two.
        sensor_gain: Systematic; unknown unless the sensors were calibrated, never inside a confidence interval.
    """

    timing_j: float | None
    statistical_j: float | None = None
    sensor_gain: Literal["unknown"] | float = "unknown"

    @property
    def timing95_j(self) -> float | None:
        """Half the width of the 95 % interval from timing alone."""
        return None if self.timing_j is None else NORMAL95 * self.timing_j


class SteadyState(Stored):
    """The part of a pass in which its engine was in its steady state, see `windows.headline`."""

    duration_s: float
    output_tokens: int
    total_j: float | None
    timing_j: float | None


class PassEnergy(Stored):
    """Energy of one measured pass over the GPUs used, with the reuse of prompts.

    Attributes:
        reason: Why `total_j` is null, where it is.
        energy_per_output_token_j: Figure of what is `counted`.
        steady: The steady state, where the headline figures are of it; null where they are of the whole pass.
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
    energy_per_output_token_j: float | None
    reason: str | None
    prompt_repeats: int
    prompts_reused: bool
    host_j: dict[str, float | None] = Field(default_factory=dict)
    cpu_others_share: float | None = None
    lease_fault: str | None = None
    steady: SteadyState | None = None

    @property
    def counted(self) -> PassEnergy | SteadyState:
        """What the headline figures count of this pass."""
        return self.steady or self
