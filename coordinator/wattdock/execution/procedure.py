"""The measuring procedure for one experiment on a loaded runner: idle, warm-up, measured passes, idle again.

Knows no launcher and no files: it is given a connected client and a running meter.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from wattdock.analysis import steadiness
from wattdock.clock import NS_PER_S
from wattdock.errors import RunnerError
from wattdock.execution.loaded import SETTLE_S, wait_until_idle
from wattdock.host import processes
from wattdock.inputs import load_prompts
from wattdock.metering import EnergyCurve
from wattdock.records import PassRecord, WarmUpSample
from wattdock.runner import PassRequest
from wattdock.study import events
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.execution.loaded import LoadedRunner
    from wattdock.execution.recording import Recording
    from wattdock.runner import Heartbeat

# Passes of a steady warm-up that make up its window: enough to see a slope, long enough to average steps.
PASSES_PER_WINDOW = 4


def measured_passes(runner: LoadedRunner, recording: Recording) -> Iterator[None]:
    """Warm up and run every measured pass that is left, adding to `recording`; yield where it is to be saved.

    Raises:
        WattdockError: A pass failed; `recording` holds those before it.
    """
    _idle(runner, recording, "idle-loaded-before")
    _warm_up(runner, recording)
    for number in sorted(recording.passes):
        death = _measure_pass(runner, recording, number)
        yield
        if death:
            raise death
    _idle(runner, recording, "idle-loaded-after")


def _idle(runner: LoadedRunner, recording: Recording, name: str) -> None:
    limits = recording.config.idle
    if limits.duration_s and runner.gpu_uuids:
        recording.stage = name
        meter, clock, emit, check = runner.meter, runner.clock, runner.emit, runner.check
        span, _ = wait_until_idle(name, limits, runner.gpu_uuids, meter=meter, clock=clock, emit=emit, check=check)
        recording.add(spans=span)


def _measure_pass(runner: LoadedRunner, recording: Recording, number: int) -> RunnerError | None:
    """Measure a pass; return the error of a runner that has died since.

    Its death does not cost the pass, which is recorded as unchecked; the audit says so.

    Raises:
        ClockError: The runner reads another clock than the host's: the pass does not count.
    """
    workload, stage = recording.config.total_workload, f"pass {number + 1}/{recording.config.repeats.passes}"
    recording.stage = f"{stage}, not begun"
    runner.check()
    recording.stage, death = stage, None
    with runner.context.interrupts.finishing_pass():
        measured = _run_pass(runner, recording, number, workload.requests_per_pass, workload.min_duration_s)
    try:
        recording.add(clock_checks=runner.client.check_clock())
    except RunnerError as error:
        death = error
    recording.runner_pids |= runner.pids()
    recording.add(passes=dataclasses.replace(measured, clock_checked=not death))
    others = measured.cpu_others_share
    runner.emit(events.PassFinished(stage, measured.output_tokens, measured.span.duration_s, others))
    return death


def _warm_up(runner: LoadedRunner, recording: Recording) -> None:
    """Run the unmeasured passes, whose prompts follow those of all measured ones."""
    repeats, workload, warmup = recording.config.repeats, recording.config.total_workload, recording.config.warmup
    if warmup.profile == "steady":
        _warm_up_until_steady(runner, recording)
        return
    for index in range(warmup.passes):
        recording.stage = f"warm-up {index + 1}/{warmup.passes}"
        warm = _run_pass(runner, recording, repeats.passes + index, workload.requests_per_warm_up, None, settles=False)
        recording.add(spans=dataclasses.replace(warm.span, name="warm-up"))


def _warm_up_until_steady(runner: LoadedRunner, recording: Recording) -> None:
    """Repeat passes of a quarter of the window, each with its own prompts, until nothing drifts or the cap."""
    limits, first_index = recording.config.warmup, recording.config.repeats.passes
    pass_s = limits.window_s / PASSES_PER_WINDOW
    while True:
        number = len(recording.record.warm_up)
        recording.stage = f"warm-up {number + 1}"
        warm = _run_pass(runner, recording, first_index + number, recording.config.total_workload.batch_size, pass_s)
        span = dataclasses.replace(warm.span, name="warm-up")
        timeline, uuids = runner.meter.peek(span.end_ns), runner.gpu_uuids
        curves = [EnergyCurve(timeline.gpus[uuid]) if uuid in timeline.gpus else None for uuid in uuids]
        joules = [curve.between(span.start_ns, span.end_ns).energy_j if curve else None for curve in curves]
        sample = WarmUpSample(
            span=span,
            output_tokens=warm.output_tokens,
            energy_j=known_sum(joules) if joules else None,
            temperature_c=steadiness.late_temperatures_c(timeline, span, uuids),
        )
        recording.add(spans=span, warm_up=sample)
        state = steadiness.warm_up_steadiness(recording.record.warm_up, limits, runner.gpu_uuids)
        if not state.drifting or state.duration_s >= limits.cap_s:
            runner.emit(events.WarmUpFinished(number + 1, state.duration_s, state.drifting))
            return


def _run_pass(
    runner: LoadedRunner,
    recording: Recording,
    prompt_index: int,
    min_requests: int,
    min_duration_s: float | None,
    *,
    settles: bool = True,
) -> PassRecord:
    """Run one pass on prompts that no other pass of this restart gets."""
    config = recording.config
    prompts = load_prompts(
        config,
        pass_index=prompt_index,
        restart=recording.record.restart,
        vocab_size=runner.model.vocab_size,
        min_requests=min_requests,
        min_duration_s=min_duration_s,
    )
    # By default requests run to their full length only on random weights, where an end of sequence means nothing.
    asked = config.total_workload.ignore_eos
    ignore_eos = runner.model.random_weights if asked is None else asked
    present = config.prompts.chat_time_utc or runner.context.folder.begun
    request = PassRequest(
        workload=config.total_workload,
        prompts=prompts,
        min_requests=min_requests,
        min_duration_s=min_duration_s,
        template_time_s=int(present.timestamp()),
        settle_s=SETTLE_S if settles and runner.gpu_uuids else 0.0,
        ignore_eos=ignore_eos,
    )
    generated = _generate(runner, recording, request)
    recording.note_rendered(prompts, generated.rendered_sha256)
    submitted_ns = [sent.submitted_ns for sent in generated.requests]
    return dataclasses.replace(
        generated.of_prompts(prompts, config, ignore_eos=ignore_eos),
        index=prompt_index,
        prompts_reused=recording.note_sent(generated.requests),
        lease_fault=runner.lease_fault(),
        cacheable_tokens=prompts.cacheable_tokens(len(submitted_ns)),
        arrivals_due=prompts.due(max(submitted_ns, default=0) - generated.span.start_ns),
    )


def _generate(runner: LoadedRunner, recording: Recording, request: PassRequest) -> PassRecord:
    """Let the runner serve a pass; return its report with how busy the CPUs were meanwhile."""
    stage, began_ns, timeouts = recording.stage, runner.clock.now_ns(), recording.config.timeouts

    def show(beat: Heartbeat) -> bool:
        if not beat.pass_over:
            elapsed_s = (runner.clock.now_ns() - began_ns) / NS_PER_S
            runner.emit(events.TokensSeen(stage, beat.output_tokens, elapsed_s, runner.meter.watts()))
        return True

    requests, mean_tokens = request.min_requests, request.workload.output_lengths.mean_tokens
    runner.emit(events.PassStarted(stage, request.min_duration_s, requests * mean_tokens if requests else None))
    cpu_before, around_before = processes.cpu_times(), processes.times_around(runner.pids())
    with runner.meter.window(stage):
        generated = runner.client.generate(
            request, silence_s=timeouts.heartbeat_s, stall_s=timeouts.stall_s, heartbeat=show
        )
    cpu_after, around_after = processes.cpu_times(), processes.times_around(runner.pids())
    busy = cpu_after.busy_share_since(cpu_before) if cpu_after and cpu_before else None
    others = around_after.others_share_since(around_before) if around_after and around_before else None
    return dataclasses.replace(generated, cpu_busy=busy, cpu_others_share=others)
