"""Parts of one result in words, for the page and for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import ExperimentResult, statistics
from wattdock.store import COLUMNS
from wattdock.text import singular

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "STATUSES",
    "boundaries",
    "cut_text",
    "lengths_text",
    "no_joules_text",
    "power_profile_text",
    "quantity_text",
]

# Statuses of checks, the worst first.
STATUSES = ("fail", "unknown", "warn", "info", "pass")
BOUNDARIES = {"gpu_boards": "GPU boards", "module": "GPU and CPU modules"}


def quantity_text(quantity: str, unit: str) -> str:
    """Return the heading of J per unit, or of units per second: "J/output token", "samples/s"."""
    headings = {statistics.ENERGY: f"J/{singular(unit)}", statistics.SPEED: f"{unit}/s"}
    return headings.get(quantity) or COLUMNS[quantity].heading


def lengths_text(result: ExperimentResult) -> str:
    """Return the declared lengths of requests, as "512 in, 128 out"; of a file and of conversations means."""
    prompts, (into, out) = result.config.prompts, result.request_tokens
    told = f"{into:,.0f} in, " if into else ""
    if prompts.file:
        return told + (f"{out:,.0f} out" if out else "unknown out")
    if prompts.source == "synthetic" and not prompts.repeats_tokens:
        told = f"{prompts.input_tokens} in, "
    return f"{told}{result.config.workload.max_output_tokens} out"


def boundaries(results: Iterable[ExperimentResult]) -> dict[str, str]:
    """Return what results' joules cover: its name, and the statement of it; GPU boards where there are no joules."""
    measured = (result.energy for result in results if result.energy and result.energy.total_j is not None)
    covered = [*dict.fromkeys(energy.energy_boundary for energy in measured)] or ["gpu_boards"]
    return {BOUNDARIES[boundary]: ExperimentResult.BOUNDARY_STATEMENTS[boundary] for boundary in covered}


def power_profile_text(result: ExperimentResult) -> str:
    """Return the workload power profiles in force, as "power profile: max-q"; empty without one, the default."""
    names = result.environment.power_profiles if result.environment else ()
    return f"power profile: {', '.join(names)}" if names else ""


def no_joules_text(result: ExperimentResult) -> str:
    """Return why a result has no joules per unit of its work; empty where nobody knows."""
    energy, work = result.energy, result.work
    windows = energy.windows.of_headline() if energy and energy.windows else ()
    # Work that is unknown has no joules, whatever was metered.
    reasons = (work.reason if work else None, *(figure.reason for figure in windows), energy.reason if energy else None)
    return next(filter(None, reasons), f"the command counted no {work.unit}" if work and not work.count else "")


def cut_text(result: ExperimentResult) -> str:
    """Return how many answers to questions were cut, and what that makes of the score; empty where none was."""
    return result.quality.overall.cut_text if result.quality and result.quality.overall else ""
