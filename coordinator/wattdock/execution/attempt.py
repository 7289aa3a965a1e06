"""One attempt: a fresh runner that serves experiments of one load group until none is left or one fails.

Turns whatever goes wrong into a failure on a row; what was measured before stays.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import traceback
from typing import TYPE_CHECKING

from wattdock.clock import now_ns
from wattdock.errors import ConfigError, ExitCode, MeterError, RunnerError, WattdockError
from wattdock.execution.failures import cause_of, oom_kills
from wattdock.execution.passes import Collected, Session, measure, rest
from wattdock.files import last_lines
from wattdock.host import folders, inventory
from wattdock.inputs import check_prompts, resolve_model
from wattdock.launch import LaunchSpec
from wattdock.metering import Span, Timeline, with_cards
from wattdock.records import INTERRUPTED, Failure
from wattdock.runner import PROTOCOL_VERSION, RunnerClient, check_arrival, load_request

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from pathlib import Path

    from wattdock.analysis import AtRest
    from wattdock.config import ExperimentConfig
    from wattdock.execution.interrupts import Interrupts
    from wattdock.execution.progress import Progress
    from wattdock.execution.row import Row
    from wattdock.inputs import ModelFolder
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter

# A span has energy only with a few counter changes before it; the launch comes first.
METER_LEAD_S = 1.0


class Attempt:
    """Takes rows from `pending` and adds one restart to each that was served.

    Args:
        pending: Rows of one load group; those left afterwards want a fresh runner.
        log: Where this runner's output goes; it is added to each served row's log.
        standing: Tells how far the whole study is.
        lease_fds: Leases that the runner's keeper is to hold too, until nothing of the runner is left.
        first_rest: What GPUs were like before the run's first runner; the same for all of its attempts.
    """

    def __init__(
        self,
        pending: deque[Row],
        restart: int,
        *,
        home: Path,
        log: Path,
        progress: Progress,
        standing: Callable[[], str] = str,
        lease_fds: tuple[int, ...] = (),
        first_rest: dict[str, AtRest],
    ) -> None:
        self._pending, self._home, self._log, self._progress = pending, home, log, progress
        self._standing, self._lease_fds = standing, lease_fds
        self._first_rest = first_rest
        self._ready = pending[0].ready
        self._opening = Collected(pending[0].config, restart, stage="model")
        self._served: list[tuple[Row, Collected, str]] = []
        self._current: Collected | None = None
        self._deadline_s = math.inf
        self._oom_kills = oom_kills()

    def run(self, interrupts: Interrupts) -> None:
        """Serve the rows; every error ends on a row, none leaves here but an interruption.

        Raises:
            KeyboardInterrupt: The run was interrupted; noted as the current row's failure.
        """
        meter = self._ready.new_meter()
        try:
            self._serve(meter, interrupts)
        except KeyboardInterrupt:
            self._note(INTERRUPTED, "interrupted by the user", ExitCode.INTERRUPTED)
            raise
        except WattdockError as error:
            self._note(type(error).__name__, str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001  (a bug in one experiment must not cost the others)
            self._progress.say(traceback.format_exc())
            self._note(type(error).__name__, f"a bug in wattdock: {error}", ExitCode.BUG)
        finally:
            self._hand_over(meter)

    def _serve(self, meter: Meter, interrupts: Interrupts) -> None:
        self._look_again()
        meter.start()
        with interrupts.allowed():
            model = resolve_model(self._ready.config.model, home=self._home, progress=self._progress.say)
        for row in self._pending:
            row.model = model
        self._reject_each(
            lambda config: check_prompts(config.prompts, has_tokenizer=model.has_tokenizer, vocab_size=model.vocab_size)
        )
        if not self._pending:
            return
        self._opening.stage = "environment"
        with contextlib.ExitStack() as environment:
            with interrupts.allowed():
                launcher = environment.enter_context(self._ready.launcher(self._progress.say))
            self._opening.stage = "launch"
            self._serve_with(launcher, model, meter, interrupts)

    def _look_again(self) -> None:
        """Take the GPUs as this runner finds them: a limit may have changed since the run began."""
        if self._ready.inventory.gpus:
            found = inventory()
            for row in self._pending:
                row.ready = row.ready.on(found)
            self._ready = self._pending[0].ready

    def _serve_with(self, launcher: Launcher, model: ModelFolder, meter: Meter, interrupts: Interrupts) -> None:
        metered = bool(self._ready.inventory.gpus) and not self._ready.meter.no_gpu_reason
        time.sleep(METER_LEAD_S if metered else 0)
        watched = tuple(gpu.uuid for gpu in self._ready.gpus) if metered else ()
        self._idle_empty(meter, watched, interrupts)
        began_ns = now_ns()
        check = functools.partial(self._check, interrupts)
        runner = launcher.launch(self._launch_spec(model))
        try:
            with RunnerClient(runner, check=check) as client:
                self._open(client, began_ns, model, runner.model_path(model.path))
                self._opening.own_pids |= runner.pids()
                keep = functools.partial(self._keep, meter, runner)
                session = Session(
                    client=client,
                    model=model,
                    meter=meter,
                    progress=self._progress,
                    metered=metered,
                    gpu_uuids=watched,
                    interrupts=interrupts,
                    check=check,
                    keep=keep,
                    pids=runner.pids,
                )
                while self._pending and not self._pending[0].folder.broken:
                    interrupts.check()
                    self._measure_next(session)
                client.unload()
        finally:
            runner.stop(self._ready.config.timeouts.stop_s)
            if not runner.stopped:
                self._progress.say(f"the runner {runner.exit_reason()}")

    def _measure_next(self, session: Session) -> None:
        row = self._pending[0]
        restart = self._opening.restart
        self._current = self._opening.for_experiment(row.config, row.measured(restart))
        self._served.append((row, self._current, row.folder.new_record_name(row.config.experiment_id, restart)))
        self._pending.popleft()
        self._progress.say(f"{row.config.label}: restart {restart + 1} ({self._standing()})")
        self._deadline_s = time.monotonic() + (row.config.timeouts.experiment_s or math.inf)
        measure(session, self._current)
        self._current, self._deadline_s = None, math.inf

    def _check(self, interrupts: Interrupts) -> None:
        """Raise for a signal that came, or where the experiment being served has taken too long."""
        interrupts.check()
        if time.monotonic() > self._deadline_s and self._current:
            limit_s = self._current.config.timeouts.experiment_s
            raise RunnerError(
                f"the experiment took longer than {limit_s:g} s; it was stopped (see timeouts.experiment_s)"
            )

    def _keep(self, meter: Meter, runner: LaunchedRunner, collected: Collected) -> None:
        """Make what was measured of the row being served durable."""
        row, _, name = self._served[-1]
        self._opening.own_pids |= runner.pids()
        row.keep(name, collected, self._with_cards(meter.peek(), say=_silent))

    def _with_cards(self, timeline: Timeline, *, say: Callable[[str], None]) -> Timeline:
        return with_cards(timeline, self._ready.inventory.gpus, home=self._home, progress=say)

    def _idle_empty(self, meter: Meter, gpu_uuids: tuple[str, ...], interrupts: Interrupts) -> None:
        """Let the GPUs come to rest after whatever ran before, and meter them without any context."""
        limits = max((row.config.idle for row in self._pending), key=lambda idle: idle.duration_s)
        if not limits.duration_s or not gpu_uuids:
            return
        self._opening.stage = "idle-empty"
        self._progress.say(f"idle-empty: {limits.duration_s:g} s before the runner starts")
        check, say = interrupts.check, self._progress.say
        span = rest(meter, "idle-empty", limits, gpu_uuids, check=check, say=say, first=self._first_rest)
        self._opening.spans.append(span)
        self._opening.stage = "launch"

    def _launch_spec(self, model: ModelFolder) -> LaunchSpec:
        gpus = self._ready.gpus
        return LaunchSpec(
            backend=self._ready.config.backend,
            runner_dir=self._ready.runner_dir,
            log_path=self._log,
            gpu_indices=tuple(gpu.index for gpu in gpus),
            gpu_uuids=tuple(gpu.uuid for gpu in gpus),
            model_path=model.path,
            labels={
                "experiment": self._ready.config.experiment_id,
                "run": self._log.parent.name,
                "protocol": str(PROTOCOL_VERSION),
            },
            alive_lock=self._log.parent / folders.SCRATCH_LOCK,
            lease_fds=self._lease_fds,
        )

    def _open(self, client: RunnerClient, began_ns: int, model: ModelFolder, model_path: Path) -> None:
        """Wait for the runner, hold its clock against ours, load the model, and compare the GPUs it sees."""
        config, opening, say = self._ready.config, self._opening, self._progress.say
        described = client.wait_ready(config.timeouts.launch_s)
        opening.spans.append(Span("launch", began_ns, now_ns()))
        say(f"runner: {described.framework} {described.framework_version}, Python {described.python_version}")
        opening.clock_checks.append(client.check_clock())
        self._reject_each(lambda one: check_arrival(one.workload, described))
        opening.stage = "load"
        say(f"loading {model.name}")
        asked = [gpu.uuid for gpu in self._ready.gpus]
        request = load_request(config, model_path=model_path, random_weights=model.random_weights, gpu_uuids=asked)
        opening.runner, spans = client.load(
            request, timeout_s=config.timeouts.load_s, progress=lambda stage: say(f"  {stage}")
        )
        opening.spans.extend(spans)
        seen = [gpu.uuid for gpu in opening.runner.visible_gpus]
        if sorted(seen) != sorted(asked):
            raise RunnerError(f"the runner was given the GPUs {asked or 'none'} and sees {seen or 'none'}; see its log")

    def _reject_each(self, check: Callable[[ExperimentConfig], object]) -> None:
        """Fail the pending rows that `check` refuses; the others go on."""
        for row in tuple(self._pending):
            try:
                check(row.config)
            except ConfigError as error:
                self._pending.remove(row)
                self._fail(row, self._failure(type(error).__name__, str(error), error.exit_code, self._opening.stage))

    def _note(self, kind: str, message: str, exit_code: ExitCode) -> None:
        """Put a failure where it belongs: on the row being served, or on all that the runner was to serve."""
        if self._current:
            self._current.failure = self._failure(kind, message, exit_code, self._current.stage)
        elif kind == INTERRUPTED and self._served:
            # Between two experiments: neither is the one that was interrupted.
            return
        elif self._pending:
            failure = self._failure(kind, message, exit_code, self._opening.stage)
            for row in [self._pending[0]] if kind == INTERRUPTED else tuple(self._pending):
                self._pending.remove(row)
                self._fail(row, failure)
        else:
            # All rows are complete: an end that was not clean takes nothing from them.
            self._progress.say(f"after the last pass: {message}")

    def _fail(self, row: Row, failure: Failure) -> None:
        collected = self._opening.for_experiment(row.config)
        collected.failure = failure
        name = row.folder.new_record_name(row.config.experiment_id, collected.restart)
        self._served.append((row, collected, name))

    def _failure(self, kind: str, message: str, exit_code: ExitCode, stage: str) -> Failure:
        tail = last_lines(self._log)
        cause = None
        if exit_code in (ExitCode.LAUNCH, ExitCode.RUNNER):
            cause = cause_of(message, tail, oom_kills=oom_kills() - self._oom_kills)
        told = {"cause": cause.name, "advice": cause.advice} if cause else {}
        return Failure(kind=kind, message=message, stage=stage, exit_code=int(exit_code), log_tail=tail, **told)

    def _hand_over(self, meter: Meter) -> None:
        """Stop the meter and give every served row what was seen of it.

        A failure that a row has already stays its failure; the meter's is told behind it.
        """
        timeline = self._stopped(meter)
        for row, collected, name in self._served:
            if broken := _broke_off(timeline, collected):
                first = collected.failure
                collected.failure = (
                    first.model_copy(update={"message": f"{first.message}; then the meter: {broken}"})
                    if first
                    else self._failure(MeterError.__name__, broken, ExitCode.METER, "meter")
                )
            row.keep(name, collected, timeline)
            if self._log.exists():
                self._add_log(row.log_path)

    def _stopped(self, meter: Meter) -> Timeline:
        """Return what the meter saw; one without anything but the reason where it cannot tell."""
        try:
            return self._with_cards(meter.stop(), say=self._progress.say)
        except MeterError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  (what ended the attempt, and its rows, must not be lost behind it)
            self._progress.say(traceback.format_exc())
            reason = f"a bug in wattdock: {error}"
        self._progress.say(f"the meter: {reason}")
        return Timeline(self._ready.meter.name, 0, 0, reason=reason, broke_off=True)

    def _add_log(self, gathered: Path) -> None:
        try:
            with gathered.open("ab") as file:
                file.write(self._log.read_bytes())
        except OSError as error:
            self._progress.say(f"{gathered}: {error.strerror or error}; the runner's log is not kept")


def _broke_off(timeline: Timeline, collected: Collected) -> str | None:
    """Why the meter cannot tell what this experiment's GPUs used, where it broke off; None where it did not."""
    if timeline.broke_off:
        return timeline.reason
    used = collected.runner.used_gpu_uuids if collected.runner else []
    events = [(uuid, event) for uuid in used if uuid in timeline.gpus for event in timeline.gpus[uuid].events]
    return next((f"{uuid}: {event.message}" for uuid, event in events if event.kind == "broke_off"), None)


def _silent(message: str) -> None:
    """Say nothing: what a card lacks is told once, as the meter stops."""
