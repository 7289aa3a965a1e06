"""The measuring procedure for one experiment on a loaded runner: warm-up passes, then the measured ones.

Knows no launcher and no files: it is given a connected client and a running meter.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from wattdock.analysis import windows
from wattdock.clock import NS_PER_S
from wattdock.errors import RunnerError
from wattdock.execution.loaded import SETTLE_S
from wattdock.host import processes
from wattdock.inputs import PromptSet, load_prompts
from wattdock.runner import PassRequest
from wattdock.study import events
from wattdock.values import known_max

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.execution.command import CommandRunner
    from wattdock.execution.loaded import LoadedRunner
    from wattdock.execution.recording import Recording
    from wattdock.records import PassRecord
    from wattdock.runner import Heartbeat

# How many times its minimum a run with a lead-in may last before its arrivals are used up. The minimum is 85 s, the
# requests' lifetimes are known only while it runs, and seven of them are needed: enough for lifetimes of 45 s.
RESERVE = 4.0


def measured_passes(runner: LoadedRunner, recording: Recording) -> Iterator[None]:
    """Warm up and run every measured pass that is left, adding to `recording`; yield where it is to be saved.

    Raises:
        WattdockError: A pass failed; `recording` holds those before it.
    """
    _warm_up(runner, recording)
    for number in sorted(recording.passes):
        yield from _measured_pass(runner, recording, number)


def _measured_pass(runner: LoadedRunner, recording: Recording, number: int) -> Iterator[None]:
    """Measure a pass, yield for it to be saved, and say then that it is over.

    Its death does not cost the pass, which is recorded as unchecked; the audit says so.

    Raises:
        ClockError: The runner reads another clock than the host's: the pass does not count.
        RunnerError: The runner has died since.
    """
    config = recording.config
    stage, requests = f"pass {number + 1}/{config.repeats.passes}", PromptSet.least_requests(config)
    recording.stage = f"{stage}, not begun"
    runner.context.interrupts.check()
    recording.stage, death = stage, None
    with runner.context.interrupts.finishing_pass():
        if runner.command:
            measured = _run_command(runner, runner.command, recording)
        else:
            least_s = config.workload.min_duration_s
            if config.warmup.profile == "lead-in":
                least_s = sum(windows.required_s(config, 0.0))
            measured = _run_pass(runner, recording, number, requests, least_s)
    try:
        recording.add(clock_checks=runner.client.check_clock())
    except RunnerError as error:
        death = error
    recording.runner_pids |= runner.pids()
    recording.add(passes=dataclasses.replace(measured, clock_checked=not death))
    yield
    others = measured.cpu_others_share
    unit = {"unit": config.unit} if runner.command else {}
    runner.context.emit(events.PassFinished(stage, measured.output_tokens, measured.span.duration_s, others, **unit))
    if death:
        raise death


def _run_command(runner: LoadedRunner, command: CommandRunner, recording: Recording) -> PassRecord:
    """Run a command of the user's own once."""
    runner.context.emit(events.PassStarted(recording.stage))
    with runner.meter.window(recording.stage):
        measured = command.run(recording)
        if runner.gpu_uuids:
            # The counter's next tick shows the end.
            runner.context.machine.clock.sleep(SETTLE_S)
    return dataclasses.replace(measured, lease_fault=runner.lease_fault())


def _warm_up(runner: LoadedRunner, recording: Recording) -> None:
    """Run the unmeasured passes of the quick profile, whose prompts follow those of all measured ones."""
    repeats, workload, warmup = recording.config.repeats, recording.config.workload, recording.config.warmup
    for index in range(warmup.passes if warmup.profile == "quick" else 0):
        recording.stage = f"warm-up {index + 1}/{warmup.passes}"
        warm = _run_pass(runner, recording, repeats.passes + index, workload.requests_per_warm_up, None, settles=False)
        recording.add(spans=dataclasses.replace(warm.span, name="warm-up"))


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
        min_duration_s=min_duration_s and min_duration_s * (RESERVE if config.warmup.profile == "lead-in" else 1),
    )
    # By default requests run to their full length only on random weights, where an end of sequence means nothing.
    asked = config.workload.ignore_eos
    ignore_eos = runner.model.random_weights if asked is None else asked
    present = config.prompts.chat_time_utc or runner.context.folder.begun
    request = PassRequest(
        workload=config.workload,
        prompts=prompts,
        min_requests=min_requests,
        min_duration_s=min_duration_s,
        template_time_s=int(present.timestamp()),
        settle_s=SETTLE_S if settles and runner.gpu_uuids else 0.0,
        ignore_eos=ignore_eos,
    )
    generated = generate(runner, recording, request)
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


def generate(runner: LoadedRunner, recording: Recording, request: PassRequest) -> PassRecord:
    """Let the runner serve a pass; return its report with how busy the CPUs were meanwhile."""
    stage, timeouts, in_flight_s = recording.stage, recording.config.timeouts, 0.0
    beats: list[Heartbeat] = []
    serves = False

    def may_end(beat: Heartbeat) -> bool:
        nonlocal in_flight_s, serves
        # The pass begins when texts are encoded, and ends before its record is sent: both can take many seconds.
        if serves != (serves := bool(beat.requests_submitted) and not beat.pass_over):
            runner.meter.note_edge()
        # Texts are rendered and encoded before the first request.
        if beats:
            in_flight = beats[-1].requests_submitted - beats[-1].requests_finished
            in_flight_s += in_flight * (beat.at_ns - beats[-1].at_ns) / NS_PER_S
        beats.extend([beat] if beat.requests_submitted else [])
        elapsed_s = (beat.at_ns - beats[0].at_ns) / NS_PER_S if beats else 0.0
        if not beat.pass_over:
            runner.context.emit(events.TokensSeen(stage, beat.output_tokens, elapsed_s, runner.meter.watts()))
        # A warm-up pass has no minimum.
        return request.min_duration_s is None or windows.is_long_enough(
            recording.config, elapsed_s=elapsed_s, finished=beat.requests_finished, in_flight_s=in_flight_s
        )

    requests, mean_tokens = request.min_requests, request.workload.output_lengths.mean_tokens
    runner.context.emit(events.PassStarted(stage, request.min_duration_s, requests * mean_tokens if requests else None))
    around_before = processes.times_around(runner.pids())
    with runner.meter.window(stage):
        generated = runner.client.generate(
            request, silence_s=timeouts.heartbeat_s, stall_s=timeouts.stall_s, heartbeat=may_end
        )
    around_after = processes.times_around(runner.pids())
    others = around_after.others_share_since(around_before) if around_after and around_before else None
    _, elsewhere = runner.context.machine.elsewhere()
    return dataclasses.replace(generated, cpu_others_share=known_max((others, *elsewhere)))
