"""What state the GPUs were in while passes were measured, and phases of the passes."""

from __future__ import annotations

from wattdock.values import Stored


class GpuConditions(Stored):
    """One GPU of the host over all measured passes; null where its driver does not tell.

    Attributes:
        throttled_share: Share of the time that each of NVML's cumulative violation counters grew by, by reason: power
            (the software power cap), thermal, board_limit, reliability. Sampled bits would miss short ones.
        worst_pass_throttled_share: The same of the pass in which it is largest, each reason for itself.
        power_over_counter: Mean instant power in a pass, less a second at each end, ÷ mean power by the counter there
            − 1, of the pass in which it is largest; null where a pass was not sampled throughout. Agreement is
            consistency of two readings of one sensor, not accuracy.
        mean_power_w: By the energy counter.
        clocks_limited_share: Share of a pass's samples in which a setting (application or locked clocks) held clocks
            down, of the pass in which it is largest; null where a pass was not sampled throughout.
        power_limits_w: The lowest and the highest limit that was enforced in the passes; null as above.
    """

    gpu_uuid: str
    used: bool
    throttled_share: dict[str, float] | None
    worst_pass_throttled_share: dict[str, float] | None = None
    mean_sm_clock_mhz: float | None
    mean_memory_clock_mhz: float | None
    max_temperature_c: float | None
    max_memory_temperature_c: float | None
    mean_power_w: float | None
    power_over_counter: float | None
    clocks_limited_share: float | None = None
    power_limits_w: tuple[float, float] | None = None


class Phases(Stored):
    """Prefill and decode energy of the measured passes, where it can be defended; null with the reason.

    Prefill is from a round's submission to the last first token in it, decode from there to its last token; boundaries
    are instants that the runner recorded, without any synchronisation added.

    Attributes:
        prefill_s, decode_s: Time of each over all rounds.
        prefill_timing_j, decode_timing_j: Standard uncertainty from timing.
        decode_tokens_in_prefill: Share of decode's tokens that were emitted while others' prompts were still computed.
        one_token_j_per_prompt_token: What passes of one output token per request cost, which are all prefill.
        one_token_closure: The split's prefill ÷ what those passes make of its prompt tokens − 1.
        closure: (Prefill + decode) ÷ the passes' total − 1: what lies between rounds and at the ends.
    """

    prefill_j: float | None = None
    decode_j: float | None = None
    prefill_timing_j: float | None = None
    decode_timing_j: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_j_per_prompt_token: float | None = None
    decode_j_per_output_token: float | None = None
    decode_tokens_in_prefill: float | None = None
    one_token_j_per_prompt_token: float | None = None
    one_token_closure: float | None = None
    closure: float | None = None
    reason: str | None = None
