"""One session: a fresh runner that serves experiments of one load group until none is left or one fails.

Whatever goes wrong becomes the failure of an experiment; what was measured before stays.
"""

from __future__ import annotations

import math
import os
import traceback
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, ExitCode, LaunchError, MeterError, RunnerError, WattdockError
from wattdock.execution.failures import ADVICE, cause_of
from wattdock.execution.loaded import LoadedRunner
from wattdock.execution.procedure import wait_until_idle
from wattdock.execution.recording import Recording
from wattdock.execution.restore import require_same_model
from wattdock.files import last_lines
from wattdock.inputs import check_prompts, resolve_model
from wattdock.metering import EnergyCurve, Span, Timeline
from wattdock.opening import open_data, open_regular
from wattdock.records import Failure, RestartRecord
from wattdock.runner import LoadRequest, RunnerClient
from wattdock.secrets import withheld
from wattdock.study import events

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wattdock.execution.context import RunContext
    from wattdock.execution.experiment import ExperimentState
    from wattdock.inputs import ModelFolder
    from wattdock.launch import LaunchedRunner, Launcher

# A span has energy only with a few counter changes before it; the launch comes first.
METER_LEAD_S = 1.0
# What an interrupted run leaves its runner for its own end; who interrupts waits.
INTERRUPTED_STOP_S = 3.0
# Between the processes of one job that are told to end.
SIGNALS_APART_S = 0.2
# How much of a runner's log is looked through at a time.
LOG_BYTES = 1_000_000
SEE_DOCTOR = "`wattdock doctor` says what to do"


class Session:
    """A fresh runner, and a restart of each experiment that it serves; what goes wrong becomes an experiment's failure.

    Args:
        pending: Experiments of one load group. The session takes from it those that it serves or that fail; the others
            need a fresh runner.
        restart: Number of the restart, from 0.

    Attributes:
        is_fallback: Whether it serves a fallback of a failed experiment.
    """

    def __init__(self, context: RunContext, pending: deque[ExperimentState], restart: int) -> None:
        self._context, self._pending, self._restart = context, pending, restart
        self._emit, self._clock = context.emit, context.machine.clock
        self._check_signals = context.interrupts.check
        self._plan, self.is_fallback = pending[0].plan, pending[0].fallback is not None
        self._log = context.scratch / f"{self._plan.config.experiment_id[:16]}-{restart}.log"
        # What all experiments of the session share: launch, load, the first idle.
        record = RestartRecord(restart, started_utc=self._clock.now_utc(), clock=str(self._clock.identity()))
        self._startup = Recording(self._plan.config, record, stage="model")
        self._served: list[tuple[ExperimentState, Recording]] = []
        self._current: Recording | None = None
        self._deadline_ns = math.inf
        self._meter = context.machine.new_meter(self._plan, context.home)
        self._stack = ExitStack()
        self._pids: Callable[[], frozenset[int]] = frozenset

    @property
    def backend(self) -> str:
        """Name of the runner's backend."""
        return self._plan.config.backend

    @property
    def failure(self) -> Failure | None:
        """The last failure; None without one."""
        return next((served.record.failure for _, served in reversed(self._served) if served.record.failure), None)

    @property
    def measured(self) -> bool:
        """Whether a pass was measured."""
        return any(served.record.passes for _, served in self._served)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        """End the runner, stop the meter and save everything; only an interruption is raised."""
        try:
            with self._stack:
                if error:
                    raise error
        except KeyboardInterrupt as signal:
            self._fail(signal)
            raise
        except Exception as failure:
            if self._is_interruption(failure):
                interruption = KeyboardInterrupt()
                self._fail(interruption)
                raise interruption from failure
            if not isinstance(failure, WattdockError):
                self._emit(events.UnexpectedError(traceback.format_exc()))
            self._fail(failure)
        finally:
            self._save_all()
        return True

    def serve(self) -> Iterator[tuple[LoadedRunner, Recording]]:
        """Launch and load, and yield the recording of each experiment in turn, to be measured on the loaded runner."""
        self._meter.start()
        self._require_metered()
        self._refresh_plan()
        model = self._resolve_model()
        if not self._pending:
            return
        self._startup.stage, machine = "environment", self._context.machine
        with self._context.interrupts.allowed():
            launcher = self._stack.enter_context(machine.launcher(self._plan, events.notes(self._emit)))
        self._idle_without_runner()
        launch_ns = self._clock.now_ns()
        runner = self._stack.enter_context(self._launched(launcher, model))
        client = self._stack.enter_context(machine.connect(runner, self._check, self._clock))
        self._wait_ready(client, launch_ns)
        self._load(client, model, runner)
        self._pids = runner.pids
        loaded = LoadedRunner(client, self._meter, runner.pids, self._check, model, self._metered_gpus, self._context)
        while self._pending and not self._context.folder.broken:
            self._check_signals()
            yield loaded, self._begin_measuring(self._pending[0])
            self._current, self._deadline_ns = None, math.inf
        client.unload()

    @property
    def _metered_gpus(self) -> tuple[str, ...]:
        return () if self._plan.meter.no_gpu_reason else tuple(gpu.uuid for gpu in self._plan.gpus)

    def _require_metered(self) -> None:
        """Raise MeterError where the meter cannot read a GPU: a runner on a lost one would only hang or die."""
        if missing := [uuid for uuid in self._metered_gpus if uuid not in self._meter.watts()]:
            unread = [gpu for uuid, gpu in self._meter.peek().gpus.items() if uuid not in self._meter.watts()]
            events = [event.message for gpu in unread for event in gpu.events]
            raise MeterError("; ".join([*events, f"not metered: {', '.join(missing)}", SEE_DOCTOR]))

    def _refresh_plan(self) -> None:
        """Take the GPUs as this runner finds them: a limit may have changed since the run began."""
        if self._plan.inventory.gpus:
            current = self._context.machine.inventory()
            for state in self._pending:
                state.plan = state.plan.on(current)
            self._plan = self._pending[0].plan

    def _resolve_model(self) -> ModelFolder:
        with self._context.interrupts.allowed():
            model = resolve_model(self._plan.config.model, home=self._context.home, progress=events.notes(self._emit))
        self._fail_refused(lambda state: require_same_model(state.config, model, state.measured_on))
        for state in self._pending:
            state.model = model
        self._fail_refused(
            lambda state: check_prompts(state.config, has_tokenizer=model.has_tokenizer, vocab_size=model.vocab_size)
        )
        return model

    def _idle_without_runner(self) -> None:
        """Wait until the GPUs are idle after whatever ran before, and meter them without any context."""
        if not self._metered_gpus:
            return
        self._clock.sleep(METER_LEAD_S)
        limits = max((state.config.idle for state in self._pending), key=lambda idle: idle.duration_s)
        if limits.duration_s:
            self._startup.stage = "idle-empty"
            initial = self._context.initial_idle
            span, current = wait_until_idle(
                self._startup.stage,
                limits,
                self._metered_gpus,
                meter=self._meter,
                clock=self._clock,
                emit=self._emit,
                check=self._check_signals,
                initial=initial,
            )
            initial.update(current | initial)
            self._startup.add(spans=span)

    @contextmanager
    def _launched(self, launcher: Launcher, model: ModelFolder) -> Iterator[LaunchedRunner]:
        self._startup.stage = "launch"
        plan, context = self._plan, self._context
        runner = launcher.launch(
            plan.runner(self._log, context.held, model_path=model.path, alive_lock=context.scratch)
        )
        stop_s = plan.config.timeouts.stop_s
        try:
            yield runner
        except KeyboardInterrupt:
            stop_s = min(stop_s, INTERRUPTED_STOP_S)
            raise
        finally:
            runner.stop(stop_s)
            if not runner.stopped:
                self._emit(events.Note(f"the runner {runner.exit_reason()}"))

    def _wait_ready(self, client: RunnerClient, launch_ns: int) -> None:
        """Wait for the runner, check its clock against the host's, and that it can serve what is asked of it."""
        described = client.wait_ready(self._plan.config.timeouts.launch_s)
        self._startup.add(spans=Span("launch", launch_ns, self._clock.now_ns()))
        self._emit(events.RunnerReady(described.framework, described.framework_version, described.python_version))
        self._startup.add(clock_checks=client.check_clock())
        self._fail_refused(lambda state: described.require_arrival(state.config.workload))

    def _load(self, client: RunnerClient, model: ModelFolder, runner: LaunchedRunner) -> None:
        """Load the model, and compare the GPUs that the runner sees with those that it was given."""
        config, startup = self._plan.config, self._startup
        startup.stage = "load"
        self._emit(events.Loading(model.name))
        planned_uuids = [gpu.uuid for gpu in self._plan.gpus]
        request = LoadRequest(
            model_path=runner.model_path(model.path),
            dtype=config.section.dtype,
            engine_args=config.section.engine_args(),
            weights_seed=config.model.weights_seed if model.random_weights else None,
            trust_remote_code=config.model.trust_remote_code,
            gpu_uuids=planned_uuids,
        )
        startup.runner, span = client.load(
            request,
            timeout_s=config.timeouts.load_s,
            progress=lambda stage: self._emit(events.Loading(model.name, stage)),
        )
        startup.add(spans=span)
        startup.runner_pids |= runner.pids()
        if changes := model.read_again().changes_since(model.files):
            raise ConfigError(
                f"{model.path} changed until it was loaded: {changes}",
                "leave it as it is, and run again",
                cause=Cause.MODEL_CHANGED,
            )
        visible_uuids = startup.runner.visible_gpu_uuids
        if sorted(visible_uuids) != sorted(planned_uuids):
            raise RunnerError(
                f"the runner was given the GPUs {planned_uuids or 'none'} and sees {visible_uuids or 'none'}",
                "see its log",
            )

    def _begin_measuring(self, state: ExperimentState) -> Recording:
        self._current = self._begin(state)
        restarts, gpus = state.config.repeats.restarts, tuple(gpu.uuid for gpu in self._plan.gpus)
        remaining = self._context.remaining()
        self._emit(events.RestartStarted(state.config.label, self._restart + 1, restarts, *remaining, gpus))
        limit_s = state.config.timeouts.experiment_s or math.inf
        self._deadline_ns = self._clock.now_ns() + limit_s * NS_PER_S
        return self._current

    def _begin(self, state: ExperimentState) -> Recording:
        """Take an experiment from `pending`; return its recording, which begins with what the session shares."""
        recording = state.recording(self._startup, self._restart, started_utc=self._clock.now_utc())
        self._served.append((state, recording))
        self._pending.remove(state)
        return recording

    def _check(self) -> None:
        """Raise for a signal that came, or where the current experiment has taken too long."""
        self._check_signals()
        if self._current and self._clock.now_ns() > self._deadline_ns:
            limit_s = self._current.config.timeouts.experiment_s
            raise RunnerError(
                f"the experiment took longer than {limit_s:g} s", "it was stopped (see timeouts.experiment_s)"
            )

    def _fail_refused(self, check: Callable[[ExperimentState], object]) -> None:
        """Fail the pending experiments that `check` refuses; the others go on."""
        for state in tuple(self._pending):
            try:
                check(state)
            except ConfigError as error:
                self._set_failure(self._begin(state), error)

    def _is_interruption(self, error: Exception) -> bool:
        """Whether a runner failed because a scheduler ends the job: it signals runner and coordinator, one by one."""
        if not isinstance(error, RunnerError | LaunchError):
            return False
        self._clock.sleep(SIGNALS_APART_S)
        return self._context.interrupts.urgent

    def _fail(self, error: BaseException) -> None:
        """Put a failure where it belongs: on the current experiment, or on all that the runner was to serve."""
        interrupted = isinstance(error, KeyboardInterrupt)
        if self._current:
            self._set_failure(self._current, error)
        elif interrupted and self._served:
            # Between two experiments: neither is the interrupted one.
            return
        elif self._pending:
            for state in [self._pending[0]] if interrupted else tuple(self._pending):
                self._set_failure(self._begin(state), error)
        else:
            # All experiments are complete: an end that was not clean takes nothing from them.
            self._emit(events.Note(f"after the last pass: {error}"))

    def _set_failure(self, recording: Recording, error: BaseException, stage: str = "") -> None:
        kind, message, exit_code = type(error).__name__, f"a bug in wattdock: {error}", ExitCode.BUG
        if isinstance(error, KeyboardInterrupt):
            kind, message, exit_code = Failure.INTERRUPTED, "interrupted by the user", ExitCode.INTERRUPTED
        elif isinstance(error, WattdockError):
            message, exit_code = str(error), error.exit_code
        log_tail = last_lines(self._log)
        cause = error.cause if isinstance(error, WattdockError) else None
        if isinstance(error, LaunchError | RunnerError):
            cause = cause_of(error, log_tail)
        failure = Failure(
            kind=kind,
            message=message,
            stage=stage or recording.stage,
            exit_code=int(exit_code),
            log_tail=log_tail,
            cause=cause,
            advice=cause and ADVICE.get(cause),
        )
        recording.fail(failure)
        if kind != Failure.INTERRUPTED:
            self._emit(events.ExperimentFailed(recording.config.label, failure.stage, kind, message, failure.cause))

    def save(self, recording: Recording) -> None:
        """Save an experiment after a pass.

        Raises:
            MeterError: A GPU was lost or its counter froze: further passes would have no energy. This one is saved as
                the session ends; should the coordinator be killed first, it is measured again.
        """
        self._startup.runner_pids |= self._pids()
        timeline = self._meter.peek(recording.record.passes[-1].span.end_ns if recording.record.passes else None)
        if loss := _loss(timeline, recording, [gpu.uuid for gpu in self._plan.gpus]):
            raise MeterError(loss)
        next(state for state, served in self._served if served is recording).save(recording, timeline)

    def _save_all(self) -> None:
        """Stop the meter, and save every experiment of the session with the timeline around it.

        Where an experiment has failed already, the meter's failure is added to the message; a lost GPU, of which
        runners die, comes first. An interrupted experiment whose passes have no energy has failed: no resumption can
        measure these passes again.
        """
        timeline = self._stopped()
        for state, recording in self._served:
            failure, loss = recording.record.failure, _loss(timeline, recording, [gpu.uuid for gpu in self._plan.gpus])
            if loss and (failure is None or failure.exit_code != ExitCode.METER):
                message = f"{loss}; then: {failure.message}" if failure else loss
                self._set_failure(recording, MeterError(message), failure.stage if failure else "meter")
            elif meter_failure := _meter_failure(timeline, recording):
                if failure:
                    message = f"{failure.message}; then the meter: {meter_failure}"
                    recording.fail(failure.model_copy(update={"message": message}))
                else:
                    self._set_failure(recording, MeterError(meter_failure), "meter")
            elif (missing := self._metered_gpus and _without_energy(timeline, recording)) and (
                failure is None or failure.kind == Failure.INTERRUPTED
            ):
                self._set_failure(recording, MeterError(missing), "meter")
            state.save(recording, timeline)
            if self._log.exists():
                self._append_log(state.log_path)

    def _stopped(self) -> Timeline:
        """Stop the meter and return its timeline; an empty timeline with the reason where the meter broke off."""
        try:
            timeline = self._meter.stop()
            for gpu in timeline.gpus.values():
                for event in gpu.events:
                    if event.kind in ("card_unused", "gpu_lost"):
                        self._emit(events.Note(f"{gpu.uuid}: {event.message}"))
            return timeline
        except MeterError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  (what ended the session must not be lost behind it)
            self._emit(events.UnexpectedError(traceback.format_exc()))
            reason = f"a bug in wattdock: {error}"
        self._emit(events.Note(f"the meter: {reason}"))
        return Timeline(self._plan.meter.name, 0, 0, reason=reason, broke_off=True)

    def _append_log(self, path: Path) -> None:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with open_data(self._log) as log, os.fdopen(open_regular(path, flags, owned=True), "ab") as gathered:
                while lines := log.readlines(LOG_BYTES):
                    gathered.write(withheld(b"".join(lines).decode(errors="replace")).encode())
        except OSError as error:
            self._emit(events.Note(f"{path}: {error.strerror or error}; the runner's log is lost"))


def _loss(timeline: Timeline, recording: Recording, gpus: Sequence[str]) -> str | None:
    """Return which GPU was lost, or whose counter froze, so that a pass has no energy; None where none was.

    A lost GPU is also why a runner has failed.
    """
    failure = recording.record.failure
    runner_failed = failure is not None and failure.exit_code in (ExitCode.LAUNCH, ExitCode.RUNNER)
    for uuid in recording.runner.used_gpu_uuids if recording.runner else gpus:
        gpu = timeline.gpus.get(uuid)
        if gpu is None or not gpu.losses:
            continue
        curve, spans = EnergyCurve(gpu), [measured.span for measured in recording.record.passes]
        energies = [curve.between(span.start_ns, span.end_ns) for span in spans]
        reasons = [energy.reason for energy in energies if energy.lost]
        reasons += [event.message for event in gpu.losses if runner_failed and event.kind == "gpu_lost"]
        if reasons:
            return f"{uuid}: {reasons[0]}; {SEE_DOCTOR}"
    return None


def _meter_failure(timeline: Timeline, recording: Recording) -> str | None:
    """Return why the meter cannot say what this experiment's GPUs used; None where it did not break off."""
    if timeline.broke_off:
        return timeline.reason
    used = recording.runner.used_gpu_uuids if recording.runner else []
    events = [(uuid, event) for uuid in used if uuid in timeline.gpus for event in timeline.gpus[uuid].events]
    return next((f"{uuid}: {event.message}" for uuid, event in events if event.kind == "broke_off"), None)


def _without_energy(timeline: Timeline, recording: Recording) -> str | None:
    """Return why a measured pass has no energy on a GPU that it used; None where each has, or no GPU is metered."""
    if not recording.runner:
        return None
    for uuid in recording.runner.used_gpu_uuids if recording.record.passes else ():
        if (gpu := timeline.gpus.get(uuid)) is None:
            return f"{uuid}: the meter did not see this GPU; {SEE_DOCTOR}"
        curve = EnergyCurve(gpu)
        for span in (measured.span for measured in recording.record.passes):
            energy = curve.measured(span)
            if energy.energy_j is None:
                return f"{gpu.uuid}: {energy.reason}; {SEE_DOCTOR}"
    return None
