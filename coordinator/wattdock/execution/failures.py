"""Say what an error, a death or lost energy means for an experiment.

Engines share no classes of errors, and a process that died says nothing: only their messages and logs tell.
"""

from __future__ import annotations

import re
from textwrap import shorten
from typing import TYPE_CHECKING

from wattdock.errors import Cause, ExitCode, LaunchError, MeterError, RunnerError, WattdockError
from wattdock.host import nvml
from wattdock.metering import EnergyCurve, Timeline
from wattdock.records import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.execution.recording import Recording
    from wattdock.metering import Meter

# Most characters of the line of a log that says why a process died.
MOST_SAID = 300
SEE_DOCTOR = "`wattdock doctor` says what to do"
SEE_LOG = (
    "the runner's log holds its last words; an empty log means that it was killed, by a person or by the kernel's "
    "out-of-memory killer"
)
# What helps against each cause of a failed measurement.
ADVICE = {
    Cause.KV_CACHE: "fewer requests in flight (batch_size) or shorter ones (max_model_len), more room for the cache "
    "(kv_cache_memory_bytes, gpu_memory_utilization), or a split over more GPUs",
    Cause.HOST_MEMORY: "a machine with more memory, fewer replicas or ranks on this one, or a higher "
    "container.memory_gb",
    Cause.GPU_MEMORY: "a split over more GPUs (tensor_parallel_size, tp_plan, device_map), fewer requests in flight "
    "(batch_size), or weights in fewer bits (dtype, quantization); of a command, what its own options say of these",
    Cause.MEMORY: "the runner's log may say of which memory; fewer requests in flight (batch_size), weights in fewer "
    "bits (dtype), or a split over more GPUs",
    Cause.NO_DRIVER: nvml.DRIVER_REPLACED,
    Cause.GPU_LOST: "dmesg names the Xid of a board's fault; containers also lose their GPUs by `systemctl "
    "daemon-reload`, or the engine's restart, where systemd manages control groups: measure again in a new one",
    Cause.EXCHANGE: "see `wattdock doctor` for links; NCCL_DEBUG=INFO says more, and "
    "NCCL_P2P_DISABLE=1 goes through the host instead",
    Cause.HANG: "the runner's log says what it did last; if it is only slow, raise the limit: timeouts.heartbeat_s, "
    "timeouts.stall_s, or the engine's own",
    Cause.WORKER: SEE_LOG,
    Cause.RUNNER: SEE_LOG,
    Cause.COMMAND: "read the last lines of its output, in runner.log",
}
# Words of engines and libraries, from root causes to consequences; the first match wins. Source: vLLM
# (v1/core/kv_cache_utils.py), torch (allocators, ProcessGroupNCCL), gloo, Python, numpy, CUDA (driver_types.h, 214 and
# 803), NVML's error strings.
WORDS = {
    Cause.NO_DRIVER: "driver/library version mismatch|unsupported display driver / cuda driver combination",
    Cause.GPU_LOST: "GPU is lost|fallen off the bus|uncorrectable ECC error|Failed to initialize NVML: Unknown Error",
    Cause.KV_CACHE: "No available memory for the cache blocks|available KV cache memory|KV cache is needed",
    Cause.HOST_MEMORY: "DefaultCPUAllocator|Available memory on node|Cannot allocate memory|for an array with shape|"
    "(?<!OutOf)MemoryError",
    # The runner puts its guess about a killed process in brackets; this pattern skips it.
    Cause.GPU_MEMORY: "OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|Free memory on device|not enough GPU memory|"
    r"(?<!\()out of memory",
    Cause.EXCHANGE: "NCCL error|nccl(System|Internal|Remote|UnhandledCuda)Error|"
    "Watchdog caught collective operation timeout|Gloo connectFullMesh failed",
}
# What a runner or a command logs when it dies of a cause, and never otherwise; upper and lower case differ. Source:
# also TensorFlow (framework/op_kernel and bfc_allocator) and XLA (its allocators' status).
LOGGED = {
    Cause.HOST_MEMORY: "DefaultCPUAllocator|(?<!OutOf)MemoryError",
    Cause.GPU_MEMORY: r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory|"
    "OOM when allocating tensor.*GPU|RESOURCE_EXHAUSTED: Out of memory",
    Cause.EXCHANGE: "NCCL error|nccl(System|Remote)Error|Watchdog caught collective operation timeout",
}
# These need no further words: they say which memory was short.
MEMORY_CAUSES = frozenset({Cause.KV_CACHE, Cause.GPU_MEMORY, Cause.HOST_MEMORY})
# These say only that a process is gone; the log may say why.
DEATHS = frozenset({Cause.WORKER, Cause.RUNNER, Cause.COMMAND})


def failure_of(error: BaseException, stage: str, *, log: str = "") -> Failure:
    """Return the failure, at a stage, of what an error ended; one outside of wattdock's tree is a bug."""
    kind, message, exit_code, cause = type(error).__name__, f"a bug in wattdock: {error}", ExitCode.BUG, None
    if stage == "analysis":
        message += "; the folders under restarts hold what was measured"
    if isinstance(error, KeyboardInterrupt):
        kind, message, exit_code = Failure.INTERRUPTED, "interrupted by the user", ExitCode.INTERRUPTED
    elif isinstance(error, WattdockError):
        message, exit_code, cause = str(error), error.exit_code, error.cause
        if isinstance(error, LaunchError | RunnerError):
            cause = cause_of(error, log)
            if error.cause is Cause.RUNNER and log.strip():
                message += f"; its log ends: {shorten(log.strip().splitlines()[-1], MOST_SAID)}"
    return Failure(
        kind=kind,
        message=message,
        stage=stage,
        exit_code=int(exit_code),
        log_tail=log,
        cause=cause and cause.value,
        advice=cause and ADVICE.get(cause),
    )


def cause_of(error: WattdockError, log: str = "") -> Cause | None:
    """Return what a runner's failure was; None where neither its cause nor the engine's words tell.

    Args:
        log: The runner's last lines.
    """
    if error.cause in MEMORY_CAUSES:
        return error.cause
    found = (cause for cause, words in WORDS.items() if re.search(words, error.what, re.IGNORECASE))
    cause = next(found, error.cause)
    if cause not in DEATHS:
        return cause
    return (logged_cause(log) or (cause, ""))[0]


def logged_cause(log: str) -> tuple[Cause, str] | None:
    """Return what a runner or a command died of by its last words, and the line that says so."""
    found = ((cause, line) for cause, words in LOGGED.items() for line in log.splitlines() if re.search(words, line))
    return next(found, None)


def require_metered(meter: Meter, gpu_uuids: Sequence[str]) -> None:
    """Refuse to start a runner on a GPU that the meter cannot read: the runner would only hang or die.

    Raises:
        MeterError: A GPU is not read; says why.
    """
    if missing := [uuid for uuid in gpu_uuids if uuid not in meter.watts()]:
        unread = [gpu for uuid, gpu in meter.peek().gpus.items() if uuid not in meter.watts()]
        reasons = [event.message for gpu in unread for event in gpu.events]
        raise MeterError("; ".join([*reasons, f"not metered: {', '.join(missing)}"]), SEE_DOCTOR)


def lost_energy(timeline: Timeline, recording: Recording, gpus: Sequence[str]) -> str | None:
    """Return which GPU was lost, or whose counter froze, so that a pass has no energy; None where none was.

    A lost GPU is also why a runner has failed.

    Args:
        gpus: UUIDs of the GPUs that the runner was given.
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


def energy_loss(timeline: Timeline, recording: Recording, gpus: Sequence[str], *, metered: bool) -> MeterError | None:
    """Return why passes have no energy, where that is to be the experiment's failure.

    A lost GPU, of which runners die, comes before the runner's failure; any other failure stays. An interrupted
    experiment whose passes have no energy has failed: no resumption measures these passes again.

    Args:
        timeline: Timeline of the whole session.
        gpus: UUIDs of the GPUs that the runner was given.
        metered: Whether the GPUs were to be metered.
    """
    failure = recording.record.failure
    lost = lost_energy(timeline, recording, gpus)
    if lost and (failure is None or failure.exit_code != ExitCode.METER):
        return MeterError(f"{lost}; then: {failure.message}" if failure else lost)
    if failure and failure.kind != Failure.INTERRUPTED:
        return None
    used = recording.runner.used_gpu_uuids if recording.runner else []
    reasons = [timeline.reason or ""] if timeline.broke_off and failure is None else []
    if metered and recording.record.passes:
        unseen = timeline.reason or "the meter did not see this GPU"
        reasons += [f"{uuid}: {unseen}; {SEE_DOCTOR}" for uuid in used if uuid not in timeline.gpus]
        spans = [measured.span for measured in recording.record.passes]
        for gpu in (timeline.gpus[uuid] for uuid in used if uuid in timeline.gpus):
            missing = [energy.reason for energy in EnergyCurve(gpu).measured(spans) if energy.energy_j is None]
            # What broke off after the passes, during questions, cost none of them its energy.
            broken = [event.message for event in gpu.events if event.kind == "broke_off" and missing]
            reasons += [f"{gpu.uuid}: {reason}; {SEE_DOCTOR}" for reason in (*broken, *missing)]
    return MeterError(reasons[0]) if reasons else None
