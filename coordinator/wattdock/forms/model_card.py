"""A result as a section of a model card, with the front matter that the Hugging Face hub reads.

Source: huggingface.co/docs/hub/model-cards-co2: `co2_eq_emissions` has grams, source, training_type,
geographical_location and hardware_used; only grams of use that a named factor gives are written there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts
    from wattdock.forms.rungs import Ladder, Rung


def written(facts: Facts) -> str:
    """Return the section: joules per unit with interval, what they cover, and every rung of the ladder."""
    result, _, energy, environment, _, rungs = facts
    carbon = next((rung for rung in rungs.rungs if rung.name == "carbon, use" and rung.value is not None), None)
    runner = environment.runner
    front = [] if carbon is None or result.config.command else _front_matter(carbon, rungs.work, facts.hardware)
    engine = f"{runner.framework or environment.backend} {runner.framework_version or ''}".rstrip()
    lines = [
        "## Energy",
        "",
        f"**{facts.figure}**: {rungs.label}, on {facts.hardware}, by {engine}.",
        "",
        f"Covers: {energy.boundary_statement}",
        "",
        f"Audit: {facts.summary}.",
        "",
    ]
    return "\n".join([*front, *lines, *rung_table(rungs)])


def rung_table(rungs: Ladder) -> list[str]:
    """Return the ladder as lines of a Markdown table."""
    lines = [f"| for a million {rungs.work} | | how it is known |", "|---|---|---|"]
    for rung in rungs.rungs:
        figure = "unknown" if rung.value is None else f"{rung.value:.4g}{_interval(rung)} {rung.unit}".rstrip()
        lines.append(f"| {rung.name} | {figure} | {rung.state}: {rung.found} |")
    return [*lines, ""]


def _interval(rung: Rung) -> str:
    return f" {rung.interval:.4g}" if rung.interval else ""


def _front_matter(carbon: Rung, work: str, hardware: str) -> list[str]:
    return [
        "---",
        "co2_eq_emissions:",
        f"  emissions: {carbon.value!r}",
        f'  source: "wattdock, for a million {work}: {carbon.found}"',
        f'  hardware_used: "{hardware}"',
        "---",
        "",
    ]
