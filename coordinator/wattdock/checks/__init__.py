"""Whether a measurement can be made (preflight), would be sound (doctor), and was sound (audit).

In: an experiment's configuration and this machine, or an `ExperimentResult`. Out: an `ExecutionPlan`, or `Check`s with
status, figure, limit, source and remedy; the audit adds one verdict. A new audit check is a function decorated with
`check.check` in `audit` (what was measured), `audit_procedure` or `audit_gpus`; one of this machine goes to
`doctor_machine` or `doctor_gpus`.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.checks.audit import CPUS_ALONE, audit
from wattdock.checks.audit_procedure import KEPT_UP
from wattdock.checks.calibrate import calibrate_meters
from wattdock.checks.doctor import examine
from wattdock.checks.preflight import ExecutionPlan, preflight

__all__ = [
    "CPUS_ALONE",
    "KEPT_UP",
    "ExecutionPlan",
    "audit",
    "calibrate_meters",
    "examine",
    "preflight",
]
