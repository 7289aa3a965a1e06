"""execution."""

from wattdock.execution.eta import Cost, Work, duration
from wattdock.execution.history import earlier_costs
from wattdock.execution.journal import read_journal
from wattdock.execution.loop import Run, Stored
from wattdock.execution.progress import Progress, progress_for
from wattdock.execution.schedule import load_groups
from wattdock.execution.study_folder import JOURNAL, STUDIES

__all__ = [
    "JOURNAL",
    "STUDIES",
    "Cost",
    "Progress",
    "Run",
    "Stored",
    "Work",
    "duration",
    "earlier_costs",
    "load_groups",
    "progress_for",
    "read_journal",
]
