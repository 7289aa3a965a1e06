"""Measure a whole study: plan, sessions (launch, load, idle, warm-up, passes), records, results.

In: a `Study` and a folder for results. Out: a `Measurement`, which holds results as they are stored, and typed events
meanwhile; a journal and records that survive any end, from which a study is resumed. Read `measure.measure` first.
Must not know: terminals, reports, how energy is computed.
"""

from wattdock.execution.context import HERE, MachineAccess, Measurement, NodeTask, RunOptions, leased
from wattdock.execution.interrupts import Interrupts
from wattdock.execution.measure import measure

__all__ = ["HERE", "Interrupts", "MachineAccess", "Measurement", "NodeTask", "RunOptions", "leased", "measure"]
