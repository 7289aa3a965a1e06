"""One attempt: a fresh runner that serves experiments of one load group until none is left or one fails.

Turns whatever goes wrong into a failure on a row; what was measured before stays.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock import wire
from wattdock.client import RunnerClient
from wattdock.clock import now_ns
from wattdock.errors import ConfigError, ExitCode, MeterError, RunnerError, WattdockError
from wattdock.launch.protocol import LaunchSpec
from wattdock.measure import Collected, Session, measure, rest
from wattdock.meter.excerpt import excerpt
from wattdock.meter_cards import with_cards
from wattdock.models import resolve_model
from wattdock.prompts import check_prompts
from wattdock.records import INTERRUPTED, NS_PER_S, Span
from wattdock.results.result import Failure

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.interrupts import Interrupts
    from wattdock.launch.protocol import Launcher
    from wattdock.meter.protocol import Meter
    from wattdock.meter.timeline import Timeline
    from wattdock.models import ModelFolder
    from wattdock.preflight import Ready
    from wattdock.progress import Progress
    from wattdock.records import RestartRecord

LOG_TAIL_LINES, LOG_TAIL_BYTES = 20, 64_000
# Kept of the timeline on either side of a span: idle enough to see its edges.
MARGIN_NS = 2 * NS_PER_S
# A span has energy only with a few counter changes before it; the launch comes first.
METER_LEAD_S = 1.0


@dataclass
class Row:
    """One experiment on its way to becoming a stored row.

    Attributes:
        log_path: Where its runners' logs are gathered.
        started_utc: When its first restart began; None before.
    """

    ready: Ready
    log_path: Path
    started_utc: datetime | None = None
    model: ModelFolder | None = None
    restarts: list[RestartRecord] = field(default_factory=list)

    @property
    def config(self) -> ExperimentConfig:
        """The experiment's settings."""
        return self.ready.config

    @property
    def failed(self) -> bool:
        """Whether a restart of it has failed."""
        return any(one.failure for one in self.restarts)

    def wants(self, restart: int) -> bool:
        """Return whether restart number `restart`, from 0, is still to be measured."""
        return restart < self.config.repeats.restarts and not self.failed


class Attempt:
    """Takes rows from `pending` and adds one restart to each that was served.

    Args:
        pending: Rows of one load group; those left afterwards want a fresh runner.
        log: Where this runner's output goes; it is added to each served row's log.
    """

    def __init__(self, pending: deque[Row], restart: int, *, home: Path, log: Path, progress: Progress) -> None:
        self._pending, self._home, self._log, self._progress = pending, home, log, progress
        self._ready = pending[0].ready
        self._opening = Collected(pending[0].config, restart, stage="model")
        self._served: list[tuple[Row, Collected]] = []
        self._current: Collected | None = None

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
                launcher = environment.enter_context(self._ready.launcher(self._progress))
            self._opening.stage = "launch"
            self._serve_with(launcher, model, meter, interrupts)

    def _serve_with(self, launcher: Launcher, model: ModelFolder, meter: Meter, interrupts: Interrupts) -> None:
        metered = bool(self._ready.inventory.gpus)
        time.sleep(METER_LEAD_S if metered else 0)
        asked = tuple(gpu.uuid for gpu in self._ready.gpus)
        self._idle_empty(meter, asked, interrupts)
        began_ns = now_ns()
        runner = launcher.launch(self._launch_spec(model))
        try:
            with RunnerClient(runner, check=interrupts.check) as client:
                self._open(client, began_ns, model)
                session = Session(client, model, meter, self._progress, metered, asked, interrupts.check)
                while self._pending:
                    self._current = self._opening.for_experiment(self._pending[0].config)
                    self._served.append((self._pending.popleft(), self._current))
                    self._progress.say(f"{self._current.config.label}: restart {self._current.restart + 1}")
                    measure(session, self._current)
                    self._current = None
                client.unload()
        finally:
            runner.stop(self._ready.config.timeouts.stop_s)

    def _idle_empty(self, meter: Meter, gpu_uuids: tuple[str, ...], interrupts: Interrupts) -> None:
        """Let the GPUs come to rest after whatever ran before, and meter them without any context."""
        limits = max((row.config.idle for row in self._pending), key=lambda idle: idle.duration_s)
        if not limits.duration_s or not gpu_uuids:
            return
        self._opening.stage = "idle-empty"
        self._progress.say(f"idle-empty: {limits.duration_s:g} s before the runner starts")
        span, unsettled = rest(meter, "idle-empty", limits, gpu_uuids, check=interrupts.check)
        self._opening.spans.append(span)
        for finding in unsettled:
            self._progress.say(f"idle-empty: not at rest after {limits.cap_s:g} s: {finding}")
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
            labels={"experiment": self._ready.config.experiment_id},
        )

    def _open(self, client: RunnerClient, began_ns: int, model: ModelFolder) -> None:
        """Wait for the runner, hold its clock against ours, load the model, and compare the GPUs it sees."""
        config, opening, say = self._ready.config, self._opening, self._progress.say
        described = client.wait_ready(config.timeouts.launch_s)
        opening.spans.append(Span("launch", began_ns, now_ns()))
        say(f"runner: {described.framework} {described.framework_version}, Python {described.python_version}")
        opening.clock_checks.append(client.check_clock())
        self._reject_each(lambda one: wire.check_arrival(one.workload, described))
        opening.stage = "load"
        say(f"loading {model.name}")
        asked = [gpu.uuid for gpu in self._ready.gpus]
        request = wire.load_request(config, model_path=model.path, random_weights=model.random_weights, gpu_uuids=asked)
        opening.loaded = client.load(
            request, timeout_s=config.timeouts.load_s, progress=lambda stage: say(f"  {stage}")
        )
        opening.spans.extend(opening.loaded.spans)
        seen = [gpu.uuid for gpu in opening.loaded.environment.visible_gpus]
        if sorted(seen) != sorted(asked):
            raise RunnerError(f"the runner was given the GPUs {asked or 'none'} and sees {seen or 'none'}; see its log")

    def _reject_each(self, check: Callable[[ExperimentConfig], None]) -> None:
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
        elif self._pending:
            failure = self._failure(kind, message, exit_code, self._opening.stage)
            for row in [self._pending[0]] if kind == INTERRUPTED else tuple(self._pending):
                self._pending.remove(row)
                self._fail(row, failure)
        elif kind != INTERRUPTED:
            # All rows are complete: an end that was not clean takes nothing from them.
            self._progress.say(f"after the last pass: {message}")

    def _fail(self, row: Row, failure: Failure) -> None:
        collected = self._opening.for_experiment(row.config)
        collected.failure = failure
        self._served.append((row, collected))

    def _failure(self, kind: str, message: str, exit_code: ExitCode, stage: str) -> Failure:
        return Failure(kind=kind, message=message, stage=stage, exit_code=int(exit_code), log_tail=_tail(self._log))

    def _hand_over(self, meter: Meter) -> None:
        """Stop the meter and give every served row what was seen of it."""
        timeline: Timeline | None = None
        try:
            timeline = with_cards(meter.stop(), home=self._home, progress=self._progress.say)
        except MeterError as error:
            self._progress.say(f"the meter: {error}")
        for row, collected in self._served:
            row.started_utc = row.started_utc or collected.started_utc
            row.restarts.append(collected.record(timeline and excerpt(timeline, _intervals(collected))))
            if self._log.exists():
                with row.log_path.open("ab") as gathered:
                    gathered.write(self._log.read_bytes())


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _intervals(collected: Collected) -> tuple[tuple[int, int], ...]:
    """Return what of the timeline this experiment keeps: around its spans, which may be far from the load's."""
    spans = (*collected.spans, *(one.generated.span for one in collected.passes))
    return tuple((span.start_ns - MARGIN_NS, span.end_ns + MARGIN_NS) for span in spans)
