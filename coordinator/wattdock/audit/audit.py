"""The audit: checks on a finished experiment, each with the figure behind it, and one verdict. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit, analyse
from wattdock.audit import alone, gpus, known, repeatable, work
from wattdock.audit.check import AuditInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.config import ExperimentConfig
    from wattdock.records import RestartRecord

CHECKLISTS = (work.CHECKS, gpus.CHECKS, alone.CHECKS, known.CHECKS, repeatable.CHECKS)


def audit(result: ExperimentResult, restarts: Sequence[RestartRecord] = ()) -> Audit:
    """Return every check on a result of `analyse` of these restarts, and the verdict."""
    inputs = AuditInput(result, restarts)
    return Audit.of(
        [check for checklist in CHECKLISTS for check in checklist.run(inputs)], result.budget, result.config.unit
    )


def audited(config: ExperimentConfig, restarts: Sequence[RestartRecord]) -> ExperimentResult:
    """Return an experiment's result with its audit.

    Raises:
        ValueError: No restart recorded its environment.
    """
    result = analyse(config, restarts)
    return result.model_copy(update={"audit": audit(result, restarts)})
