"""Checks on a finished experiment, each with the figure behind it, and one verdict. Pure.

Unknown never passes. A new check is a function in one of the `audit_*` modules, decorated with `check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit
from wattdock.checks import audit_gpus, audit_procedure, audit_record
from wattdock.checks.check import CHECKS, Subject
from wattdock.config import ExperimentConfig

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult

MODULES = (audit_record, audit_procedure, audit_gpus)


def audit(result: ExperimentResult) -> Audit:
    """Return every check on a result and the verdict.

    Raises:
        ValueError: The result lacks environment, energy or procedure: nothing was measured.
    """
    if result.environment is None or result.energy is None or result.procedure is None:
        raise ValueError("a result without environment, energy and procedure cannot be audited")
    config = ExperimentConfig.model_validate(result.config)
    subject = Subject(result, config, result.environment, result.energy, result.procedure)
    checks = [found for module in MODULES for make in CHECKS[module.__name__] if (found := make(subject))]
    reasons = [f"{check.name}: {check.figure}" for check in checks if check.status in ("fail", "unknown")]
    return Audit(publishable=not reasons, reasons=reasons, checks=checks)
