"""What tests reach behind the door of `execution`: a name that moves is changed here only."""

from wattdock.execution.context import MachineAccess
from wattdock.execution.environment import environment
from wattdock.execution.failures import ADVICE, WORDS, cause_of
from wattdock.execution.loaded import SETTLE_S, SILENCE_S, LoadedRunner, told_while_silent
from wattdock.execution.procedure import measured_passes
from wattdock.execution.recording import Recording
from wattdock.execution.run import CircuitBreaker, schedule

__all__ = [
    "ADVICE",
    "SETTLE_S",
    "SILENCE_S",
    "WORDS",
    "CircuitBreaker",
    "LoadedRunner",
    "MachineAccess",
    "Recording",
    "cause_of",
    "environment",
    "measured_passes",
    "schedule",
    "told_while_silent",
]
