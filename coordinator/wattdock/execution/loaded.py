"""From a plan to a runner that has loaded its model: environment, idle GPUs, launch, load; and the runner's end.

Must not know: which experiments the runner will serve, what a failure means.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, RunnerError
from wattdock.execution.command import CommandRunner
from wattdock.files import last_lines
from wattdock.host import leases
from wattdock.metering import Span
from wattdock.runner import LoadRequest, RunnerClient
from wattdock.study import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.clock import Clock
    from wattdock.execution.context import RunContext
    from wattdock.execution.recording import Recording
    from wattdock.inputs import ModelFolder
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter
    from wattdock.planning import ExecutionPlan
    from wattdock.runner import RunnerDescription

# How long the meter runs before the first span: a span has energy only with a few counter changes before it.
METER_LEAD_S = 1.0
# How long the GPUs are watched before the launch: memory and utilisation are read once a second.
EMPTY_S = 3.0
# How long a board takes after a load to draw what it draws idle. Source: an H200, 126 W for 3 s, then 119 W.
AFTER_LOAD_S = 5.0
# How long an interrupted run waits for its runner's own end: the person who interrupted it is waiting, too.
INTERRUPTED_STOP_S = 3.0
# How long the runner stays drained after a pass, so that the counter's next tick shows the pass's end.
SETTLE_S = 1.0
# After how long it is told again what a runner that loads wrote last, and how much of it.
SILENCE_S, LINE_CHARACTERS = 20.0, 110
# How often it is checked, while GPUs are idle, whether a signal has come.
SIGNAL_POLL_S = 0.5


@dataclass(frozen=True)
class LoadedRunner:
    """A runner that has loaded a model and is metered.

    Attributes:
        client: Talks to the runner.
        meter: Is running.
        pids: Returns the processes of the runner, and of a server that runs already, as this host numbers them.
        model: The model that is loaded.
        gpu_uuids: The runner's GPUs that the meter watches; empty where there is no energy to measure.
        has_node: Whether a scheduler gave the whole machine to this job.
        command: What runs a command of the user's own, instead of an engine.
    """

    client: RunnerClient
    meter: Meter
    pids: Callable[[], frozenset[int]]
    model: ModelFolder
    gpu_uuids: tuple[str, ...]
    context: RunContext
    has_node: bool = False
    command: CommandRunner | None = None

    def lease_fault(self) -> str | None:
        """Return why others may be measuring all the same; None where they cannot."""
        return leases.fault(self.context.held, has_node=self.has_node) or self.context.machine.elsewhere()[0]


def metered_gpus(plan: ExecutionPlan) -> tuple[str, ...]:
    """Return the UUIDs of the plan's GPUs that its meter watches."""
    return () if plan.meter.no_gpu_reason else tuple(plan.gpu_uuids)


@contextmanager
def ready_runner(
    plan: ExecutionPlan,
    model: ModelFolder,
    startup: Recording,
    *,
    context: RunContext,
    meter: Meter,
    idle_s: float,
    log: Path,
) -> Iterator[tuple[RunnerDescription, Callable[[], LoadedRunner]]]:
    """Meter the empty GPUs and launch a runner; it is stopped at the end.

    Args:
        startup: Receives spans, the check of the runner's clock and its environment; its stage is kept up to date.
        idle_s: How long the GPUs are metered idle after the load; 0 does not.
        log: File of the runner's output.

    Yields:
        The runner's description of itself, and a function that loads the model and returns the runner.

    Raises:
        PreflightError, LaunchError, RunnerError, ClockError: The runner cannot be started or does not load the model.
        ConfigError: The engine does not know an argument, or the model's folder changed.
        KeyboardInterrupt: The run was interrupted.
    """
    machine, clock, emit, startup.stage = context.machine, context.machine.clock, context.emit, "environment"
    with ExitStack() as stack:
        with context.interrupts.interruptible():
            launcher = stack.enter_context(machine.launcher(plan, events.notes(emit)))
        if gpu_uuids := metered_gpus(plan):
            clock.sleep(METER_LEAD_S)
        # The GPUs of a server that runs already are not empty.
        if gpu_uuids and not plan.server:
            _meter_idle(startup, "idle-empty", EMPTY_S, context)
        has_node = bool(plan.job and plan.job.alone_with)
        loaded = partial(
            LoadedRunner, meter=meter, model=model, gpu_uuids=gpu_uuids, context=context, has_node=has_node
        )
        if plan.config.command:
            command = CommandRunner(launcher, plan, context, meter, log)
            startup.add(clock_checks=command.check_clock())
            startup.runner = command.environment
            # Of a client it has what ends a restart: `check_clock` and `unload`.
            client = cast("RunnerClient", command)
            yield command.description, lambda: loaded(client, pids=command.pids, command=command)
            return
        startup.stage, launch_ns = "launch", clock.now_ns()
        runner = stack.enter_context(_launched(launcher, plan, model, context, log))
        client = stack.enter_context(machine.connect(runner, context.interrupts.check, clock))
        description = client.wait_ready(plan.config.timeouts.launch_s)
        emit(events.RunnerReady(description.framework, description.framework_version, description.python_version))
        startup.add(spans=Span("launch", launch_ns, clock.now_ns()), clock_checks=client.check_clock())

        def load() -> LoadedRunner:
            startup.stage = "load"
            waiting = told_while_silent(log, clock, lambda line: emit(events.Loading(model.name, line)))
            _load(client, runner, plan, model, startup=startup, emit=emit, waiting=waiting)
            if gpu_uuids and idle_s:
                emit(events.IdleStarted("idle-loaded", idle_s))
                _meter_idle(startup, "idle-loaded", idle_s, context, after_s=AFTER_LOAD_S)
            return loaded(client, pids=partial(_pids, runner, plan))

        yield description, load


def _pids(runner: LaunchedRunner, plan: ExecutionPlan) -> frozenset[int]:
    """Return the processes of a runner, and of the server that it asks."""
    return runner.pids() | (plan.server.pids() if plan.server else frozenset())


def _meter_idle(startup: Recording, name: str, length_s: float, context: RunContext, *, after_s: float = 0.0) -> None:
    """Wait, and add the span of the last `length_s`; an interruption ends the wait, within half a second.

    Args:
        after_s: Time to wait before the span.
    """
    clock = context.machine.clock
    startup.stage, start_ns = name, clock.now_ns() + round(after_s * NS_PER_S)
    end_ns = start_ns + round(length_s * NS_PER_S)
    while (remaining_ns := end_ns - clock.now_ns()) > 0:
        context.interrupts.check()
        clock.sleep(min(SIGNAL_POLL_S, remaining_ns / NS_PER_S))
    startup.add(spans=Span(name, start_ns, end_ns))


@contextmanager
def _launched(
    launcher: Launcher, plan: ExecutionPlan, model: ModelFolder, context: RunContext, log: Path
) -> Iterator[LaunchedRunner]:
    runner = launcher(plan.runner(log, context.held, model=model, alive_lock=context.scratch))
    stop_s = plan.config.timeouts.stop_s
    try:
        yield runner
    except KeyboardInterrupt:
        stop_s = min(stop_s, INTERRUPTED_STOP_S)
        raise
    finally:
        runner.stop(stop_s)
        if not runner.stopped:
            context.emit(events.Note(f"the runner {runner.exit_reason()}"))


def told_while_silent(log: Path, clock: Clock, tell: Callable[[str], None]) -> Callable[[], None]:
    """Return what tells the runner's newest line every 20 s: an engine may compile for minutes at its first start."""
    told, told_ns = "", clock.now_ns()

    def look() -> None:
        nonlocal told, told_ns
        if clock.now_ns() - told_ns < SILENCE_S * NS_PER_S:
            return
        line, told_ns = last_lines(log, 1).strip(), clock.now_ns()
        if line != told:
            told = line
            tell(f"in its log: {line[-LINE_CHARACTERS:]}")

    return look


def _load(
    client: RunnerClient,
    runner: LaunchedRunner,
    plan: ExecutionPlan,
    model: ModelFolder,
    *,
    startup: Recording,
    emit: events.Emit,
    waiting: Callable[[], None],
) -> None:
    """Load the model, and compare the GPUs that the runner sees with those that it was given."""
    config, planned_uuids = plan.config, [gpu.uuid for gpu in plan.gpus]
    emit(events.Loading(model.name))
    engine_args = config.section.engine_args()
    if model.draft:
        engine_args["speculative_config"].pop("revision", None)
        engine_args["speculative_config"]["model"] = str(runner.model_path(model.draft.path))
    if model.served_as:
        engine_args["model"] = model.served_as
    request = LoadRequest(
        model_path=runner.model_path(model.path) / model.gguf,
        dtype=config.section.dtype,
        engine_args=engine_args,
        weights_seed=config.model.weights_seed if model.random_weights else None,
        trust_remote_code=config.model.trust_remote_code,
        gpu_uuids=planned_uuids,
    )
    startup.runner, span = client.load(
        request,
        timeout_s=config.timeouts.load_s,
        progress=lambda stage: emit(events.Loading(model.name, stage)),
        waiting=waiting,
    )
    startup.add(spans=span)
    startup.runner_pids |= _pids(runner, plan)
    if changes := model.read_again().changes_since(model.files):
        raise ConfigError(
            f"{model.path} changed until it was loaded: {changes}",
            "leave it as it is, and run again",
            cause=Cause.MODEL_CHANGED,
        )
    visible_uuids = startup.runner.visible_gpu_uuids
    if sorted(visible_uuids) != sorted(planned_uuids):
        raise RunnerError(
            f"the runner was given the GPUs {planned_uuids or 'none'} and sees {visible_uuids or 'none'}", "see its log"
        )
