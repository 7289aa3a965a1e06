"""What an agent does for the one head that it serves: plan, lease, meter, launch, load; and the end of all of it.

Orders come one after the other. Knows no gRPC.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from wattdock.clock import Clock
from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, LaunchError, RunnerError, WattdockError
from wattdock.execution import HERE, leased
from wattdock.files import last_lines
from wattdock.host import folders, leases, processes
from wattdock.host.jobs import job_here
from wattdock.inputs import resolve_model
from wattdock.nodes.addresses import engine_variables, here
from wattdock.nodes.messages import PlannedNode, timeline_files
from wattdock.planning import ExecutionPlan, preflight
from wattdock.records import snapshot
from wattdock.runner import RunnerClient
from wattdock.study import events
from wattdock.text import from_json, json_text
from wattdock_proto.v1 import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.inputs import ModelFolder
    from wattdock.launch import LaunchedRunner
    from wattdock.metering import Meter


class NodeSession:
    """One head's session on this node.

    Args:
        say: Receives lines for people.

    Attributes:
        ended: Set once it is to end.
        why_ended: In words.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.ended, self.why_ended = threading.Event(), ""
        self._say = say
        self._is_wanted: Callable[[], bool] = lambda: True
        # Held while an order is done, so that nothing is started while everything is ended.
        self._doing = threading.RLock()
        self._stack, self._of_runner = ExitStack(), ExitStack()
        self._scratch = self._stack.enter_context(folders.scratch_folder())
        self._log = self._scratch / "runner.log"
        self._plans: list[ExecutionPlan] = []
        self._held: leases.HeldLeases = {}
        self._meter: Meter | None = None
        self._runner: LaunchedRunner | None = None
        self._client: RunnerClient | None = None
        self._model: ModelFolder | None = None
        self._plan: ExecutionPlan | None = None
        self._times: processes.CpuTimes | None = None

    def end(self, why: str) -> None:
        """Let the session end; what waits within it stops waiting within a second."""
        self.why_ended = self.why_ended or why
        self.ended.set()

    def close(self) -> None:
        """End everything that was started; return when nothing is left."""
        with self._doing, self._stack:
            with suppress(WattdockError), self._of_runner:
                self._runner = self._client = None
            with suppress(WattdockError):
                if self._meter:
                    self._meter.stop()
            self._meter = None

    def fault(self) -> str | None:
        """Return why the node's runner has ended by itself; None while it runs, or none is wanted."""
        runner = self._runner
        if runner is None or runner.alive():
            return None
        return f"its runner {runner.exit_reason()}: {last_lines(self._log, 1)}"

    def do(self, order: pb.NodeOrder, is_wanted: Callable[[], bool]) -> pb.NodeAnswer:
        """Do an order, and return its answer.

        Args:
            is_wanted: Whether the head still waits for the answer; what is done for it ends where it does not.

        Raises:
            WattdockError: It cannot be done.
        """
        with self._doing:
            self._is_wanted = is_wanted
            self._check()
            kind = order.WhichOneof("order")
            answer: pb.NodeAnswer | None = getattr(self, f"_{kind}")(getattr(order, kind))
            return answer or pb.NodeAnswer()

    def _check(self) -> None:
        if self.ended.is_set():
            raise RunnerError(f"the session is over: {self.why_ended}", cause=Cause.NODE)
        if not self._is_wanted():
            raise RunnerError("the head has given this up")

    def _plan_order(self, order: pb.PlanOrder) -> pb.NodeAnswer:
        configs = [ExperimentConfig.model_validate(from_json(text)) for text in order.experiments_json]
        for plan in preflight(configs, output_dir=self._scratch, home=folders.wattdock_home()):
            if not isinstance(plan, ExecutionPlan):
                raise plan
            self._plans.append(replace(plan, job=job_here()))
        self._held = self._stack.enter_context(leased(self._plans, HERE, self._emit))
        planned = [json_text(_planned(plan).model_dump(mode="json")) for plan in self._plans]
        return pb.NodeAnswer(plans_json=planned)

    def _start_meter(self, experiment: int) -> None:
        if self._meter:
            self._meter.stop()
        self._plan = self._plans[experiment]
        self._meter = self._plan.new_meter()
        self._meter.start()

    def _launch(self, order: pb.LaunchOrder) -> None:
        plan = self._plan = self._plans[order.experiment]
        home, say = folders.wattdock_home(), self._say
        self._model = resolve_model(plan.config.model, home=home, progress=say, config=plan.config)
        stack = self._of_runner
        launcher = stack.enter_context(plan.launcher(say))
        spec = plan.runner(self._log, self._held, model=self._model, alive_lock=self._scratch)
        variables = {**spec.variables, **engine_variables(here(order.head_address))}
        self._runner = stack.enter_context(launcher(replace(spec, variables=variables)))
        self._client = stack.enter_context(RunnerClient(self._runner, self._check))
        self._client.wait_ready(plan.config.timeouts.launch_s)
        self._client.check_clock()

    def _load(self, order: pb.LoadOrder) -> pb.NodeAnswer:
        if not (self._client and self._model and self._runner and self._plan):
            raise LaunchError("there is no runner to load a model")
        if changes := self._model.changes_since(dict(order.model_files)):
            raise LaunchError(f"another model than the head's: {changes}", "copy it", cause=Cause.MODEL_CHANGED)
        request = order.request
        request.model_path = str(self._runner.model_path(self._model.path) / self._model.gguf)
        request.gpu_uuids.extend(gpu.uuid for gpu in self._plan.gpus)
        environment, _ = self._client.load(request, timeout_s=order.timeout_s, progress=self._say)
        return pb.NodeAnswer(environment_json=json_text(environment.model_dump(mode="json")))

    def _stop_runner_s(self, grace_s: float) -> None:
        # What is not there any more is no fault.
        runner, self._runner, self._client = self._runner, None, None
        if runner:
            runner.stop(grace_s)
        self._of_runner.close()

    def _edge(self, _: pb.Nothing) -> pb.NodeAnswer:
        if self._meter:
            self._meter.note_edge()
        pids = self._runner.pids() if self._runner else frozenset[int]()
        before, self._times = self._times, processes.times_around(pids)
        share = self._times.others_share_since(before) if self._times and before else None
        has_node = bool(self._plan and self._plan.job and self._plan.job.alone_with)
        fault = leases.fault(self._held, has_node=has_node)
        return pb.NodeAnswer(edge=pb.EdgeSeen(lease_fault=fault, cpu_others_share=share, pids=pids))

    def _read_meter(self, order: pb.ReadOrder) -> pb.NodeAnswer:
        if not self._meter:
            raise RunnerError("there is no meter to read")
        after_ns = order.after_ns if order.HasField("after_ns") else None
        timeline = self._meter.stop(after_ns) if order.stop else self._meter.peek(after_ns)
        if order.stop:
            self._meter = None
        return pb.NodeAnswer(timeline_files=timeline_files(timeline, self._scratch))

    def _emit(self, event: events.Event) -> None:
        if isinstance(event, events.Note):
            self._say(event.text)


def _planned(plan: ExecutionPlan) -> PlannedNode:
    """Return the node's GPUs, and what a result says of the node, but for its name."""
    gpus = list(plan.inventory.gpus)
    facts = snapshot.NodeFacts(
        name="",
        host_name=socket.gethostname(),
        boot_id=Clock().identity().boot_id,
        gpu_uuids=[gpu.uuid for gpu in gpus],
        driver_version=gpus[0].driver_version if gpus else None,
        **asdict(plan.machine),
        job=plan.job,
        launcher=plan.launch.name,
        launcher_reason=plan.launch.reason,
        meter=plan.meter.name,
        variables=dict(plan.variables),
    )
    return PlannedNode(gpus=list(plan.gpus), host_gpus=gpus, facts=facts)
