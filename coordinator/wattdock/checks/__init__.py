"""Whether a measurement can be made (preflight), would be sound (doctor), and was sound (audit).

In: an experiment's configuration and this machine, or an `ExperimentResult`. Out: an `ExecutionPlan`, or `Check`s with
status, figure, limit, source and remedy; the audit adds one verdict. A check is a function in a `check.Checklist`: of
the audit in `audit` (what was measured), `audit_procedure` or `audit_gpus`; of this machine in `doctor_machine` or
`doctor_gpus`.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.checks.audit import audit, audited
from wattdock.checks.calibrate import calibrate_meters
from wattdock.checks.doctor import examine
from wattdock.checks.preflight import ExecutionPlan, preflight, require_inputs
from wattdock.checks.publication import left_to_do

__all__ = [
    "ExecutionPlan",
    "audit",
    "audited",
    "calibrate_meters",
    "examine",
    "left_to_do",
    "preflight",
    "require_inputs",
]
