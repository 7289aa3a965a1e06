"""What tests reach behind the door of `audit`: a name that moves is changed here only."""

from wattdock.audit.alone import cpus_alone, gpus_alone, machine_alone, other_gpus_idle
from wattdock.audit.check import AuditInput
from wattdock.audit.gpus import readings_agree
from wattdock.audit.known import MAX_DRIFT_PER_MIN, uncertainty_small, window_steady
from wattdock.audit.work import arrivals_kept_up_with, client_keeps_up, gpus_fed, work_as_declared

__all__ = [
    "MAX_DRIFT_PER_MIN",
    "AuditInput",
    "arrivals_kept_up_with",
    "client_keeps_up",
    "cpus_alone",
    "gpus_alone",
    "gpus_fed",
    "machine_alone",
    "other_gpus_idle",
    "readings_agree",
    "uncertainty_small",
    "window_steady",
    "work_as_declared",
]
