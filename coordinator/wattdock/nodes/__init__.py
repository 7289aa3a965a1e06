"""A model over several nodes: an agent on each other node leases, meters and runs that node's part for the head.

In: a pairing file, agents' addresses, a study. Out: a `MachineAccess` with which `measure` sees one machine of several
nodes: their GPUs on one timeline, by the head's clock; and an `Agent` that serves a head and leaves nothing running.
Must not know: how a pass is measured, what results say.
"""

from wattdock.nodes.agent import Agent
from wattdock.nodes.head import machine_of
from wattdock.nodes.pairing import Pairing

__all__ = ["Agent", "Pairing", "machine_of"]
