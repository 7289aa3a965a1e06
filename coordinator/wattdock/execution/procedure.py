"""The measuring procedure for one experiment on a loaded runner: idle, warm-up, measured passes, idle again.

Knows no launcher and no files: it is given a connected client and a running meter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattdock.analysis import steadiness
from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, RunnerError
from wattdock.execution.events import IdleStarted, Note, PassFinished, PassStarted, TokensSeen, WarmUpFinished
from wattdock.host import processes
from wattdock.inputs import load_prompts
from wattdock.metering import EnergyCurve, Span
from wattdock.records import PassRecord, RestartRecord, WarmUpSample
from wattdock.runner import PassRequest
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.clock import Clock
    from wattdock.config import ExperimentConfig, IdleSpec
    from wattdock.execution.events import Emit
    from wattdock.execution.experiment import ExperimentState
    from wattdock.execution.interrupts import Interrupts
    from wattdock.inputs import ModelFolder, PromptSet
    from wattdock.metering import Meter, Timeline
    from wattdock.records import Failure, RunnerEnvironment
    from wattdock.runner import Heartbeat, RunnerClient

# How long the runner stays drained after a pass, so that the counter's next tick shows the pass's end.
SETTLE_S = 1.0
# Passes of a steady warm-up that make up its window: enough to see a slope, long enough to average steps.
PASSES_PER_WINDOW = 4
# How often it is checked whether GPUs are idle, and meanwhile whether a signal has come.
IDLE_POLL_S, SIGNAL_POLL_S = 3.0, 0.5


@dataclass
class Recording:
    """The growing record of one restart of one experiment; survives whatever ends the restart.

    Attributes:
        record: What was measured so far, without the meter's timeline.
        name: The record's name in the study's folder.
        stage: What is being done now, in words; a failure names it.
        runner: What the runner says of its own environment; None before it has loaded the model.
        runner_pids: Processes of the runner; one set for all experiments that the runner serves.
        prompts_sent: Hashes of the prompts that the runner was sent; one set for all experiments that it serves.
    """

    experiment: ExperimentState
    record: RestartRecord
    name: str = ""
    stage: str = "launch"
    runner: RunnerEnvironment | None = None
    runner_pids: set[int] = field(default_factory=set)
    prompts_sent: set[int | None] = field(default_factory=set)

    @property
    def config(self) -> ExperimentConfig:
        """The experiment's settings."""
        return self.experiment.config

    def add(self, **values: object) -> None:
        """Append a value to each named sequence of the record."""
        longer: dict[str, Any] = {name: (*getattr(self.record, name), value) for name, value in values.items()}
        self.record = dataclasses.replace(self.record, **longer)

    def note_rendered(self, prompts: PromptSet, rendered_sha256: str | None) -> None:
        """Note what the texts of a pass, warm-up included, were rendered to.

        Raises:
            ConfigError: In an earlier restart, or an earlier run, they were rendered to something else.
        """
        if rendered_sha256 is None:
            return
        sent = prompts.texts_sha256
        for record in (*(saved.record for saved in self.experiment.saved.values()), self.record):
            if record.rendered.get(sent, rendered_sha256) != rendered_sha256:
                raise ConfigError(
                    f"restart {self.record.restart + 1} would send other prompts than restart {record.restart + 1}: "
                    f"the chat template or the tokenizer of {self.config.model.label} has changed, or renders "
                    "something that changes",
                    "put it back, or run the study as a new one",
                    cause=Cause.PROMPTS_CHANGED,
                )
        self.record = dataclasses.replace(self.record, rendered={**self.record.rendered, sent: rendered_sha256})

    def fail(self, failure: Failure | None) -> None:
        """Set why the restart ended early."""
        self.record = dataclasses.replace(self.record, failure=failure)

    def with_timeline(self, timeline: Timeline) -> RestartRecord:
        """Return the record with the timeline around it and the runner's processes."""
        return dataclasses.replace(self.record, timeline=timeline, runner_pids=frozenset(self.runner_pids))


def new_record(restart: int, clock: Clock) -> RestartRecord:
    """Return the record of a restart that begins now."""
    return RestartRecord(restart, started_utc=clock.now_utc(), clock=str(clock.identity()))


@dataclass(frozen=True)
class MeasuringProcedure:
    """Measures experiments, one after another, on one loaded runner.

    Attributes:
        gpu_uuids: The runner's GPUs that the meter watches; empty where there is no energy to measure.
        check: Raises where the run is to end; called at least twice a second while the procedure waits.
        save: Writes a recording to disk; called after each measured pass.
        pids: Returns the runner's processes, as this host numbers them.
        lease_fault: Returns why others may be measuring all the same; None where they cannot.
        template_time_s: The present that chat templates are told unless the settings say it, in seconds since 1970.
    """

    client: RunnerClient
    model: ModelFolder
    meter: Meter
    gpu_uuids: tuple[str, ...]
    clock: Clock
    emit: Emit
    interrupts: Interrupts
    check: Callable[[], None]
    save: Callable[[Recording], None]
    pids: Callable[[], frozenset[int]]
    lease_fault: Callable[[], str | None]
    template_time_s: int | None = None

    def measure(self, recording: Recording) -> None:
        """Warm up and run every measured pass, adding to `recording` as it goes.

        Raises:
            WattdockError: A pass failed; `recording` holds those before it.
        """
        # An earlier, interrupted run may have measured some passes of this restart.
        passes = set(range(recording.config.repeats.passes)) - recording.experiment.measured(recording.record.restart)
        self._idle(recording, "idle-loaded-before")
        self._warm_up(recording)
        for number in sorted(passes):
            self._measure_pass(recording, number)
        self._idle(recording, "idle-loaded-after")

    def _idle(self, recording: Recording, name: str) -> None:
        limits = recording.config.idle
        if limits.duration_s and self.gpu_uuids:
            recording.stage = name
            span, _ = wait_until_idle(
                name,
                limits,
                self.gpu_uuids,
                meter=self.meter,
                clock=self.clock,
                emit=self.emit,
                check=self.check,
            )
            recording.add(spans=span)

    def _measure_pass(self, recording: Recording, number: int) -> None:
        workload, stage = recording.config.total_workload, f"pass {number + 1}/{recording.config.repeats.passes}"
        recording.stage = f"{stage}, not begun"
        self.check()
        recording.stage = stage
        with self.interrupts.patient():
            measured = self._run_pass(recording, number, workload.requests_per_pass, workload.min_duration_s)
        death = self._check_clock(recording)
        recording.add(passes=dataclasses.replace(measured, clock_checked=not death))
        others = measured.cpu_others_share
        self.emit(PassFinished(stage, measured.output_tokens, measured.span.duration_s, others))
        self.save(recording)
        if death:
            raise death

    def _check_clock(self, recording: Recording) -> RunnerError | None:
        """Check after a pass that the runner reads the host's clock; return the error of a runner that has died.

        Its death does not cost the pass, which is recorded as unchecked; the audit says so.

        Raises:
            ClockError: The runner reads another clock: the pass does not count.
        """
        try:
            recording.add(clock_checks=self.client.check_clock())
        except RunnerError as error:
            return error
        return None

    def _warm_up(self, recording: Recording) -> None:
        """Run the unmeasured passes, whose prompts follow those of all measured ones."""
        repeats, workload, warmup = recording.config.repeats, recording.config.total_workload, recording.config.warmup
        if warmup.profile == "steady":
            self._warm_up_until_steady(recording)
            return
        for index in range(warmup.passes):
            recording.stage = f"warm-up {index + 1}/{warmup.passes}"
            warm = self._run_pass(recording, repeats.passes + index, workload.requests_per_warm_up, None, settles=False)
            recording.add(spans=dataclasses.replace(warm.span, name="warm-up"))

    def _warm_up_until_steady(self, recording: Recording) -> None:
        """Repeat passes of a quarter of the window, each with its own prompts, until nothing drifts or the cap."""
        limits, first_index = recording.config.warmup, recording.config.repeats.passes
        pass_s = limits.window_s / PASSES_PER_WINDOW
        while True:
            number = len(recording.record.warm_up)
            recording.stage = f"warm-up {number + 1}"
            warm = self._run_pass(recording, first_index + number, recording.config.total_workload.batch_size, pass_s)
            span = dataclasses.replace(warm.span, name="warm-up")
            recording.add(spans=span)
            recording.add(warm_up=self._warm_up_sample(span, warm.output_tokens))
            state = steadiness.warm_up_steadiness(recording.record.warm_up, limits, self.gpu_uuids)
            if not state.drifting or state.duration_s >= limits.cap_s:
                self.emit(WarmUpFinished(number + 1, state.duration_s, state.drifting))
                return

    def _warm_up_sample(self, span: Span, output_tokens: int) -> WarmUpSample:
        timeline = self.meter.peek(span.end_ns)
        joules = [
            EnergyCurve(timeline.gpus[uuid]).between(span.start_ns, span.end_ns).energy_j
            if uuid in timeline.gpus
            else None
            for uuid in self.gpu_uuids
        ]
        return WarmUpSample(
            span=span,
            output_tokens=output_tokens,
            energy_j=known_sum(joules) if joules else None,
            temperature_c=steadiness.late_temperatures_c(timeline, span, self.gpu_uuids),
        )

    def _run_pass(
        self,
        recording: Recording,
        prompt_index: int,
        min_requests: int,
        min_duration_s: float | None,
        *,
        settles: bool = True,
    ) -> PassRecord:
        """Run one pass on prompts that no other pass of this restart gets."""
        config, workload = recording.config, recording.config.total_workload
        prompts = load_prompts(
            config,
            pass_index=prompt_index,
            restart=recording.record.restart,
            vocab_size=self.model.vocab_size,
            min_requests=min_requests,
            min_duration_s=min_duration_s,
        )
        # By default requests run to their full length only on random weights, where an end of sequence means nothing.
        ignore_eos = self.model.random_weights if workload.ignore_eos is None else workload.ignore_eos
        told = config.prompts.chat_time
        request = PassRequest(
            workload=workload,
            prompts=prompts,
            min_requests=min_requests,
            min_duration_s=min_duration_s,
            template_time_s=self.template_time_s if told is None else int(told.timestamp()),
            settle_s=SETTLE_S if settles and self.gpu_uuids else 0.0,
            ignore_eos=ignore_eos,
        )
        stage, began_ns = recording.stage, self.clock.now_ns()

        def show(beat: Heartbeat) -> None:
            if beat.pass_over:
                return
            elapsed_s = (self.clock.now_ns() - began_ns) / NS_PER_S
            self.emit(TokensSeen(stage, beat.output_tokens, elapsed_s, self.meter.watts()))

        most_tokens = min_requests * workload.output_lengths.mean_tokens if min_requests else None
        self.emit(PassStarted(stage, min_duration_s, most_tokens))
        cpu_before, around_before = processes.cpu_times(), processes.times_around(self.pids())
        with self.meter.window(stage):
            generated = self.client.generate(
                request, silence_s=config.timeouts.heartbeat_s, stall_s=config.timeouts.stall_s, heartbeat=show
            )
        cpu_after, around_after = processes.cpu_times(), processes.times_around(self.pids())
        recording.note_rendered(prompts, generated.rendered_sha256)
        busy = cpu_after.busy_share_since(cpu_before) if cpu_after and cpu_before else None
        others = around_after.others_share_since(around_before) if around_after and around_before else None
        submitted_ns = [request.submitted_ns for request in generated.requests]
        hashes = {request.prompt_hash for request in generated.requests} - {None}
        reused = not hashes.isdisjoint(recording.prompts_sent)
        recording.prompts_sent |= hashes
        return dataclasses.replace(
            generated.of_prompts(prompts, config, ignore_eos=ignore_eos),
            index=prompt_index,
            cpu_busy=busy,
            cpu_others_share=others,
            prompts_reused=reused,
            lease_fault=self.lease_fault(),
            cacheable_tokens=prompts.cacheable_tokens(len(submitted_ns)),
            arrivals_due=prompts.due(max(submitted_ns, default=0) - generated.span.start_ns),
        )


def wait_until_idle(
    name: str,
    limits: IdleSpec,
    gpu_uuids: Sequence[str],
    *,
    meter: Meter,
    clock: Clock,
    emit: Emit,
    check: Callable[[], None],
    initial: Mapping[str, steadiness.IdleState] | None = None,
) -> tuple[Span, dict[str, steadiness.IdleState]]:
    """Wait until the GPUs have been idle for `limits.duration_s`, or for the cap.

    Args:
        check: Called at least twice a second; what it raises ends the wait.
        initial: State of GPUs before the run's first runner, to which they must cool down. None while a model is
            loaded.

    Returns:
        The last `limits.duration_s`, and the state of each GPU in it.
    """
    emit(IdleStarted(name, limits.duration_s))
    began_ns = clock.now_ns()
    length_ns, cap_ns = (round(limit_s * NS_PER_S) for limit_s in (limits.duration_s, limits.cap_s))
    wait_s = limits.duration_s + SETTLE_S
    while True:
        _sleep(wait_s, clock, check)
        # The counter's next changes show where the span ends.
        end_ns = clock.now_ns() - round(SETTLE_S * NS_PER_S)
        span = Span(name, end_ns - length_ns, end_ns)
        gpus = meter.peek(span.end_ns).gpus
        current = steadiness.idle_states(gpus, span, gpu_uuids)
        unsettled = steadiness.idle_unsettled(gpus, span, gpu_uuids, limits)
        unsettled += steadiness.not_cooled_down(current, initial or {}, limits)
        if not unsettled or clock.now_ns() - began_ns >= cap_ns:
            for finding in unsettled:
                emit(Note(f"{name}: not idle after {limits.cap_s:g} s: {finding}"))
            return span, current
        wait_s = IDLE_POLL_S


def _sleep(duration_s: float, clock: Clock, check: Callable[[], None]) -> None:
    until_ns = clock.now_ns() + round(duration_s * NS_PER_S)
    while (remaining_ns := until_ns - clock.now_ns()) > 0:
        check()
        clock.sleep(min(SIGNAL_POLL_S, remaining_ns / NS_PER_S))
