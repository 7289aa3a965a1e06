"""One session: a fresh runner serves experiments of one load group until none is left or one fails.

Whatever goes wrong becomes the failure of an experiment; what was measured before stays. `loaded` starts the runner,
`failures` says what an error means, `ExperimentState` saves.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from wattdock.errors import Cause, ConfigError, LaunchError, MeterError, RunnerError, WattdockError
from wattdock.execution.evaluation import evaluate
from wattdock.execution.experiment import require_same_model
from wattdock.execution.failures import energy_loss, failure_of, lost_energy, require_metered
from wattdock.execution.loaded import metered_gpus, ready_runner
from wattdock.execution.recording import Recording
from wattdock.files import last_lines
from wattdock.inputs import check_prompts, resolve_model
from wattdock.metering import Timeline
from wattdock.records import Failure, RestartRecord
from wattdock.study import events

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from wattdock.execution.context import RunContext
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.loaded import LoadedRunner
    from wattdock.inputs import ModelFolder

# Seconds between the signals that a scheduler sends to the processes of a job, one after the other.
SIGNALS_APART_S = 0.2
# The same of the processes on several nodes.
NODES_SIGNALS_APART_S = 3.0


class Session:
    """A fresh runner, and a restart of each experiment that it serves; what goes wrong becomes an experiment's failure.

    Args:
        pending: Experiments of one load group. The session takes from it those that it serves or that fail; the others
            need a fresh runner.
        restart: Number of the restart, from 0.
    """

    def __init__(self, context: RunContext, pending: deque[ExperimentState], restart: int) -> None:
        self._context, self._pending, self._restart = context, pending, restart
        self._emit, self._clock = context.emit, context.machine.clock
        self._plan = pending[0].plan
        self._log = context.scratch / f"{self._plan.config.experiment_id[:16]}-{restart}.log"
        # What all experiments of the session share: launch, load, the first idle.
        record = RestartRecord(restart, started_utc=self._clock.now_utc(), clock=str(self._clock.identity()))
        self._startup = Recording(self._plan.config, record, stage="model")
        self._served: list[tuple[ExperimentState, Recording]] = []
        self._current: Recording | None = None
        self._meter = context.machine.new_meter(self._plan)
        self._stack = ExitStack()

    def loaded_experiments(self) -> Iterator[tuple[LoadedRunner, Recording]]:
        """Launch and load, and yield the recording of each experiment in turn, to be measured on the loaded runner."""
        self._meter.start()
        require_metered(self._meter, metered_gpus(self._plan))
        if self._plan.inventory.gpus:
            # A limit may have changed since the run began.
            current = self._context.machine.inventory()
            for state in self._pending:
                state.plan = state.plan.on(current)
            self._plan = self._pending[0].plan
        model = self._resolve_model()
        if not self._pending:
            return
        ready = ready_runner(
            self._plan,
            model,
            self._startup,
            context=self._context,
            meter=self._meter,
            idle_s=max(state.config.idle.duration_s for state in self._pending),
            log=self._log,
        )
        # The session's stack closes the runner: a generator left by an exception is closed late.
        description, load = self._stack.enter_context(ready)
        self._fail_refused(lambda state: description.require_arrival(state.config.workload))
        if not self._pending:
            return
        runner = load()
        while self._pending:
            if self._context.folder.broken:
                return
            self._context.interrupts.check()
            state = self._pending[0]
            self._current, config = self._begin(state), state.config
            restarts, remaining = config.repeats.restarts, self._context.remaining()
            number, gpus = self._restart + 1, tuple(self._plan.gpu_uuids)
            self._emit(events.RestartStarted(config.label, number, restarts, *remaining, gpus))
            yield runner, self._current
            self._current = None
        # What questions leave in an engine, such as graphs and caches, no measured pass meets.
        for _, recording in self._served:
            if not recording.record.failure:
                evaluate(runner, recording)
        runner.client.unload()

    def save(self) -> None:
        """Save the current experiment after a pass.

        Raises:
            MeterError: A GPU was lost or its counter froze: further passes would have no energy. This one is saved as
                the session ends; should the coordinator be killed first, it is measured again.
        """
        state, recording = self._served[-1]
        timeline = self._meter.peek(recording.record.passes[-1].span.end_ns)
        if loss := lost_energy(timeline, recording, self._plan.gpu_uuids):
            raise MeterError(loss)
        state.save(recording, timeline)

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
            if isinstance(failure, RunnerError | LaunchError):
                # A scheduler that ends a job signals the runner and the coordinator one by one.
                self._clock.sleep(NODES_SIGNALS_APART_S if failure.cause is Cause.NODE else SIGNALS_APART_S)
                if self._context.interrupts.urgent:
                    interruption = KeyboardInterrupt()
                    self._fail(interruption)
                    raise interruption from failure
            if not isinstance(failure, WattdockError):
                self._emit(events.UnexpectedError(traceback.format_exc()))
            self._fail(failure)
        finally:
            timeline, metered = self._stop_meter(), bool(metered_gpus(self._plan))
            for state, recording in self._served:
                if loss := energy_loss(timeline, recording, self._plan.gpu_uuids, metered=metered):
                    self._set_failure(recording, loss, default_stage="meter")
                state.save(recording, timeline)
                try:
                    state.append_log(self._log)
                except OSError as lost:
                    self._emit(events.Note(f"{state.log_path}: {lost.strerror or lost}; the runner's log is lost"))
        return True

    def _resolve_model(self) -> ModelFolder:
        """Return the model's folder; fail experiments that measured with another one, or whose prompts it refuses."""
        with self._context.interrupts.interruptible():
            config, say = self._plan.config, events.notes(self._emit)
            model = resolve_model(config.model, home=self._context.home, progress=say, config=config)

        def accept(state: ExperimentState) -> None:
            require_same_model(state.config, model, state.measured_on)
            is_first, state.model = state.model is None, model
            if is_first and not state.config.command:
                check_prompts(state.config, has_tokenizer=model.has_tokenizer, vocab_size=model.vocab_size)

        self._fail_refused(accept)
        return model

    def _begin(self, state: ExperimentState) -> Recording:
        """Take an experiment from `pending`; return its recording, which begins with what the session shares."""
        now = self._clock
        recording = state.recording(self._startup, self._restart, started_utc=now.now_utc(), started_ns=now.now_ns())
        self._served.append((state, recording))
        self._pending.remove(state)
        return recording

    def _fail_refused(self, accept: Callable[[ExperimentState], None]) -> None:
        """Fail the pending experiments that `accept` refuses; the others go on."""
        for state in tuple(self._pending):
            try:
                accept(state)
            except ConfigError as error:
                self._set_failure(self._begin(state), error)

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

    def _set_failure(self, recording: Recording, error: BaseException, *, default_stage: str = "") -> None:
        earlier = recording.record.failure
        stage = (earlier.stage if earlier else default_stage) or recording.stage
        failure = failure_of(error, stage, log=last_lines(self._log))
        recording.fail(failure)
        if failure.kind != Failure.INTERRUPTED:
            reason = (failure.stage, failure.kind, failure.message, failure.cause)
            self._emit(events.ExperimentFailed(recording.config.label, *reason))

    def _stop_meter(self) -> Timeline:
        """Stop the meter and return its timeline; an empty timeline with the reason where the meter broke off."""
        try:
            timeline = self._meter.stop()
        except Exception as error:  # noqa: BLE001  (what ended the session must not be lost behind it)
            reason = str(error)
            if not isinstance(error, MeterError):
                self._emit(events.UnexpectedError(traceback.format_exc()))
                reason = f"a bug in wattdock: {error}"
            self._emit(events.Note(f"the meter: {reason}"))
            return Timeline(self._plan.meter.name, 0, 0, reason=reason, broke_off=True)
        for gpu in timeline.gpus.values():
            for event in gpu.events:
                if event.kind == "gpu_lost":
                    self._emit(events.Note(f"{gpu.uuid}: {event.message}"))
        return timeline
