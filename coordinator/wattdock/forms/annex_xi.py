"""A result as a statement on energy for the technical documentation of a general-purpose AI model.

Source: Regulation (EU) 2024/1689, annex XI, section 1, point 2(e): "known or estimated energy consumption of the
model". The regulation sets no form; the statement has method, boundary and interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.forms.model_card import rung_table
from wattdock.forms.rungs import J_PER_KWH
from wattdock.version import __version__

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts


def written(facts: Facts) -> str:
    """Return the statement: kWh of the measured passes, per unit of work with interval, method and boundary."""
    result, budget, energy, environment, _, rungs = facts
    joules, seconds, where = facts.counted
    work = "a command in a benchmark" if result.config.command else "inference in a benchmark, not the model's training"
    unknown = "; ".join(f"{entry.name} ({entry.found})" for entry in budget.not_included)
    told = {
        "Model": f"{environment.model.name}, revision {environment.model.revision or 'unknown'}; {rungs.label}",
        "Work": work,
        "Measured": f"{joules / J_PER_KWH:.6g} kWh in {seconds:.1f} s from {result.started_utc} on, of {where}",
        "Per unit of work": facts.figure,
        "Hardware": facts.hardware,
        "Method": f"{energy.source} of each GPU's own sensor by {environment.meter}, wattdock {__version__}",
        "Restarts": str(len(budget.per_restart)),
        "Boundary": energy.boundary_statement,
        "Not in the interval": unknown,
        "Audit": rungs.audit,
    }
    title = "# Energy consumption (Regulation (EU) 2024/1689, annex XI, section 1, point 2(e))"
    return "\n".join([title, "", *(f"- {name}: {text}" for name, text in told.items()), "", *rung_table(rungs)])
