"""One value per restart of what a result measured: what intervals and tests are made of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.results.energy import PassEnergy
    from wattdock.results.result import ExperimentResult


def restart_values(result: ExperimentResult) -> dict[str, list[float]]:
    """Return each restart's joules per output token, output tokens per second and mean watts, by quantity.

    Each is a sum over a sum, so that long passes weigh more. A quantity that one of the passes lacks is left out.
    """
    groups: dict[int, list[PassEnergy]] = {}
    for one in result.energy.passes if result.energy else ():
        groups.setdefault(one.restart, []).append(one)
    every = [groups[number] for number in sorted(groups)]
    tokens = [sum(one.output_tokens for one in group) for group in every]
    if not every or not all(tokens):
        return {}
    seconds = [sum(one.duration_s for one in group) for group in every]
    found = {"output_tokens_per_s": _ratios(tokens, seconds)}
    if all(one.total_j is not None for group in every for one in group):
        joules = [sum(one.total_j or 0.0 for one in group) for group in every]
        found |= {"energy_per_output_token_j": _ratios(joules, tokens), "mean_power_w": _ratios(joules, seconds)}
    return found


def _ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(over, under, strict=True)]
