"""One session: a fresh runner that serves experiments of one load group until none is left or one fails.

Launch, load, idle, warm-up and passes in the order of `Session._serve`. Whatever goes wrong becomes a failure of an
experiment; what was measured before stays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.checks import ExecutionPlan
from wattdock.clock import NS_PER_S, Clock, HostClock
from wattdock.errors import ConfigError, ExitCode, MeterError, RunnerError, WattdockError
from wattdock.execution.events import Loading, Note, RestartStarted, RunnerReady, notes
from wattdock.execution.failures import cause_of, oom_kills
from wattdock.execution.procedure import Procedure, Recording, new_record, rest
from wattdock.files import last_lines
from wattdock.host import folders, inventory
from wattdock.inputs import check_prompts, resolve_model
from wattdock.launch import LaunchSpec
from wattdock.metering import Span, Timeline
from wattdock.records import Failure
from wattdock.runner import PROTOCOL_VERSION, LoadRequest, RunnerClient

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.analysis import steadiness
    from wattdock.config import ExperimentConfig
    from wattdock.execution.events import Emit
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.interrupts import Interrupts
    from wattdock.execution.study_folder import StudyFolder
    from wattdock.host import GpuInventory
    from wattdock.inputs import ModelFolder
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter

# A span has energy only with a few counter changes before it; the launch comes first.
METER_LEAD_S = 1.0


@dataclass(frozen=True)
class Seams:
    """Where a study's run meets the machine; a test puts simulations here and runs in virtual time.

    Attributes:
        connect: Takes a launched runner and a check that is called at least twice a second while the runner is waited
            for, and returns the client.
        inventory: Returns the GPUs in their present state.
    """

    clock: Clock = field(default_factory=HostClock)
    new_meter: Callable[[ExecutionPlan, Path], Meter] = ExecutionPlan.new_meter
    launcher: Callable[[ExecutionPlan, Callable[[str], None]], AbstractContextManager[Launcher]] = (
        ExecutionPlan.launcher
    )
    connect: Callable[[LaunchedRunner, Callable[[], None]], RunnerClient] = RunnerClient
    inventory: Callable[[], GpuInventory] = inventory


@dataclass(frozen=True)
class Workplace:
    """What all sessions of a run share.

    Attributes:
        home: WATTDOCK_HOME.
        scratch: A folder that goes with the run.
        lease_fds: Leases that a runner's keeper holds too, until nothing of the runner is left.
        first_rest: State of the GPUs at rest before the run's first runner, by UUID; filled by the first session.
    """

    folder: StudyFolder
    home: Path
    scratch: Path
    lease_fds: tuple[int, ...]
    emit: Emit
    interrupts: Interrupts
    seams: Seams
    first_rest: dict[str, steadiness.AtRest] = field(default_factory=dict)


class Session:
    """Takes experiments from `pending` and adds one restart to each that was served.

    Args:
        pending: Experiments of one load group; those left afterwards want a fresh runner.
        number: Of this session in the run.
        left: Returns how many passes the whole study has left, and how long they take.
    """

    def __init__(
        self,
        workplace: Workplace,
        pending: deque[ExperimentState],
        restart: int,
        *,
        number: int,
        left: Callable[[], tuple[int, str]],
    ) -> None:
        self._at, self._pending, self._left = workplace, pending, left
        self._emit, self._clock = workplace.emit, workplace.seams.clock
        self._log = workplace.scratch / f"{number}.log"
        self._plan = pending[0].plan
        self._opening = Recording(pending[0].config, new_record(restart), stage="model")
        self._served: list[tuple[ExperimentState, Recording]] = []
        self._current: Recording | None = None
        self._deadline_ns = math.inf
        self._oom_kills = oom_kills()

    def run(self) -> None:
        """Serve the experiments; every error ends on an experiment, none leaves here but an interruption.

        Raises:
            KeyboardInterrupt: The run was interrupted; noted as the current experiment's failure.
        """
        meter = self._at.seams.new_meter(self._plan, self._at.home)
        try:
            self._serve(meter)
        except KeyboardInterrupt:
            self._fail(Failure.INTERRUPTED, "interrupted by the user", ExitCode.INTERRUPTED)
            raise
        except WattdockError as error:
            self._fail(type(error).__name__, str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001  (a bug in one experiment must not cost the others)
            self._emit(Note(traceback.format_exc()))
            self._fail(type(error).__name__, f"a bug in wattdock: {error}", ExitCode.BUG)
        finally:
            self._hand_over(meter)

    def _serve(self, meter: Meter) -> None:
        """Launch, load, and measure one experiment after another."""
        self._refresh_plan()
        meter.start()
        model = self._resolve_model()
        if not self._pending:
            return
        self._opening.stage = "environment"
        with ExitStack() as stack:
            with self._at.interrupts.allowed():
                launcher = stack.enter_context(self._at.seams.launcher(self._plan, notes(self._emit)))
            self._idle_empty(meter)
            began_ns = self._clock.now_ns()
            runner = stack.enter_context(self._launched(launcher, model))
            client = stack.enter_context(self._at.seams.connect(runner, self._check))
            self._load(client, began_ns, model, runner)
            procedure = Procedure(
                client=client,
                model=model,
                meter=meter,
                gpu_uuids=self._watched,
                clock=self._clock,
                emit=self._emit,
                interrupts=self._at.interrupts,
                check=self._check,
                save=functools.partial(self._save, meter, runner),
                pids=runner.pids,
            )
            while self._pending and not self._at.folder.broken:
                self._at.interrupts.check()
                self._measure_next(procedure)
            client.unload()

    @property
    def _watched(self) -> tuple[str, ...]:
        return () if self._plan.meter.no_gpu_reason else tuple(gpu.uuid for gpu in self._plan.gpus)

    def _refresh_plan(self) -> None:
        """Take the GPUs as this runner finds them: a limit may have changed since the run began."""
        if self._plan.inventory.gpus:
            found = self._at.seams.inventory()
            for state in self._pending:
                state.plan = state.plan.on(found)
            self._plan = self._pending[0].plan

    def _resolve_model(self) -> ModelFolder:
        with self._at.interrupts.allowed():
            model = resolve_model(self._plan.config.model, home=self._at.home, progress=notes(self._emit))
        for state in self._pending:
            state.model = model
        self._reject_each(
            lambda config: check_prompts(config, has_tokenizer=model.has_tokenizer, vocab_size=model.vocab_size)
        )
        return model

    def _idle_empty(self, meter: Meter) -> None:
        """Let the GPUs come to rest after whatever ran before, and meter them without any context."""
        if not self._watched:
            return
        self._clock.sleep(METER_LEAD_S)
        limits = max((state.config.idle for state in self._pending), key=lambda idle: idle.duration_s)
        if limits.duration_s:
            self._opening.stage = "idle-empty"
            span = rest(
                "idle-empty",
                limits,
                self._watched,
                meter=meter,
                clock=self._clock,
                emit=self._emit,
                check=self._at.interrupts.check,
                first=self._at.first_rest,
            )
            self._opening.add(spans=span)

    @contextmanager
    def _launched(self, launcher: Launcher, model: ModelFolder) -> Iterator[LaunchedRunner]:
        self._opening.stage = "launch"
        runner = launcher.launch(self._launch_spec(model))
        try:
            yield runner
        finally:
            runner.stop(self._plan.config.timeouts.stop_s)
            if not runner.stopped:
                self._emit(Note(f"the runner {runner.exit_reason()}"))

    def _launch_spec(self, model: ModelFolder) -> LaunchSpec:
        gpus = self._plan.gpus
        return LaunchSpec(
            backend=self._plan.config.backend,
            runner_dir=self._plan.runner_dir,
            log_path=self._log,
            gpu_indices=tuple(gpu.index for gpu in gpus),
            gpu_uuids=tuple(gpu.uuid for gpu in gpus),
            model_path=model.path,
            labels={
                "experiment": self._plan.config.experiment_id,
                "run": self._log.parent.name,
                "protocol": str(PROTOCOL_VERSION),
            },
            alive_lock=self._log.parent / folders.SCRATCH_LOCK,
            lease_fds=self._at.lease_fds,
        )

    def _load(self, client: RunnerClient, began_ns: int, model: ModelFolder, runner: LaunchedRunner) -> None:
        """Wait for the runner, hold its clock against ours, load the model, and compare the GPUs it sees."""
        config, opening = self._plan.config, self._opening
        described = client.wait_ready(config.timeouts.launch_s)
        opening.add(spans=Span("launch", began_ns, self._clock.now_ns()))
        self._emit(RunnerReady(described.framework, described.framework_version, described.python_version))
        opening.add(clock_checks=client.check_clock())
        self._reject_each(lambda config: described.require_arrival(config.workload.arrival))
        opening.stage = "load"
        self._emit(Loading(model.name))
        asked = [gpu.uuid for gpu in self._plan.gpus]
        request = LoadRequest(
            model_path=runner.model_path(model.path),
            dtype=config.section.dtype,
            engine_args=config.section.engine_args(),
            weights_seed=config.model.weights_seed if model.random_weights else None,
            trust_remote_code=config.model.trust_remote_code,
            gpu_uuids=asked,
        )
        opening.runner, span = client.load(
            request,
            timeout_s=config.timeouts.load_s,
            progress=lambda stage: self._emit(Loading(model.name, stage)),
        )
        opening.add(spans=span)
        opening.own_pids |= runner.pids()
        seen = opening.runner.visible_gpu_uuids
        if sorted(seen) != sorted(asked):
            raise RunnerError(f"the runner was given the GPUs {asked or 'none'} and sees {seen or 'none'}; see its log")

    def _measure_next(self, procedure: Procedure) -> None:
        state, restart = self._pending[0], self._opening.record.restart
        self._current = self._begin(state)
        self._pending.popleft()
        self._emit(RestartStarted(state.config.label, restart + 1, *self._left()))
        limit_s = state.config.timeouts.experiment_s or math.inf
        self._deadline_ns = self._clock.now_ns() + limit_s * NS_PER_S
        procedure.measure(self._current)
        self._current, self._deadline_ns = None, math.inf

    def _begin(self, state: ExperimentState) -> Recording:
        """Return the recording of an experiment that this runner serves from now on."""
        opening, restart = self._opening, self._opening.record.restart
        recording = dataclasses.replace(
            opening,
            config=state.config,
            record=dataclasses.replace(opening.record, started_utc=new_record(restart).started_utc),
            name=self._at.folder.new_record_name(state.config.experiment_id, restart),
            already=state.measured(restart),
        )
        self._served.append((state, recording))
        return recording

    def _check(self) -> None:
        """Raise for a signal that came, or where the experiment being served has taken too long."""
        self._at.interrupts.check()
        if self._current and self._clock.now_ns() > self._deadline_ns:
            limit_s = self._current.config.timeouts.experiment_s
            raise RunnerError(
                f"the experiment took longer than {limit_s:g} s; it was stopped (see timeouts.experiment_s)"
            )

    def _save(self, meter: Meter, runner: LaunchedRunner, recording: Recording) -> None:
        """Make what was measured of the experiment being served durable."""
        self._opening.own_pids |= runner.pids()
        state, _ = self._served[-1]
        state.save(recording, meter.peek())

    def _reject_each(self, check: Callable[[ExperimentConfig], object]) -> None:
        """Fail the pending experiments that `check` refuses; the others go on."""
        for state in tuple(self._pending):
            try:
                check(state.config)
            except ConfigError as error:
                self._fail_pending(
                    state, self._failure(type(error).__name__, str(error), error.exit_code, self._opening.stage)
                )

    def _fail(self, kind: str, message: str, exit_code: ExitCode) -> None:
        """Put a failure where it belongs: on the experiment being served, or on all that the runner was to serve."""
        if self._current:
            self._current.fail(self._failure(kind, message, exit_code, self._current.stage))
        elif kind == Failure.INTERRUPTED and self._served:
            # Between two experiments: neither is the interrupted one.
            return
        elif self._pending:
            failure = self._failure(kind, message, exit_code, self._opening.stage)
            for state in [self._pending[0]] if kind == Failure.INTERRUPTED else tuple(self._pending):
                self._fail_pending(state, failure)
        else:
            # All experiments are complete: an end that was not clean takes nothing from them.
            self._emit(Note(f"after the last pass: {message}"))

    def _fail_pending(self, state: ExperimentState, failure: Failure) -> None:
        self._pending.remove(state)
        self._begin(state).fail(failure)

    def _failure(self, kind: str, message: str, exit_code: ExitCode, stage: str) -> Failure:
        tail = last_lines(self._log)
        cause = None
        if exit_code in (ExitCode.LAUNCH, ExitCode.RUNNER):
            cause = cause_of(message, tail, oom_kills=oom_kills() - self._oom_kills)
        known = {"cause": cause.name, "advice": cause.advice} if cause else {}
        return Failure(kind=kind, message=message, stage=stage, exit_code=int(exit_code), log_tail=tail, **known)

    def _hand_over(self, meter: Meter) -> None:
        """Stop the meter and save every served experiment with the timeline around it.

        A failure that an experiment has already stays its failure; the meter's is added to its message.
        """
        timeline = self._stopped(meter)
        for state, recording in self._served:
            if broken := _broke_off(timeline, recording):
                failure = recording.record.failure
                recording.fail(
                    failure.model_copy(update={"message": f"{failure.message}; then the meter: {broken}"})
                    if failure
                    else self._failure(MeterError.__name__, broken, ExitCode.METER, "meter")
                )
            state.save(recording, timeline)
            if self._log.exists():
                self._add_log(state.log_path)

    def _stopped(self, meter: Meter) -> Timeline:
        """Return what the meter saw; a timeline without anything but the reason where the meter broke off."""
        try:
            timeline = meter.stop()
            for gpu in timeline.gpus.values():
                for event in gpu.events:
                    if event.kind == "card_unused":
                        self._emit(Note(f"{gpu.uuid}: {event.message}"))
            return timeline
        except MeterError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  (what ended the session must not be lost behind it)
            self._emit(Note(traceback.format_exc()))
            reason = f"a bug in wattdock: {error}"
        self._emit(Note(f"the meter: {reason}"))
        return Timeline(self._plan.meter.name, 0, 0, reason=reason, broke_off=True)

    def _add_log(self, gathered: Path) -> None:
        try:
            with gathered.open("ab") as file:
                file.write(self._log.read_bytes())
        except OSError as error:
            self._emit(Note(f"{gathered}: {error.strerror or error}; the runner's log is not kept"))


def _broke_off(timeline: Timeline, recording: Recording) -> str | None:
    """Return why the meter cannot tell what this experiment's GPUs used; None where it did not break off."""
    if timeline.broke_off:
        return timeline.reason
    used = recording.runner.used_gpu_uuids if recording.runner else []
    events = [(uuid, event) for uuid in used if uuid in timeline.gpus for event in timeline.gpus[uuid].events]
    return next((f"{uuid}: {event.message}" for uuid, event in events if event.kind == "broke_off"), None)
