"""One value per restart of what a result measured: what intervals and tests are made of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.energy_schema import PassEnergy
    from wattdock.analysis.result_schema import ExperimentResult

ENERGY, SPEED, POWER = "energy_per_output_token_j", "output_tokens_per_s", "mean_power_w"
# Quantity → what of a pass is divided by what.
RATIOS = {
    ENERGY: ("total_j", "output_tokens"),
    SPEED: ("output_tokens", "duration_s"),
    POWER: ("total_j", "duration_s"),
}


def restart_values(result: ExperimentResult) -> dict[str, list[float]]:
    """Return each restart's joules per output token, output tokens per second and mean watts, by quantity.

    A quantity that one of the passes lacks is left out.
    """
    passes = result.energy.passes if result.energy else []
    every = by_restart(passes)
    if not every or not all(sum(one.output_tokens for one in group) for group in every):
        return {}
    known = RATIOS if all(one.total_j is not None for one in passes) else [SPEED]
    return {quantity: [ratio(group, quantity) for group in every] for quantity in known}


def by_restart(passes: Sequence[PassEnergy]) -> list[list[PassEnergy]]:
    """Return each restart's passes, restarts in order."""
    groups: dict[int, list[PassEnergy]] = {}
    for one in passes:
        groups.setdefault(one.restart, []).append(one)
    return [groups[number] for number in sorted(groups)]


def ratio(passes: Sequence[PassEnergy], quantity: str) -> float:
    """Return a quantity of some passes together: a sum ÷ a sum, so that long passes weigh more.

    Args:
        quantity: One of `RATIOS`; the passes know both of its parts.
    """
    over, under = (sum(getattr(one, part) for one in passes) for part in RATIOS[quantity])
    return float(over / under)
