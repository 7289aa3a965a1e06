"""The head: a `MachineAccess` that measures on this machine and, through agents, on the other nodes of a model.

An experiment without `nodes` is measured as ever. Knows no gRPC.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, LaunchError, PreflightError, WattdockError
from wattdock.execution import HERE, MachineAccess
from wattdock.files import expanded
from wattdock.host import Machine, folders
from wattdock.inputs import resolve_model
from wattdock.launch import LaunchedRunner
from wattdock.metering.node_clock import LEAST_EXCHANGES, NodeClock, on_this_clock, pid_here
from wattdock.nodes.addresses import engine_variables, free_port, here
from wattdock.nodes.link import EXCHANGE_S, NodeLink
from wattdock.nodes.messages import PlannedNode, timeline_from
from wattdock.nodes.pairing import Pairing
from wattdock.nodes.slurm_step import agents_of_job
from wattdock.records import RunnerEnvironment
from wattdock.runner import NodePlace, RunnerClient, load_request
from wattdock.text import from_json, json_text, pluralize
from wattdock_proto.v1 import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock.clock import Clock
    from wattdock.config import Study
    from wattdock.config.nodes import NodesSpec
    from wattdock.host import Gpu
    from wattdock.launch import Launcher, LaunchSpec
    from wattdock.metering import GpuTimeline, Meter, Timeline
    from wattdock.planning import ExecutionPlan
    from wattdock.records import snapshot

# How many exchanges tell, before anything is started, whether a link is good enough.
FIRST_EXCHANGES = 4 * LEAST_EXCHANGES
FIRST_WAIT_S = FIRST_EXCHANGES * EXCHANGE_S * 5
# Power limit of a GPU that does not tell its own, W: of the largest boards.
MOST_POWER_W = 1_200.0
# How long an agent may take to end a runner beyond its grace.
STOP_WAIT_S = 60.0


@contextmanager
def machine_of(study: Study, base: MachineAccess = HERE) -> Iterator[MachineAccess]:
    """Yield how a study that names nodes reaches them; agents are connected to as it is planned, and let go at the end.

    Raises:
        ConfigError: Its experiments name different nodes.
    """
    specs = {json_text(spec.model_dump(mode="json")): spec for config in study.experiments if (spec := config.nodes)}
    if len(specs) > 1:
        raise ConfigError("nodes: the experiments of a study share one set of nodes", "split the study")
    with ExitStack() as stack:
        head = _Head(next(iter(specs.values())), base, stack)
        reach: dict[str, Any] = {"plan": head.plan, "new_meter": head.new_meter, "elsewhere": head.elsewhere}
        yield replace(base, launcher=head.launcher, connect=head.connect, **reach)


@dataclass
class NodePart:
    """One other node's part of one experiment: an `OtherNode`.

    Attributes:
        number: Of the node, from 1: its rank.
        experiment: The experiment's number in the agent's plan.
        gpus: The node's GPUs that the experiment runs on.
        host_gpus: All GPUs of the node.
        planned: What the agent said of the node.
        since: The first exchange of the present session.
    """

    link: NodeLink
    number: int
    experiment: int
    gpus: Sequence[Gpu]
    host_gpus: Sequence[Gpu]
    planned: snapshot.NodeFacts
    since: int = 0
    loaded: RunnerEnvironment | None = None

    @property
    def facts(self) -> snapshot.NodeFacts:
        """What a result says of the node."""
        of_clock: dict[str, Any] = {}
        with suppress(WattdockError):
            clock = self.link.clock(self.since)
            of_clock = {"round_trip_s": 2 * clock.half_trip_s, "clock_uncertainty_s": clock.std_s, "drift": clock.drift}
        return self.planned.model_copy(update={"name": self.link.address, "runner": self.loaded, **of_clock})

    def clock(self, limit_j: float) -> NodeClock:
        """Return the node's clock by the present session's exchanges.

        Raises:
            ClockError: It is not known well enough: a step of a GPU's power limit could be off by more than `limit_j`.
        """
        clock, watts = self.link.clock(self.since), [gpu.power_limit_w or MOST_POWER_W for gpu in self.gpus]
        clock.require(limit_j=limit_j, step_w=max(watts, default=0.0), node=self.link.address)
        return clock

    def recorded(self, limit_j: float, after_ns: int | None, *, stop: bool) -> dict[str, GpuTimeline]:
        """Return what the node's meter recorded of each GPU, by this host's clock; see `metering.Meter`.

        Raises:
            ClockError: The node's clock is not known well enough.
        """
        there_ns = None if after_ns is None else self.link.beyond(after_ns)
        answer = self.link.ask(read_meter=pb.ReadOrder(after_ns=there_ns, stop=stop))
        with folders.scratch_folder() as scratch:
            timeline = timeline_from(answer.timeline_files, scratch, self.link.address)
        return on_this_clock(timeline, self.clock(limit_j), self.link.address, self.number)


@dataclass
class _Head:
    """What the parts of one run's `MachineAccess` share.

    Attributes:
        stack: Ends the run.
        model_files: Digests of the present model's files by name.
        edges: What each node's agent said at the last begin or end of a pass, by the node's number.
        parts: The parts of the experiment that is being measured.
    """

    spec: NodesSpec
    base: MachineAccess
    stack: ExitStack
    links: list[NodeLink] = field(default_factory=list)
    edges: dict[int, pb.EdgeSeen] = field(default_factory=dict)
    parts: Sequence[NodePart] = ()
    model_files: Mapping[str, str] = field(default_factory=dict)

    def plan(self, study: Study, **how: Any) -> list[ExecutionPlan]:
        """Plan on this machine, then on each node, which leases what it gives."""
        plans = self.base.plan(study, **how)
        if self.spec.pairing:
            pairing, agents = Pairing.read(expanded(self.spec.pairing)), self.spec.agents
        else:
            step = agents_of_job(self.spec.count - 1, study.fleet.setup)
            pairing, agents = self.stack.enter_context(step)
        for address in agents:
            link = NodeLink(address, pairing)
            self.stack.callback(link.close)
            self.links.append(link)
        spread = [index for index, plan in enumerate(plans) if plan.config.nodes]
        # Agents plan on CPUs where the head does.
        texts = []
        for index in spread:
            accelerator = {} if plans[index].gpus else {"accelerator": "cpu"}
            texts.append(json_text(plans[index].config.model_dump(mode="json") | accelerator))
        calls = [link.send(plan_order=pb.PlanOrder(experiments_json=texts)) for link in self.links]
        parts: dict[int, list[NodePart]] = {index: [] for index in spread}
        for rank, (link, call) in enumerate(zip(self.links, calls, strict=True), start=1):
            for place, text in enumerate(link.wait(call).plans_json):
                said = PlannedNode.model_validate(from_json(text))
                part = NodePart(link, rank, place, said.gpus, said.host_gpus, said.facts)
                parts[spread[place]].append(part)
                # Before anything is started, a link that is too slow is refused.
                _wait_for_exchanges(link)
                part.clock(self.spec.clock_limit_j)
        return [_with_nodes(plan, tuple(parts.get(index, ()))) for index, plan in enumerate(plans)]

    def new_meter(self, plan: ExecutionPlan) -> Meter:
        """Return a meter of all nodes."""
        self.parts, self.edges = cast("tuple[NodePart, ...]", plan.nodes), {}
        local = self.base.new_meter(plan)
        # Of a meter it has what a session uses.
        return cast("Meter", NodesMeter(local, self)) if plan.nodes else local

    @contextmanager
    def launcher(self, plan: ExecutionPlan, say: Callable[[str], None]) -> Iterator[Launcher]:
        """Yield a launcher of runners on all nodes."""
        if plan.nodes:
            home, config = folders.wattdock_home(), plan.config
            self.model_files = resolve_model(config.model, home=home, progress=say, config=config).files
        with self.base.launcher(plan, say) as local:
            yield partial(_launch, local=local, head=self) if plan.nodes else local

    def connect(self, runner: LaunchedRunner, check: Callable[[], None], clock: Clock) -> RunnerClient:
        """Return a client of this machine's runner, which loads on all nodes."""
        if isinstance(runner, _NodesRunner):
            return _NodesClient(runner, self, check, clock)
        return self.base.connect(runner, check, clock)

    def elsewhere(self) -> tuple[str | None, list[float | None]]:
        """Return why others may be measuring on a node, and how busy others kept its CPUs in the last pass."""
        faults, shares = [], list[float | None]()
        for part in self.parts:
            edge = self.edges.get(part.number, pb.EdgeSeen())
            faults += [f"node {part.link.address}: {edge.lease_fault}"] if edge.HasField("lease_fault") else []
            shares.append(edge.cpu_others_share if edge.HasField("cpu_others_share") else None)
        return "; ".join(faults) or None, shares

    @property
    def address(self) -> str:
        """This machine's address for the engine's traffic."""
        return self.spec.address or here(self.links[0].address.rpartition(":")[0])

    def note_edges(self) -> None:
        """Ask each node what was the case until now."""
        calls = [part.link.send(edge=pb.Nothing()) for part in self.parts]
        for part, call in zip(self.parts, calls, strict=True):
            self.edges[part.number] = part.link.wait(call).edge

    def check(self) -> None:
        """Raise if a link or a node's part is lost."""
        for part in self.parts:
            part.link.check()


def _wait_for_exchanges(link: NodeLink) -> None:
    """Wait until a link has as many exchanges as tell whether it is good enough, or takes too long."""
    until_ns = time.monotonic_ns() + FIRST_WAIT_S * NS_PER_S
    while len(link.exchanges) < FIRST_EXCHANGES and time.monotonic_ns() < until_ns:
        link.check(wait_s=EXCHANGE_S)


def _with_nodes(plan: ExecutionPlan, nodes: tuple[NodePart, ...]) -> ExecutionPlan:
    """Return a plan with its other nodes.

    Raises:
        PreflightError: A GPU is there twice, or a node gives other GPUs than the head.
    """
    whole = replace(plan, nodes=nodes)
    if len(set(whole.gpu_uuids)) < len(whole.gpu_uuids):
        raise PreflightError("two nodes have the same GPU: an agent runs on the head", "name agents of other nodes")
    names = {gpu.name for gpu in (*plan.gpus, *(gpu for node in nodes for gpu in node.gpus))}
    if len(names) > 1:
        raise PreflightError(f"nodes with different GPUs: {', '.join(sorted(names))}", "choose equal nodes")
    return whole


class NodesMeter:
    """Meters this machine and the other nodes; see `metering.Meter`."""

    def __init__(self, local: Meter, head: _Head) -> None:
        self._local, self._head, self._parts = local, head, head.parts
        self._seen: dict[str, GpuTimeline] = {}

    def start(self) -> None:
        """Begin to record on all nodes; raise where one cannot."""
        self._local.start()
        for part in self._parts:
            part.since = max(0, len(part.link.exchanges) - FIRST_EXCHANGES)
            part.link.ask(start_meter=part.experiment)

    @contextmanager
    def window(self, key: str) -> Iterator[None]:
        """Mark a span on all nodes."""
        self._head.note_edges()
        with self._local.window(key):
            yield
        self._head.note_edges()

    def note_edge(self) -> None:
        """Say that a span begins or ends about now; other nodes are told at the ends of a window."""
        self._local.note_edge()

    def watts(self) -> dict[str, float | None]:
        """Return the latest power of this machine's GPUs; other nodes' is not known yet."""
        return {**self._local.watts(), **{gpu.uuid: None for part in self._parts for gpu in part.host_gpus}}

    def peek(self, after_ns: int | None = None) -> Timeline:
        """Return what all nodes have recorded so far, by this machine's clock."""
        return self._merged(self._local.peek(after_ns), after_ns, stop=False)

    def stop(self, after_ns: int | None = None) -> Timeline:
        """End the recording; of a node whose link is lost, the timeline has what was read before."""
        return self._merged(self._local.stop(after_ns), after_ns, stop=True)

    def _merged(self, local: Timeline, after_ns: int | None, *, stop: bool) -> Timeline:
        for part in self._parts:
            with suppress(*((WattdockError,) if stop else ())):
                self._seen |= part.recorded(self._head.spec.clock_limit_j, after_ns, stop=stop)
        return replace(local, gpus={**local.gpus, **self._seen})


def _launch(spec: LaunchSpec, *, local: Launcher, head: _Head) -> _NodesRunner:
    """Start a runner on every node, this machine's last; the others' answer by then."""
    address, parts = head.address, head.parts
    orders = (pb.LaunchOrder(experiment=part.experiment, head_address=address) for part in parts)
    asked = [part.link.send(launch=order) for part, order in zip(parts, orders, strict=True)]
    for part, call in zip(parts, asked, strict=True):
        part.link.wait(call)
    variables = {**spec.variables, **engine_variables(address)}
    return _NodesRunner(local(replace(spec, variables=variables)), head, spec)


class _NodesRunner(LaunchedRunner):
    """This machine's runner, whose end is the end of the others."""

    def __init__(self, local: LaunchedRunner, head: _Head, spec: LaunchSpec) -> None:
        self.local, self._head, self.address, self.spec = local, head, local.address, spec

    def model_path(self, on_host: Path) -> Path:
        """Return where this machine's runner finds a model's folder."""
        return self.local.model_path(on_host)

    def pids(self) -> frozenset[int]:
        """Return the processes of all runners, those of other nodes as they are numbered here."""
        edges = self._head.edges.items()
        return self.local.pids() | {pid_here(pid, number) for number, edge in edges for pid in edge.pids}

    def exit_reason(self) -> str | None:
        """How this machine's runner ended."""
        reason = self.local.exit_reason()
        self.lacked_memory, self.ended_ns = self.local.lacked_memory, self.local.ended_ns
        return reason

    def stop(self, grace_s: float = 5.0) -> None:
        """End this machine's runner, then the others, which do not end by themselves."""
        try:
            self.local.stop(grace_s)
        finally:
            # An agent whose link is lost has ended its runner by itself.
            for part in self._head.parts:
                with suppress(WattdockError):
                    part.link.give_up()
                    stop = part.link.send(stop_runner_s=grace_s)
                    part.link.wait(stop, timeout_s=grace_s + STOP_WAIT_S)


class _NodesClient(RunnerClient):
    """Asks this machine's runner for everything, and has the others load beside it."""

    def __init__(self, runner: _NodesRunner, head: _Head, check: Callable[[], None], clock: Clock) -> None:
        def check_all() -> None:
            check()
            head.check()

        super().__init__(runner, check_all, clock)
        self._head = head

    def load(self, request: Any, *, timeout_s: float, **callbacks: Callable[..., None]) -> Any:
        """Load on all nodes at once; see `RunnerClient.load`."""
        parts, address = self._head.parts, self._head.address
        place = NodePlace(1 + len(parts), 0, address, free_port(address))
        asked = []
        for part in parts:
            there = load_request(replace(request, place=replace(place, rank=part.number), gpu_uuids=()))
            order = pb.LoadOrder(request=there, model_files=self._head.model_files, timeout_s=timeout_s)
            asked.append(part.link.send(load=order))
        environment, span = super().load(replace(request, place=place), timeout_s=timeout_s, **callbacks)
        used, warnings = list(environment.used_gpu_uuids), list(environment.warnings)
        own_cpus = Machine.usable_cpus()
        for part, call in zip(parts, asked, strict=True):
            told = part.link.wait(call, self._check, timeout_s)
            part.loaded = RunnerEnvironment.model_validate(from_json(told.environment_json))
            _require_same_packages(environment, part)
            used += [uuid for uuid in part.loaded.used_gpu_uuids if uuid not in used]
            if (cpus := part.planned.cpu_count) != own_cpus:
                warnings.append(f"node {part.link.address} runs on {pluralize(cpus, 'CPU')}, the head on {own_cpus}")
        return environment.model_copy(update={"used_gpu_uuids": used, "warnings": warnings}), span


def _require_same_packages(own: RunnerEnvironment, part: NodePart) -> None:
    """Refuse a node whose engine is another than the head's.

    Raises:
        LaunchError: Names the packages and both versions.
    """
    there = part.loaded.package_versions if part.loaded else {}
    differing = dict(sorted(own.package_versions.items() ^ there.items()))
    if names := [f"{name} {there.get(name)}, here {own.package_versions.get(name)}" for name in differing]:
        what = f"node {part.link.address} has other packages: {'; '.join(names)}"
        raise LaunchError(what, "make the same environment on every node", cause=Cause.VERSION)
