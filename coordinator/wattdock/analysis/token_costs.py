"""What a prompt token, a decoded token, a step and a token of context cost in the measured passes. Pure.

Prefill and decode that share the engine's steps cannot be cut apart in time. Over thousands of bins their mix varies,
and that tells what each costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.gpus import gpu_results
from wattdock.analysis.work_costs import KINDS, NoCostsError, Work, costs, ends_text, is_wide, metered_work
from wattdock.values import Stored, known_max

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord

# Longest usual bin: in longer ones prefill and decode are always mixed.
MAX_BIN_S = 0.05
# Largest misfit of total energy: steps whose instants are wrong leave energy that no work explains.
MAX_CLOSURE = 0.02
# From this share of the power limit on, as a mean, clocks were capped throughout: power scatters by a few percent.
NEAR_LIMIT = 0.97

FIGURES = ("idle_w", *(f"joules_per_{name}" for name in ("prompt_token", "decoded_token", "step", "context_token")))


class Cost(Stored):
    """Joules per unit of work, or watts, with the ends of the 95 % interval; null with the reason."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """Return "0.0149 [0.0148, 0.0151]", or why there is no figure."""
        return self.reason or f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


class TokenCosts(Stored):
    """What the work of the measured passes cost, over the GPUs used; null with the reason.

    Attributes:
        idle_w: While no step ran.
        joules_per_step: Energy of a step beside its tokens, such as reading the weights.
        joules_per_context_token: Per position whose keys and values attention read.
        closure: Joules of the fit ÷ joules measured, over all bins, − 1.
        bins: Bins of energy, over all passes and GPUs.
        lag_s: By how much the course of energy trailed the steps, as fitted.
        capped_share: Share of the time in which the software power cap held clocks down, of the GPU used with the
            largest; 1 where its mean power was at the limit. Meanwhile a token costs time at a fixed power, so that the
            figures are averages over the run, not what one more token costs. Null where it is unknown of a GPU.
    """

    idle_w: Cost | None = None
    joules_per_prompt_token: Cost | None = None
    joules_per_decoded_token: Cost | None = None
    joules_per_step: Cost | None = None
    joules_per_context_token: Cost | None = None
    closure: float | None = None
    bins: int | None = None
    lag_s: float | None = None
    capped_share: float | None = None
    reason: str | None = None


def token_costs(measured: Measured) -> TokenCosts:
    """Return what the work of all passes cost, or why that cannot be told."""
    if not measured.used or not measured.passes:
        return TokenCosts(reason="no pass was measured" if measured.used else "no GPU was used")
    try:
        metered = [metered_work(measured, *of_pass, _steps_work(of_pass[1])) for of_pass in measured.passes]
        if (bin_s := max(part.bin_s for part in metered)) > MAX_BIN_S:
            raise NoCostsError(f"energy is known every {bin_s * 1e3:.0f} ms (limit {MAX_BIN_S * 1e3:.0f} ms)")
        fitted = costs(metered, KINDS, of_steps=True)
    except NoCostsError as error:
        return TokenCosts(reason=str(error))
    if abs(fitted.closure) > MAX_CLOSURE:
        missed = f"the fit misses the energy by {fitted.closure:+.1%} (limit {MAX_CLOSURE:.0%})"
        reason = f"{missed}; are the steps' instants right?"
        return TokenCosts(closure=fitted.closure, bins=fitted.bins, lag_s=fitted.lag_s, reason=reason)
    figures = {}
    for kind, name in enumerate(FIGURES):
        ends = fitted.values[kind], fitted.low[kind], fitted.high[kind]
        value, low, high = (None if np.isnan(end) else float(end) for end in ends)
        reason = fitted.reasons.get(kind, "")
        if not reason and is_wide(np.array(ends)):
            reason = f"it varied too little beside the others: {ends_text(fitted.low[kind], fitted.high[kind])}"
        figures[name] = Cost(value=None if reason else value, low=low, high=high, reason=reason or None)
    return TokenCosts(
        **figures,
        closure=fitted.closure,
        bins=fitted.bins,
        lag_s=fitted.lag_s,
        capped_share=_capped_share(measured),
    )


def _steps_work(run_pass: PassRecord) -> Work:
    """Return the tokens, steps and context of a pass's steps; 0 where the engine does not report them."""
    steps, count = run_pass.steps, len(run_pass.steps.start_ns)
    if not count:
        raise NoCostsError("the engine does not report its steps")
    if run_pass.drafted_tokens is not None:
        raise NoCostsError("steps compute drafted tokens, too, which are no output")
    if run_pass.has_replicas:
        raise NoCostsError("the steps of several engines overlap")
    reported = (steps.prompt_tokens, steps.decoded_tokens, np.ones(count), steps.context_tokens)
    amounts = [column if len(column) else np.zeros(count) for column in reported]
    return Work(steps.start_ns, steps.end_ns, np.column_stack(amounts).astype(float))


def _capped_share(measured: Measured) -> float | None:
    shares: list[float | None] = []
    for gpu in gpu_results(measured).values():
        if gpu.used:
            limit_w = gpu.power_limits_w[0] if gpu.power_limits_w else float("inf")
            at_limit = (gpu.mean_power_w or 0.0) >= NEAR_LIMIT * limit_w
            shares.append(1.0 if at_limit else (gpu.throttled_share or {}).get("power"))
    return known_max(shares)
