"""What tests reach behind the door of `fleet`: a name that moves is changed here only."""

from wattdock.fleet.fleet import prepare
from wattdock.fleet.slurm import QueuedTask
from wattdock.fleet.states import states_of
from wattdock.fleet.task import Ending

__all__ = ["Ending", "QueuedTask", "prepare", "states_of"]
