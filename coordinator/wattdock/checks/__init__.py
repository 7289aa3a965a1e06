"""checks."""

from wattdock.checks.audit import audit
from wattdock.checks.audit_procedure import KEPT_UP
from wattdock.checks.audit_sharing import CPUS_ALONE
from wattdock.checks.doctor.cards import meter_cards
from wattdock.checks.doctor.examine import examine
from wattdock.checks.doctor.finding import Finding
from wattdock.checks.preflight import ExecutionPlan, preflight_each, require_still_free

__all__ = [
    "CPUS_ALONE",
    "KEPT_UP",
    "ExecutionPlan",
    "Finding",
    "audit",
    "examine",
    "meter_cards",
    "preflight_each",
    "require_still_free",
]
