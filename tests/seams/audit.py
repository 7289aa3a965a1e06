"""What tests reach behind the door of `audit`: a name that moves is changed here only."""

from wattdock.audit.audit import cpus_alone, gpus_alone, machine_alone, node_alone, other_gpus_idle
from wattdock.audit.check import AuditInput
from wattdock.audit.gpus import meters_agree
from wattdock.audit.procedure import arrivals_kept_up_with, client_keeps_up, gpus_fed, warm_up_converged

__all__ = [
    "AuditInput",
    "arrivals_kept_up_with",
    "client_keeps_up",
    "cpus_alone",
    "gpus_alone",
    "gpus_fed",
    "machine_alone",
    "meters_agree",
    "node_alone",
    "other_gpus_idle",
    "warm_up_converged",
]
