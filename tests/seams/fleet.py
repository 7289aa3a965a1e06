"""What tests reach behind the door of `fleet`: a name that moves is changed here only."""

import re

from wattdock.fleet import Job
from wattdock.fleet.fleet import prepare
from wattdock.fleet.slurm import QueuedTask
from wattdock.fleet.states import states_of
from wattdock.fleet.task import Ending

__all__ = ["Ending", "QueuedTask", "options_of", "prepare", "states_of"]


def options_of(job: Job) -> list[str]:
    """Return the options of sbatch in a job's script."""
    return re.findall(r"^#SBATCH (.*)$", job.script, re.MULTILINE)
