"""One value per restart of what a result measured: what intervals and tests are made of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattdock.results.energy import PassEnergy
    from wattdock.results.result import ExperimentResult


def restart_values(result: ExperimentResult) -> dict[str, list[float]]:
    """Return each restart's joules per output token and output tokens per second, by quantity.

    A quantity that one of the passes lacks is left out.
    """
    passes = result.energy.passes if result.energy else []
    groups: dict[int, list[PassEnergy]] = {}
    for one in passes:
        groups.setdefault(one.restart, []).append(one)
    every = [groups[number] for number in sorted(groups)]
    found = {}
    if every and all(sum(one.output_tokens for one in group) for group in every):
        if all(one.total_j is not None for one in passes):
            found["energy_per_output_token_j"] = [
                sum(one.total_j or 0.0 for one in group) / sum(one.output_tokens for one in group) for group in every
            ]
        found["output_tokens_per_s"] = [
            sum(one.output_tokens for one in group) / sum(one.duration_s for one in group) for group in every
        ]
    return found
