"""What was done around the measured passes, and what was seen there: warm-up, idle, drift."""

from __future__ import annotations

from typing import Literal

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


class Procedure(Stored):
    """Everything around and within the passes that tells whether they were in a steady state."""

    warm_up: list[WarmUpSeen]
    drift: list[Drift]
