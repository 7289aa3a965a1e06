"""One attempt: a fresh runner that serves experiments of one load group until none is left or one fails.

Turns whatever goes wrong into a failure on a row; what was measured before stays.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock import wire
from wattdock.client import RunnerClient
from wattdock.clock import now_ns
from wattdock.errors import ExitCode, MeterError, RunnerError, WattdockError
from wattdock.launch.protocol import LaunchSpec
from wattdock.measure import Collected, Session, measure
from wattdock.meter.excerpt import excerpt
from wattdock.models import resolve_model
from wattdock.prompts import check_prompts
from wattdock.records import NS_PER_S, Span
from wattdock.results.result import Failure

if TYPE_CHECKING:
    from collections import deque
    from datetime import datetime
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.meter.protocol import Meter
    from wattdock.meter.timeline import Timeline
    from wattdock.models import ModelFolder
    from wattdock.preflight import Ready
    from wattdock.progress import Progress
    from wattdock.records import RestartRecord

INTERRUPTED = "Interrupted"
LOG_TAIL_LINES = 20
# Kept of the timeline on either side of a span: idle enough to see its edges.
MARGIN_NS = 2 * NS_PER_S


@dataclass
class Row:
    """One experiment on its way to becoming a stored row.

    Attributes:
        log_path: Where its runners' logs are gathered.
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


def attempt(pending: deque[Row], restart: int, *, home: Path, log: Path, progress: Progress) -> None:
    """Take rows from `pending` and add one restart to each that was served.

    Where the runner cannot be started or loaded, all of them are served by the same failure.

    Args:
        log: Where this runner's output goes; it is added to each served row's log.

    Raises:
        KeyboardInterrupt: The run was interrupted; noted as the current row's failure.
    """
    opening = Collected(pending[0].config, restart, stage="environment")
    served: list[tuple[Row, Collected]] = []
    meter = pending[0].ready.new_meter()
    failure: Failure | None = None
    timeline: Timeline | None = None
    meter.start()
    try:
        _serve(pending, served, opening, meter, home=home, log=log, progress=progress)
    except KeyboardInterrupt:
        failure = _failure(INTERRUPTED, "interrupted by the user", ExitCode.INTERRUPTED, log)
        raise
    except WattdockError as error:
        failure = _failure(type(error).__name__, str(error), error.exit_code, log)
    except Exception as error:  # noqa: BLE001  (a bug in one experiment must not cost the others)
        progress.say(traceback.format_exc())
        failure = _failure(type(error).__name__, f"a bug in wattdock: {error}", ExitCode.BUG, log)
    finally:
        try:
            timeline = meter.stop()
        except MeterError as error:
            failure = failure or _failure(type(error).__name__, str(error), error.exit_code, log)
        if failure:
            _note(failure, pending, served, opening)
        for row, collected in served:
            row.started_utc = row.started_utc or collected.started_utc
            row.restarts.append(collected.record(timeline and excerpt(timeline, _intervals(collected))))
            _append(log, row.log_path)


def _serve(
    pending: deque[Row],
    served: list[tuple[Row, Collected]],
    opening: Collected,
    meter: Meter,
    *,
    home: Path,
    log: Path,
    progress: Progress,
) -> None:
    ready = pending[0].ready
    launcher = ready.launcher(progress)
    opening.stage = "model"
    model = resolve_model(ready.config.model, home=home, progress=progress.say)
    for row in pending:
        row.model = model
        check_prompts(row.config.prompts, has_tokenizer=model.has_tokenizer, vocab_size=model.vocab_size)
    opening.stage = "launch"
    began_ns = now_ns()
    spec = LaunchSpec(
        backend=ready.config.backend,
        runner_dir=ready.runner_dir,
        log_path=log,
        gpu_indices=tuple(gpu.index for gpu in ready.gpus),
        gpu_uuids=tuple(gpu.uuid for gpu in ready.gpus),
        model_path=model.path,
        labels={"experiment": ready.config.experiment_id},
    )
    runner = launcher.launch(spec)
    try:
        with RunnerClient(runner) as client:
            _open(client, opening, began_ns, ready, model, progress)
            session = Session(client, model, meter, progress, metered=bool(ready.inventory.gpus))
            while pending:
                collected = opening.for_experiment(pending[0].config)
                served.append((pending.popleft(), collected))
                progress.say(f"{collected.config.label}: restart {opening.restart + 1}")
                measure(session, collected)
            client.unload()
    finally:
        runner.stop(ready.config.timeouts.stop_s)


def _open(
    client: RunnerClient, opening: Collected, began_ns: int, ready: Ready, model: ModelFolder, progress: Progress
) -> None:
    """Wait for the runner, hold its clock against ours, load the model, and compare the GPUs it sees."""
    config = ready.config
    described = client.wait_ready(config.timeouts.launch_s)
    opening.spans.append(Span("launch", began_ns, now_ns()))
    progress.say(f"runner: {described.framework} {described.framework_version}, Python {described.python_version}")
    opening.clock_checks.append(client.check_clock())
    opening.stage = "load"
    progress.say(f"loading {model.name}")
    asked = [gpu.uuid for gpu in ready.gpus]
    request = wire.load_request(config, model_path=model.path, random_weights=model.random_weights, gpu_uuids=asked)
    opening.loaded = client.load(
        request, timeout_s=config.timeouts.load_s, progress=lambda stage: progress.say(f"  {stage}")
    )
    opening.spans.extend(opening.loaded.spans)
    seen = [gpu.uuid for gpu in opening.loaded.environment.visible_gpus]
    if sorted(seen) != sorted(asked):
        raise RunnerError(f"the runner was given the GPUs {asked or 'none'} and sees {seen or 'none'}; see its log")


def _note(failure: Failure, pending: deque[Row], served: list[tuple[Row, Collected]], opening: Collected) -> None:
    """Put the failure where it belongs: on the row being served, or on all that the runner was to serve."""
    if not served:
        stop = 1 if failure.kind == INTERRUPTED else len(pending)
        served.extend((row, opening.for_experiment(row.config)) for row in [pending.popleft() for _ in range(stop)])
        for _, collected in served:
            collected.failure = failure.model_copy(update={"stage": opening.stage})
    else:
        collected = served[-1][1]
        collected.failure = failure.model_copy(update={"stage": collected.stage})


def _failure(kind: str, message: str, exit_code: ExitCode, log: Path) -> Failure:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    tail = "\n".join(lines[-LOG_TAIL_LINES:])
    return Failure(kind=kind, message=message, stage="", exit_code=int(exit_code), log_tail=tail)


def _intervals(collected: Collected) -> tuple[tuple[int, int], ...]:
    """Return what of the timeline this experiment keeps: around its spans, which may be far from the load's."""
    spans = (*collected.spans, *(one.generated.span for one in collected.passes))
    return tuple((span.start_ns - MARGIN_NS, span.end_ns + MARGIN_NS) for span in spans)


def _append(log: Path, gathered: Path) -> None:
    if log.exists():
        with gathered.open("ab") as target:
            target.write(log.read_bytes())
