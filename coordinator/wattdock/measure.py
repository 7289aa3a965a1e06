"""The procedure for one experiment on one loaded runner: warm-up, then the measured passes.

Knows no launcher and no files: it is given a connected client and a running meter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock import wire
from wattdock.clock import now_ns
from wattdock.host.machine import cpu_times
from wattdock.prompts import load_prompts
from wattdock.records import NS_PER_S, MeasuredPass, RestartRecord, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.client import RunnerClient
    from wattdock.config.experiment import ExperimentConfig
    from wattdock.interrupts import Interrupts
    from wattdock.meter.protocol import Meter
    from wattdock.meter.timeline import Timeline
    from wattdock.models import ModelFolder
    from wattdock.progress import Progress
    from wattdock.records import ClockCheck, Loaded
    from wattdock.results.result import Failure
    from wattdock_proto.v1 import runner_pb2 as pb

# How long the runner stays drained after a pass, so that the counter's next tick shows the pass's end.
SETTLE_S = 1.0


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
    passes: list[MeasuredPass] = field(default_factory=list)
    clock_checks: list[ClockCheck] = field(default_factory=list)
    loaded: Loaded | None = None
    failure: Failure | None = None
    own_pids: set[int] = field(default_factory=set)
    already: frozenset[int] = frozenset()
    started_utc: datetime = field(default_factory=lambda: datetime.now(UTC))

    def for_experiment(self, config: ExperimentConfig, already: frozenset[int] = frozenset()) -> Collected:
        """Return what an experiment served by this runner starts from: its launch and load."""
        return Collected(
            config,
            self.restart,
            self.stage,
            list(self.spans),
            clock_checks=list(self.clock_checks),
            loaded=self.loaded,
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
            loaded=self.loaded,
            clock_checks=tuple(self.clock_checks),
            timeline=timeline,
            failure=self.failure,
            own_pids=frozenset(self.own_pids),
        )


@dataclass(frozen=True)
class Session:
    """A connected client, the model its runner has loaded, and the meter that watches.

    Attributes:
        keep: Makes what was collected so far durable; called after each measured pass.
    """

    client: RunnerClient
    model: ModelFolder
    meter: Meter
    progress: Progress
    metered: bool
    interrupts: Interrupts
    keep: Callable[[Collected], None]


def measure(session: Session, collected: Collected) -> None:
    """Warm up and run every measured pass, adding what was seen to `collected` as it comes.

    Raises:
        WattdockError: A pass failed; `collected` holds those before it.
    """
    config = collected.config
    for index in range(config.warmup.passes):
        collected.stage = f"warm-up {index + 1}/{config.warmup.passes}"
        warm = _run_pass(session, collected, index, measured=False)
        collected.spans.append(Span("warm-up", warm.generated.span.start_ns, warm.generated.span.end_ns, drained=True))
    for number in sorted(set(range(config.repeats.passes)) - collected.already):
        session.interrupts.check()
        collected.stage = f"pass {number + 1}/{config.repeats.passes}"
        with session.interrupts.patient():
            done = _run_pass(session, collected, config.warmup.passes + number, measured=True)
        # Only a pass whose clock is still the host's counts.
        collected.clock_checks.append(session.client.check_clock())
        span = done.generated.span
        collected.passes.append(
            MeasuredPass(number, done.generated, done.cpu_busy, done.prompts_sha256, done.prompts_reused)
        )
        session.progress.say(f"  {collected.stage}: {done.generated.output_tokens:,} tokens in {span.duration_s:.2f} s")
        session.keep(collected)


def ignores_eos(config: ExperimentConfig, model: ModelFolder) -> bool:
    """Return whether requests run to their full length; by default only where weights are random."""
    return model.random_weights if config.workload.ignore_eos is None else config.workload.ignore_eos


def _run_pass(session: Session, collected: Collected, prompt_index: int, *, measured: bool) -> MeasuredPass:
    """Run one pass on prompts that no other pass of this restart gets."""
    config, spec = collected.config, collected.config.workload
    prompts = load_prompts(
        config.prompts,
        seed=spec.seed,
        pass_index=prompt_index,
        count=spec.prompts_per_pass,
        vocab_size=session.model.vocab_size,
    )
    workload = wire.workload(
        spec,
        ignore_eos=ignores_eos(config, session.model),
        min_requests=spec.requests_per_pass if measured else spec.requests_per_warm_up,
        seed=spec.seed + prompt_index,
        settle_s=SETTLE_S if measured and session.metered else 0.0,
        limited=not measured,
    )
    started_ns = now_ns()

    def heartbeat(beat: pb.Heartbeat) -> None:
        elapsed_s = (now_ns() - started_ns) / NS_PER_S
        session.progress.tick(
            collected.stage, output_tokens=beat.output_tokens, elapsed_s=elapsed_s, watts=session.meter.watts()
        )

    cpu_before = cpu_times()
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
    cpu_after = cpu_times()
    busy = cpu_after.busy_share_since(cpu_before) if cpu_after and cpu_before else None
    return MeasuredPass(prompt_index, generated, busy, prompts.sha256, prompts.reused)
