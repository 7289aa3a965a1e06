"""Why passes of a session have no energy: a lost GPU, a broken meter, a counter without an answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import ExitCode
from wattdock.metering import EnergyCurve, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.execution.recording import Recording


SEE_DOCTOR = "`wattdock doctor` says what to do"


def lost_energy(timeline: Timeline, recording: Recording, gpus: Sequence[str]) -> str | None:
    """Return which GPU was lost, or whose counter froze, so that a pass has no energy; None where none was.

    A lost GPU is also why a runner has failed.
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


def why_broken_off(timeline: Timeline, recording: Recording) -> str | None:
    """Return why the meter cannot say what this experiment's GPUs used; None where it did not break off."""
    if timeline.broke_off:
        return timeline.reason
    used = recording.runner.used_gpu_uuids if recording.runner else []
    told = [(uuid, event) for uuid in used if uuid in timeline.gpus for event in timeline.gpus[uuid].events]
    return next((f"{uuid}: {event.message}" for uuid, event in told if event.kind == "broke_off"), None)


def missing_energy(timeline: Timeline, recording: Recording) -> str | None:
    """Return why a measured pass has no energy on a GPU that it used; None where each has, or no GPU is metered."""
    if not recording.runner:
        return None
    for uuid in recording.runner.used_gpu_uuids if recording.record.passes else ():
        if (gpu := timeline.gpus.get(uuid)) is None:
            return f"{uuid}: the meter did not see this GPU; {SEE_DOCTOR}"
        curve = EnergyCurve(gpu)
        for span in (measured.span for measured in recording.record.passes):
            energy = curve.measured(span)
            if energy.energy_j is None:
                return f"{gpu.uuid}: {energy.reason}; {SEE_DOCTOR}"
    return None
