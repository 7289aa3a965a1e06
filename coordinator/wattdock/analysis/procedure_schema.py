"""What was done around the measured passes, and what was seen there: warm-up, idle, drift."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wattdock.values import Stored


class WarmUpSeen(Stored):
    """One restart's warm-up.

    Attributes:
        converged: Nothing drifted any more when it ended; null under the quick profile, which does not look.
        drifting: What still did, with figures and limits.
        tokens_slope_per_min, energy_slope_per_min: Relative change over the last window of tokens/s, J/token.
        temperature_range_c: Largest change of a sensor over the last window.
        output_tokens_per_s, energy_per_output_token_j: Of each of its passes.
    """

    restart: int
    profile: str
    duration_s: float
    converged: bool | None
    drifting: list[str]
    tokens_slope_per_min: float | None
    energy_slope_per_min: float | None
    temperature_range_c: float | None
    output_tokens_per_s: list[float]
    energy_per_output_token_j: list[float | None]


class IdleBaseline(Stored):
    """One GPU without work, over one idle span, by its energy counter.

    Attributes:
        state: "empty" before the runner started; "loaded_before" and "loaded_after" with context and weights, around
            the passes.
        used: It held a part of the model.
        unsettled: Why it was not at rest; null when it was.
        performance_state: NVML's P-state, 0 is the fastest.
    """

    restart: int
    gpu_uuid: str
    state: Literal["empty", "loaded_before", "loaded_after"]
    used: bool
    duration_s: float
    mean_power_w: float | None
    timing_w: float | None
    unsettled: str | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    performance_state: float | None
    memory_used_bytes: float | None
    utilization_percent: float | None = None


class Drift(Stored):
    """How joules per token (tokens/s without energy) of a pass's second half compare with its first half's.

    Where requests overlap, its first and last mean lifetime of a request belong to neither half.

    Attributes:
        relative: Second ÷ first − 1; null with the reason.
        standard_error: Of `relative`, in an open loop; null elsewhere. Arrivals by chance put more work into one half
            than into the other, so there `relative` is how power at equal work changed over the pass.
    """

    restart: int
    pass_index: int
    quantity: str
    relative: float | None
    standard_error: float | None = None
    reason: str | None = None


class GpuEvidence(Stored):
    """What shows whether one GPU of the host was the experiment's own: in the worst of the restarts with passes.

    Attributes:
        process_lists: How often its processes were listed.
        runner_lists: How many of these lists show the runner.
        unlisted_ends: Begins and ends of passes without a list within 5 s that shows the runner; of a used GPU.
        foreign_bytes: Most memory in use at any instant of a pass beyond what the lists at its begin and end say the
            runner holds; of a used GPU, null where one of the two is unknown.
        counter_changes: How often its energy counter was seen to change.
        above_idle_w: By how much a GPU that was not used drew more in its worst pass than before the runner started;
            null where one of the two is unknown.
    """

    process_lists: int = 0
    runner_lists: int = 0
    unlisted_ends: int = 0
    foreign_bytes: float | None = None
    counter_changes: int = 0
    above_idle_w: float | None = None


class Procedure(Stored):
    """Everything around and within the passes that tells whether they were undisturbed and in a steady state.

    Attributes:
        gpus: By UUID, of every GPU of the host.
        runners_per_restart: More than 1 where a restart was interrupted between passes and resumed; 0 without a pass.
        token_disagreements: Passes whose token counts contradict each other.
        undrained: Passes that ended before their work had.
    """

    warm_up: list[WarmUpSeen]
    drift: list[Drift]
    gpus: dict[str, GpuEvidence] = Field(default_factory=dict)
    runners_per_restart: int = 0
    token_disagreements: list[str] = Field(default_factory=list)
    undrained: list[str] = Field(default_factory=list)
