"""What a run is asked for, what its parts share, and where it meets the machine.

A test puts simulations in the machine's place.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S, Clock
from wattdock.errors import Cause, PreflightError
from wattdock.host import GpuInventory, leases
from wattdock.planning import ExecutionPlan, plan_study
from wattdock.runner import RunnerClient
from wattdock.study import events, study_to_resume
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution.interrupts import Interrupts
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter
    from wattdock.store import StoredResult
    from wattdock.study import EarlierStudy, StudyFolder

# Longest wait for a free GPU, and the time between checks: a runner that has just ended may still be on its GPU.
TEARDOWN_S, TEARDOWN_POLL_S = 5.0, 0.5


@dataclass
class Measurement:
    """What a run has stored so far: `study_id` is None before its folder was opened; `results` are in its order."""

    study_id: str | None = None
    results: list[StoredResult] = field(default_factory=list)


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked for besides its study.

    Attributes:
        output_dir: Where results go, and the study's journal below it.
        home: WATTDOCK_HOME.
        resume: Continue this study, or the latest equal study that was begun before, if there is one.
        retry_failed: When resuming, measure failed experiments again.
        lock: Lock file of images; None is the one in use.
        task: The task of a larger study on a cluster that the study is; instead of `resume`.
    """

    output_dir: Path
    home: Path
    resume: bool | EarlierStudy = False
    retry_failed: bool = False
    lock: Path | None = None
    task: NodeTask | None = None

    def earlier(self, study: Study) -> EarlierStudy | None:
        """Return the study that is continued.

        Raises:
            ConfigError: It has changed, or is not the caller's.
        """
        if self.task:
            return None
        return study_to_resume(study, self.output_dir, resume=self.resume, retry_failed=self.retry_failed)

    def planned(
        self, plan_study: Callable[..., list[ExecutionPlan]], study: Study, say: Callable[[str], None]
    ) -> list[ExecutionPlan]:
        """Return how each experiment is run, see `planning.plan_study`, and say what was decided.

        Raises:
            PreflightError: Of other nodes' agents none was asked, or this node of a task gives fewer GPUs.
        """
        plans = plan_study(study, output_dir=self.output_dir, home=self.home, say=say, lock=self.lock)
        if unreached := [plan.config.label for plan in plans if plan.config.nodes and not plan.nodes]:
            raise PreflightError(f"{unreached[0]}: nodes are reached by `wattdock run` on this machine", "use that")
        asked = self.task.gpus if self.task else 0
        if few := [plan for plan in plans if len(plan.gpus) < asked]:
            what = f"{few[0].config.label} needs {pluralize(asked, 'GPU')}, and this node gives it"
            raise PreflightError(f"{what} {pluralize(len(few[0].gpus), 'GPU')}", cause=Cause.NO_GPU)
        for line in (*study.notes, *dict.fromkeys(line for plan in plans for line in (plan.decisions, *plan.warnings))):
            say(line)
        return plans


@dataclass(frozen=True)
class NodeTask:
    """A task of a study on a cluster, measured on this node with the `gpus` that the scheduler was asked for."""

    path: Path
    gpus: int


@dataclass(frozen=True)
class MachineAccess:
    """How a run reaches the machine; in a test, in virtual time.

    Attributes:
        plan: Returns how each experiment of a study is run, see `planning.plan_study`.
        new_meter: Takes a plan; returns a meter that has not been started.
        launcher: Returns a context that yields the launcher; an environment that the runner needs is made first.
        connect: Takes a launched runner, a check that is called at least twice a second while the runner is waited
            for, and the clock; returns the client.
        inventory: Returns the GPUs in their present state.
        elsewhere: Of other nodes that hold a part of the model, returns why others may be measuring there, None where
            they cannot, and the share of each node's CPUs that others used in the last pass.
    """

    clock: Clock = field(default_factory=Clock)
    plan: Callable[..., list[ExecutionPlan]] = plan_study
    new_meter: Callable[[ExecutionPlan], Meter] = ExecutionPlan.new_meter
    launcher: Callable[[ExecutionPlan, Callable[[str], None]], AbstractContextManager[Launcher]] = (
        ExecutionPlan.launcher
    )
    connect: Callable[[LaunchedRunner, Callable[[], None], Clock], RunnerClient] = RunnerClient
    inventory: Callable[[], GpuInventory] = GpuInventory.here
    elsewhere: Callable[[], tuple[str | None, Sequence[float | None]]] = lambda: (None, ())


HERE = MachineAccess()


@contextmanager
def leased(plans: Sequence[ExecutionPlan], machine: MachineAccess, emit: events.Emit) -> Iterator[leases.HeldLeases]:
    """Hold the leases that all experiments of a run need; yield them once no other program uses the GPUs.

    Raises:
        PreflightError: Another user holds a lease, or a planned GPU is in use; names by whom.
    """
    needs_machine = any(plan.config.exclusive == "machine" for plan in plans)
    request = leases.LeaseRequest(
        names=tuple(dict.fromkeys(name for plan in plans for name in plan.lease_names)),
        exclusive="machine" if needs_machine else "gpus",
        wait_s=max(plan.config.wait_s for plan in plans),
        has_node=any(plan.job and plan.job.alone_with for plan in plans),
    )
    planned, clock = {gpu.uuid for plan in plans for gpu in plan.gpus}, machine.clock
    servers = [plan.server for plan in plans if plan.server]
    with leases.hold(request, events.notes(emit)) as held:
        deadline_ns = clock.now_ns() + round(TEARDOWN_S * NS_PER_S)
        while planned:
            inventory = machine.inventory().without({pid for server in servers for pid in server.pids()})
            gpus = (gpu for gpu in inventory.gpus if gpu.uuid in planned)
            occupied = [f"GPU {gpu.index}: {why}" for gpu in gpus if (why := inventory.why_occupied(gpu))]
            if not occupied:
                break
            if clock.now_ns() > deadline_ns:
                raise PreflightError("; ".join(occupied), "choose others with gpus", cause=Cause.GPU_BUSY)
            clock.sleep(TEARDOWN_POLL_S)
        yield held


@dataclass(frozen=True)
class RunContext:
    """What all sessions of a run share.

    Attributes:
        home: WATTDOCK_HOME.
        scratch: A folder that is removed after the run.
        held: Leases; a runner's keeper holds them, too, until nothing of the runner is left.
        remaining: Returns how many passes the study has left, of how many, and how long they take, in words.
    """

    machine: MachineAccess
    folder: StudyFolder
    home: Path
    scratch: Path
    held: leases.HeldLeases
    emit: events.Emit
    interrupts: Interrupts
    remaining: Callable[[], tuple[int, int, str]]
