"""Figures worked out of energy, tokens and time: arithmetic and spread."""

from __future__ import annotations

from pydantic import Field

from wattdock.values import Stored


class Compute(Stored):
    """Arithmetic of the measured passes, summed over the GPUs used; null with the reason where it is unknown.

    Attributes:
        flops_total: The model's useful arithmetic, `model_flops`: from token counts, without padding or recomputation.
        executed_flops: What the engine really did; null, with its reason, where it does not tell.
        active_weights, total_weights: Matrix weights that an output token meets, and all; they differ with experts.
        peak_flops_per_s, peak_memory_bytes_per_s: Of the GPUs used together: dense 16-bit arithmetic, memory.
        peak_flops_share: `flops_per_s` over the peak.
        peak_memory_share_least: What reading weights and caches must have taken of the memory's peak, at least.
    """

    flops_total: float | None = None
    model_flops: float | None = None
    executed_flops: float | None = None
    executed_reason: str | None = None
    method: str | None = None
    active_weights: int | None = None
    total_weights: int | None = None
    flops_per_s: float | None = None
    flops_per_j: float | None = None
    peak_flops_per_s: float | None = None
    peak_memory_bytes_per_s: float | None = None
    peak_source: str | None = None
    peak_reason: str | None = None
    peak_flops_share: float | None = None
    peak_memory_share_least: float | None = None
    reason: str | None = None


class Statistics(Stored):
    """Spread of joules per output token, or of tokens per second where there is no energy.

    Attributes:
        quantity: Which figure is described.
        per_restart: One value per restart: sum over its passes ÷ sum of its tokens.
        standard_deviation_between_passes: Of all passes; includes what differs between their prompts.
        standard_deviation_within_restarts: Of passes around their restart's mean, pooled.
        interval_between_restarts, interval_within_restarts: 95 % intervals of these standard deviations (chi-square).
        ci95: Of the mean, from restart means, R−1 degrees of freedom; null with the reason.
        ci95_relative: How far its upper end lies above the mean, ÷ the mean; the lower one may be cut off at 0.
        outliers: Passes far from the others; shown, never dropped.
        covers: What the interval speaks for.
    """

    quantity: str
    per_pass: list[float]
    per_restart: list[float]
    mean: float
    standard_deviation_between_restarts: float | None
    standard_deviation_between_passes: float | None
    standard_deviation_within_restarts: float | None = None
    interval_between_restarts: tuple[float, float] | None = None
    interval_within_restarts: tuple[float, float] | None = None
    ci95: tuple[float, float] | None = None
    ci95_relative: float | None = None
    outliers: list[str] = Field(default_factory=list)
    covers: str | None = None
    reason: str | None = None
