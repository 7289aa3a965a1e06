"""A result as a section of a model card.

The hub's `co2_eq_emissions` is not written: the hub defines it for training (huggingface.co/docs/hub/model-cards-co2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.text import significant

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts
    from wattdock.forms.rungs import Ladder


def written(facts: Facts) -> str:
    """Return the section: joules per unit with interval, what they cover, and every rung of the ladder."""
    _, _, energy, environment, _, rungs = facts
    runner = environment.runner
    engine = f"{runner.framework or environment.backend} {runner.framework_version or ''}".rstrip()
    lines = [
        f"## Energy\n\n**{facts.figure}**: {rungs.label}, on {facts.hardware}, by {engine}.",
        f"Weights: {environment.model.weights}.",
        f"Covers: {energy.boundary_statement}",
        f"Audit: {rungs.audit}.",
        "\n".join(rung_table(rungs)),
    ]
    return "\n\n".join(lines)


def rung_table(rungs: Ladder) -> list[str]:
    """Return the ladder as lines of a Markdown table."""
    lines = [f"| for a million {rungs.work} | | how it is known |", "|---|---|---|"]
    for rung in rungs.rungs:
        told = ("unknown",) if rung.value is None else (significant(rung.value), rung.interval, rung.unit)
        figure = " ".join(filter(None, told))
        lines.append(f"| {rung.name} | {figure} | {rung.state}: {rung.found} |")
    return [*lines, ""]
