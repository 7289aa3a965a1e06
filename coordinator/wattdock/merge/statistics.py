"""Spread over passes and restarts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.results.result import Statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.results.result import PassEnergy


def statistics(passes: Sequence[PassEnergy]) -> Statistics | None:
    """Return the spread of joules per output token; of tokens per second where a pass has no energy.

    Per restart: the sum over its passes ÷ the sum of its tokens (or seconds), so that long passes weigh more.
    """
    if not passes:
        return None
    if all(one.total_j is not None and one.output_tokens for one in passes):
        quantity, over, under = "energy_per_output_token_j", [one.total_j or 0.0 for one in passes], _tokens(passes)
    else:
        quantity, over, under = "output_tokens_per_s", _tokens(passes), [one.duration_s for one in passes]
    per_pass = [a / b for a, b in zip(over, under, strict=True)]
    per_restart = [
        sum(a for a, one in zip(over, passes, strict=True) if one.restart == restart)
        / sum(b for b, one in zip(under, passes, strict=True) if one.restart == restart)
        for restart in sorted({one.restart for one in passes})
    ]
    return Statistics(
        quantity=quantity,
        per_pass=per_pass,
        per_restart=per_restart,
        mean=float(np.mean(per_restart)),
        standard_deviation_between_restarts=_spread(per_restart),
        standard_deviation_between_passes=_spread(per_pass),
        reason=f"no interval from {len(per_restart)} restart(s): this version computes none",
    )


def _spread(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _tokens(passes: Sequence[PassEnergy]) -> list[float]:
    return [float(one.output_tokens) for one in passes]
