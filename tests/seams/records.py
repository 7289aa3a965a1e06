"""What tests reach behind the door of `records`: a name that moves is changed here only."""

from wattdock.records.declared import NOTHING_DECLARED, DeclaredWork, Lines
from wattdock.records.disk import LATER_KEYS, NEWER, RECORD
from wattdock.records.passes import NO_STEPS, Marked, Steps, TokenSeries
from wattdock.records.tables import COUNTER, REQUESTS, STEPS, TIMELINE

__all__ = [
    "COUNTER",
    "LATER_KEYS",
    "NEWER",
    "NOTHING_DECLARED",
    "NO_STEPS",
    "RECORD",
    "REQUESTS",
    "STEPS",
    "TIMELINE",
    "DeclaredWork",
    "Lines",
    "Marked",
    "Steps",
    "TokenSeries",
]
