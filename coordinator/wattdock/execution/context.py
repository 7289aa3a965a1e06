"""What all parts of a run share, and where it meets the machine, in whose place a test puts simulations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.clock import Clock, HostClock
from wattdock.host import GpuInventory
from wattdock.planning import ExecutionPlan, plan_study
from wattdock.runner import RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.analysis import steadiness
    from wattdock.execution.interrupts import Interrupts
    from wattdock.host import leases
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter
    from wattdock.study import StudyFolder, events


@dataclass(frozen=True)
class MachineAccess:
    """How a run reaches the machine; in a test, in virtual time.

    Attributes:
        plan: Returns how each experiment of a study is run, see `planning.plan_study`.
        new_meter: Takes a plan and WATTDOCK_HOME; returns a meter that has not been started.
        launcher: Returns a context that yields the launcher; an environment that the runner needs is made first.
        connect: Takes a launched runner, a check that is called at least twice a second while the runner is waited
            for, and the clock; returns the client.
        inventory: Returns the GPUs in their present state.
    """

    clock: Clock = field(default_factory=HostClock)
    plan: Callable[..., list[ExecutionPlan]] = plan_study
    new_meter: Callable[[ExecutionPlan, Path], Meter] = ExecutionPlan.new_meter
    launcher: Callable[[ExecutionPlan, Callable[[str], None]], AbstractContextManager[Launcher]] = (
        ExecutionPlan.launcher
    )
    connect: Callable[[LaunchedRunner, Callable[[], None], Clock], RunnerClient] = RunnerClient
    inventory: Callable[[], GpuInventory] = GpuInventory.here


HERE = MachineAccess()


@dataclass(frozen=True)
class RunContext:
    """What all sessions of a run share.

    Attributes:
        home: WATTDOCK_HOME.
        scratch: A folder that is removed after the run.
        held: Leases; a runner's keeper holds them, too, until nothing of the runner is left.
        remaining: Returns how many passes the study has left, of how many, and how long they take, in words.
        initial_idle: State of each GPU, by UUID, when it was idle before the run's first runner.
    """

    machine: MachineAccess
    folder: StudyFolder
    home: Path
    scratch: Path
    held: leases.HeldLeases
    emit: events.Emit
    interrupts: Interrupts
    remaining: Callable[[], tuple[int, int, str]]
    initial_idle: dict[str, steadiness.IdleState] = field(default_factory=dict)
