"""A runner that has loaded a model and is metered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.host import leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.clock import Clock
    from wattdock.execution.context import RunContext
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Meter
    from wattdock.runner import RunnerClient
    from wattdock.study import events


@dataclass(frozen=True)
class LoadedRunner:
    """What a session yields to the measuring procedure.

    Attributes:
        client: Talks to the runner.
        meter: Is running.
        pids: Returns the runner's processes, as this host numbers them.
        check: Raises where the run is to end; called at least twice a second while the procedure waits.
        model: The model that is loaded.
        gpu_uuids: The runner's GPUs that the meter watches; empty where there is no energy to measure.
    """

    client: RunnerClient
    meter: Meter
    pids: Callable[[], frozenset[int]]
    check: Callable[[], None]
    model: ModelFolder
    gpu_uuids: tuple[str, ...]
    context: RunContext

    def lease_fault(self) -> str | None:
        """Return why others may be measuring all the same; None where they cannot."""
        return leases.fault(self.context.held)

    @property
    def clock(self) -> Clock:
        """The host's clock."""
        return self.context.machine.clock

    @property
    def emit(self) -> events.Emit:
        """Receives events."""
        return self.context.emit
