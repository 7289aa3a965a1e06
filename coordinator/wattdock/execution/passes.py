"""The procedure for one experiment on one loaded runner: idle, warm-up, the measured passes, idle again.

Knows no launcher and no files: it is given a connected client and a running meter.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.analysis import above_band, at_rest, idle_unsettled, late_temperatures_c, warm_up_steadiness
from wattdock.clock import NS_PER_S, host_clock, now_ns
from wattdock.errors import RunnerError
from wattdock.host import processes
from wattdock.inputs import load_prompts
from wattdock.metering import Span, span_energy
from wattdock.records import RestartRecord, WarmUpSample
from wattdock.runner import pass_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis import AtRest
    from wattdock.clock import ClockCheck
    from wattdock.config import ExperimentConfig, IdleSpec
    from wattdock.execution.interrupts import Interrupts
    from wattdock.execution.progress import Progress
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Meter, Timeline
    from wattdock.records import Failure, PassRecord, RunnerEnvironment
    from wattdock.runner import RunnerClient
    from wattdock_proto.v1 import runner_pb2 as pb

# How long the runner stays drained after a pass, so that the counter's next tick shows the pass's end.
SETTLE_S = 1.0
# Passes of a steady warm-up that make up its window: enough to see a slope, long enough to average steps.
PASSES_PER_WINDOW = 4
# How often an idle GPU is looked at for being at rest, and how often an interruption is noticed meanwhile.
REST_CHECK_S, WAKE_S = 3.0, 0.5


@dataclass
class Collected:
    """What was seen of one restart of one experiment so far; survives whatever ends it.

    Attributes:
        already: Passes of this restart that an earlier runner measured before its coordinator ended.
        stage: What is being done now, for people and for the failure that may come.
        own_pids: Processes of the runner, shared by all that it serves.
        started_utc: A label, never a duration's end.
    """

    config: ExperimentConfig
    restart: int
    stage: str = "launch"
    spans: list[Span] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    warm_up: list[WarmUpSample] = field(default_factory=list)
    one_token: list[PassRecord] = field(default_factory=list)
    clock_checks: list[ClockCheck] = field(default_factory=list)
    runner: RunnerEnvironment | None = None
    failure: Failure | None = None
    own_pids: set[int] = field(default_factory=set)
    already: frozenset[int] = frozenset()
    started_utc: datetime = field(default_factory=lambda: datetime.now(UTC))

    def for_experiment(self, config: ExperimentConfig, already: frozenset[int] = frozenset()) -> Collected:
        """Return what an experiment served by this runner starts from: its launch and load."""
        return Collected(
            config=config,
            restart=self.restart,
            stage=self.stage,
            spans=list(self.spans),
            clock_checks=list(self.clock_checks),
            runner=self.runner,
            failure=self.failure,
            own_pids=self.own_pids,
            already=already,
        )

    def record(self, timeline: Timeline | None) -> RestartRecord:
        """Return it as a value, with the timeline around it."""
        return RestartRecord(
            restart=self.restart,
            spans=tuple(self.spans),
            passes=tuple(self.passes),
            started_utc=self.started_utc.isoformat(timespec="milliseconds"),
            clock_checks=tuple(self.clock_checks),
            timeline=timeline,
            warm_up=tuple(self.warm_up),
            one_token=tuple(self.one_token),
            failure=self.failure,
            own_pids=frozenset(self.own_pids),
            clock=str(host_clock()),
        )


@dataclass(frozen=True)
class Session:
    """A connected client, the model its runner has loaded, and the meter that watches.

    Attributes:
        metered: The meter watches GPUs.
        gpu_uuids: The runner's GPUs that the meter watches.
        check: Raises where the run is to end; called while nothing else waits.
        keep: Makes what was collected so far durable; called after each measured pass.
        pids: Returns the runner's processes, as this host numbers them.
    """

    client: RunnerClient
    model: ModelFolder
    meter: Meter
    progress: Progress
    metered: bool
    gpu_uuids: tuple[str, ...]
    interrupts: Interrupts
    check: Callable[[], None]
    keep: Callable[[Collected], None]
    pids: Callable[[], frozenset[int]]

    @property
    def settle_s(self) -> float:
        """How long the runner stays drained after a metered pass, in seconds."""
        return SETTLE_S if self.metered else 0.0


def measure(session: Session, collected: Collected) -> None:
    """Warm up and run every measured pass, adding what was seen to `collected` as it comes.

    Raises:
        WattdockError: A pass failed; `collected` holds those before it.
    """
    config = collected.config
    _idle(session, collected, "idle-loaded-before")
    # A warm-up that used up the prompts has sent some that a measured pass will send again.
    reused = any(one.prompts_reused for one in _warm_up(session, collected))
    for number in sorted(set(range(config.repeats.passes)) - collected.already):
        stage = f"pass {number + 1}/{config.repeats.passes}"
        collected.stage = f"{stage}, not begun"
        session.check()
        collected.stage = stage
        with session.interrupts.patient():
            done = _measured_pass(session, collected, number)
        died = _clock_checked(session, collected)
        span = done.span
        reused_here = done.prompts_reused or reused
        collected.passes.append(dataclasses.replace(done, prompts_reused=reused_here, clock_checked=not died))
        session.progress.say(f"  {collected.stage}: {done.output_tokens:,} tokens in {span.duration_s:.2f} s")
        session.keep(collected)
        if died:
            raise died
    _one_token_passes(session, collected)
    _idle(session, collected, "idle-loaded-after")


def _clock_checked(session: Session, collected: Collected) -> RunnerError | None:
    """Check after a pass that its clock is the host's; return why nobody was there to ask.

    That costs no pass: the pass is kept as unchecked, and the audit says so.

    Raises:
        ClockError: It is another one: the pass does not count.
    """
    try:
        collected.clock_checks.append(session.client.check_clock())
    except RunnerError as error:
        return error
    return None


def rest(
    meter: Meter,
    name: str,
    limits: IdleSpec,
    gpu_uuids: Sequence[str],
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
    first: dict[str, AtRest] | None = None,
) -> Span:
    """Wait until the GPUs have been at rest for `limits.duration_s`, or the cap; return that span.

    Args:
        first: What they were like before the run's first runner, to which they are to cool down; those it lacks are
            added. None where they have work behind them that stays loaded.
        check: Called at least twice a second; what it raises ends the wait.
        say: Is told what was not at rest when the cap came.
    """
    began_ns = now_ns()
    length_ns, cap_ns = (round(limit_s * NS_PER_S) for limit_s in (limits.duration_s, limits.cap_s))
    wait_s = limits.duration_s + SETTLE_S
    while True:
        _sleep(wait_s, check)
        # The counter's next changes show where the span ends.
        end_ns = now_ns() - round(SETTLE_S * NS_PER_S)
        span = Span(name, end_ns - length_ns, end_ns, drained=True)
        gpus = meter.peek().gpus
        unsettled = idle_unsettled(gpus, span, gpu_uuids, limits)
        if first is not None:
            now = at_rest(gpus, span, gpu_uuids)
            unsettled += above_band(now, first, limits)
        if not unsettled or now_ns() - began_ns >= cap_ns:
            for finding in unsettled:
                say(f"{name}: not at rest after {limits.cap_s:g} s: {finding}")
            if first is not None:
                first.update(now | first)
            return span
        wait_s = REST_CHECK_S


def _sleep(duration_s: float, check: Callable[[], None]) -> None:
    until_s = time.monotonic() + duration_s
    while (left_s := until_s - time.monotonic()) > 0:
        check()
        time.sleep(min(WAKE_S, left_s))


def _idle(session: Session, collected: Collected, name: str) -> None:
    limits = collected.config.idle
    if not (limits.duration_s and session.metered and session.gpu_uuids):
        return
    collected.stage = name

    def say(text: str) -> None:
        session.progress.say(f"  {text}")

    say(f"{name}: {limits.duration_s:g} s without work")
    collected.spans.append(rest(session.meter, name, limits, session.gpu_uuids, check=session.check, say=say))


def _warm_up(session: Session, collected: Collected) -> list[PassRecord]:
    """Run the unmeasured passes; their prompts follow those of all other passes, however many they are."""
    config = collected.config
    first = config.repeats.passes + config.repeats.one_token_passes
    if config.warmup.profile == "steady":
        return _warm_up_until_steady(session, collected, first)
    done = []
    for index in range(config.warmup.passes):
        collected.stage = f"warm-up {index + 1}/{config.warmup.passes}"
        length = _Length(config.served.requests_per_warm_up, None, settle_s=0.0)
        done.append(_run_pass(session, collected, first + index, length))
        collected.spans.append(dataclasses.replace(done[-1].span, name="warm-up"))
    return done


def _warm_up_until_steady(session: Session, collected: Collected, first: int) -> list[PassRecord]:
    """Repeat passes of a quarter of the window, each with prompts of its own, until nothing drifts or the cap."""
    config, limits = collected.config, collected.config.warmup
    length = _Length(config.served.batch_size, limits.window_s / PASSES_PER_WINDOW, settle_s=session.settle_s)
    done: list[PassRecord] = []
    while True:
        collected.stage = f"warm-up {len(done) + 1}"
        done.append(_run_pass(session, collected, first + len(done), length))
        span = dataclasses.replace(done[-1].span, name="warm-up")
        collected.spans.append(span)
        collected.warm_up.append(_warm_up_sample(session, span, done[-1].output_tokens))
        seen = warm_up_steadiness(collected.warm_up, limits, session.gpu_uuids)
        if not seen.drifting or seen.duration_s >= limits.cap_s:
            outcome = f"not steady at the cap: {'; '.join(seen.drifting)}" if seen.drifting else "steady"
            session.progress.say(f"  warm-up: {len(done)} passes, {seen.duration_s:.0f} s, {outcome}")
            return done


def _warm_up_sample(session: Session, span: Span, output_tokens: int) -> WarmUpSample:
    timeline = session.meter.peek()
    joules = [
        span_energy(timeline.gpus[uuid], span.start_ns, span.end_ns).energy_j if uuid in timeline.gpus else None
        for uuid in session.gpu_uuids
    ]
    known = [value for value in joules if value is not None]
    return WarmUpSample(
        span=span,
        output_tokens=output_tokens,
        energy_j=sum(known) if known and len(known) == len(joules) else None,
        temperature_c=late_temperatures_c(timeline, span, session.gpu_uuids),
    )


def ignores_eos(config: ExperimentConfig, model: ModelFolder) -> bool:
    """Return whether requests run to their full length; by default only where weights are random."""
    return model.random_weights if config.workload.ignore_eos is None else config.workload.ignore_eos


def _one_token_passes(session: Session, collected: Collected) -> None:
    """Run passes that are all prefill, with prompts that nothing before them had."""
    spec, repeats = collected.config.served, collected.config.repeats
    length = _Length(spec.requests_per_pass, spec.min_duration_s, session.settle_s, one_token=True)
    for number in range(repeats.one_token_passes):
        collected.stage = f"one-token pass {number + 1}/{repeats.one_token_passes}"
        done = _run_pass(session, collected, repeats.passes + number, length)
        collected.one_token.append(done)
        collected.spans.append(dataclasses.replace(done.span, name="one-token"))


@dataclass(frozen=True)
class _Length:
    """When a pass is over, how long the runner stays drained after it, and whether its requests end with one token."""

    min_requests: int
    min_duration_s: float | None
    settle_s: float
    one_token: bool = False


def _measured_pass(session: Session, collected: Collected, number: int) -> PassRecord:
    spec = collected.config.served
    length = _Length(spec.requests_per_pass, spec.min_duration_s, settle_s=session.settle_s)
    return _run_pass(session, collected, number, length)


def _run_pass(session: Session, collected: Collected, prompt_index: int, length: _Length) -> PassRecord:
    """Run one pass on prompts that no other pass of this restart gets."""
    config, spec = collected.config, collected.config.served
    source = load_prompts(
        config.prompts,
        seed=spec.seed,
        pass_index=prompt_index,
        count=spec.prompts_per_pass,
        vocab_size=session.model.vocab_size,
    )
    prompts = source.with_limits(spec, pass_index=prompt_index)
    if length.one_token:
        prompts = dataclasses.replace(prompts, max_output_tokens=(1,) * len(prompts.items))
    workload = pass_workload(
        spec,
        ignore_eos=ignores_eos(config, session.model),
        min_requests=length.min_requests,
        min_duration_s=length.min_duration_s,
        seed=spec.seed + prompt_index,
        settle_s=length.settle_s,
    )
    started_ns = now_ns()

    def heartbeat(beat: pb.Heartbeat) -> None:
        elapsed_s = (now_ns() - started_ns) / NS_PER_S
        session.progress.tick(
            collected.stage, output_tokens=beat.output_tokens, elapsed_s=elapsed_s, watts=session.meter.watts()
        )

    cpu_before, around_before = processes.cpu_times(), processes.times_around(session.pids())
    try:
        with session.meter.window(collected.stage):
            generated = session.client.generate(
                workload,
                prompts,
                silence_s=config.timeouts.heartbeat_s,
                stall_s=config.timeouts.stall_s,
                heartbeat=heartbeat,
            )
    finally:
        session.progress.clear()
    cpu_after, around_after = processes.cpu_times(), processes.times_around(session.pids())
    busy = cpu_after.busy_share_since(cpu_before) if cpu_after and cpu_before else None
    others = around_after.others_share_since(around_before) if around_after and around_before else None
    return dataclasses.replace(
        generated,
        index=prompt_index,
        cpu_busy=busy,
        cpu_others_share=others,
        prompts_sha256=prompts.sha256,
        prompts_reused=prompts.reused,
    )
