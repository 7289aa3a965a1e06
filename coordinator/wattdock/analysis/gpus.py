"""Each GPU of the host: its readings and conditions, its share of the work, and the processes on it. Pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from wattdock.analysis.idle import IDLE_SPANS, over
from wattdock.analysis.joules import ratio
from wattdock.clock import NS_PER_S
from wattdock.metering import EnergyCurve, MeterEvent, Span
from wattdock.records import RestartRecord
from wattdock.values import Stored, all_known, known_max, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.host import GpuProcess
    from wattdock.metering import GpuTimeline

# When processes of the runner were listed, and their memory; None where the driver does not tell it.
RunnerLists = list[tuple[int, float | None]]
VIOLATIONS = ("power", "thermal", "board_limit", "reliability")
# Margins left out at each end of a pass, where power is not stationary and the two readings lag differently; the first
# one at which the counter was read is used.
MARGINS_NS = tuple(seconds * NS_PER_S for seconds in (1, 2, 3, 4))
MIN_STATIONARY_NS = 5 * NS_PER_S
# Longest time that a power sample stands for; samples come every 50 ms.
SAMPLE_REACH_NS = NS_PER_S // 2
MIN_COVERED = 0.75
# How far from a pass's end a reading of a violation counter may lie; they are read once a second, later on a busy GPU.
COUNTER_REACH_NS = 2 * NS_PER_S
# Longest gap between two samples of a state; a host may stall for a second or two.
STATE_GAP_NS = 5 * NS_PER_S
# How long after a process has freed memory the board may count it as in use: 0.50 s on an H200, where NCCL's buffers
# went, and the list had no more of them; readings come every 0.1 s.
RELEASE_NS = 1 * NS_PER_S
# How far from a pass's begin or end a process list may lie; the second is made a second or more after the end.
LIST_REACH_NS = 5 * NS_PER_S


class GpuResult(Stored):
    """One GPU of the host: how well it was read, its state in the measured passes, and whether it was undisturbed.

    Null where the driver does not tell, or no pass was measured. "Worst restart" is the worst value over restarts
    with passes. Of a command whose spans count by name, conditions are of the time from the first of them to the last.

    Attributes:
        used: It held a part of the model.
        power_course: How the course of energy between changes of the counter is known: from the driver's own 20 ms
            samples of power (driver_samples) or from the changes alone (counter_only); both, joined by "+".
        nvml_busy_fraction: Share of the metered time spent inside NVML calls, in the restart where it is largest.
        events: What limits the meter's readings, such as gaps.
        throttled_share: Share of the time that each of NVML's cumulative violation counters grew by, by reason: power
            (the software power cap), thermal, board_limit, reliability. Sampled bits would miss short ones.
        worst_pass_throttled_share: The same of the pass in which it is largest, each reason for itself.
        worst_pass_busy_share: Of NVML's samples, the share of time in which any kernel ran, in the pass where it is
            smallest.
        mean_power_w: By the energy counter.
        power_over_counter: Mean sampled power in a pass, less a second at each end, ÷ mean power by the counter there
            − 1, of the pass in which it is largest; null where a pass was not sampled throughout. Agreement is
            consistency of two readings of one sensor, not accuracy.
        clocks_limited_share: Share of a pass's samples in which a setting (application or locked clocks) held clocks
            down, of the pass in which it is largest; null where a pass was not sampled throughout.
        power_limits_w: The lowest and the highest limit that was enforced in the passes; null as above.
        counter_changes: Worst restart: how often the energy counter changed.
        process_lists: Worst restart: how often the GPU's processes were listed.
        runner_lists: Worst restart: how many of these lists show the runner.
        unlisted_ends: Worst restart: begins and ends of passes without a list within 5 s that shows the runner; 0 for a
            GPU that was not used.
        foreign_bytes: Most memory in use at any instant of a pass beyond what the lists at its begin and end say the
            runner holds; of a used GPU, null where one of the two is unknown.
        above_idle_w: By how much a GPU that was not used drew more in its worst pass than before the runner started;
            null where one of the two is unknown.
    """

    used: bool
    power_course: str | None = None
    nvml_busy_fraction: float | None = None
    events: list[MeterEvent] = Field(default_factory=list)
    throttled_share: dict[str, float] | None = None
    worst_pass_throttled_share: dict[str, float] | None = None
    mean_sm_clock_mhz: float | None = None
    mean_memory_clock_mhz: float | None = None
    max_temperature_c: float | None = None
    max_memory_temperature_c: float | None = None
    worst_pass_busy_share: float | None = None
    mean_power_w: float | None = None
    power_over_counter: float | None = None
    clocks_limited_share: float | None = None
    power_limits_w: tuple[float, float] | None = None
    counter_changes: int = 0
    process_lists: int = 0
    runner_lists: int = 0
    unlisted_ends: int = 0
    foreign_bytes: float | None = None
    above_idle_w: float | None = None


class ListedProcess(Stored):
    """A process that NVML listed on a GPU.

    Attributes:
        of_runner: The process belonged to the runner.
        clock: Index of its boot's clock in `environment.clock.identities`.
        user, command: None where this host does not show the process.
    """

    gpu_uuid: str
    pid: int
    kind: str
    of_runner: bool = False
    clock: int = 0
    user: str | None = None
    command: str | None = None

    @property
    def description(self) -> str:
        """Number, user, command and GPU of the process."""
        owner = f"{self.user or 'unknown user'}, {self.command or 'unknown command'}"
        return f"process {self.pid} ({owner}) on {self.gpu_uuid}"


# A GPU's timeline in a restart, None where the meter has none, and the span of one of the restart's passes.
Part = tuple["GpuTimeline | None", "Span"]


def gpu_results(measured: Measured) -> dict[str, GpuResult]:
    """Return every GPU of the host over all restarts, by UUID."""
    return {
        uuid: GpuResult(
            used=uuid in measured.used,
            **_readings([restart.gpus[uuid] for restart in measured.restarts if uuid in restart.gpus])
            | _conditions(measured, uuid),
            **_evidence(measured, uuid),
        )
        for uuid in (*measured.used, *measured.bystanders)
    }


def _readings(timelines: list[GpuTimeline]) -> dict[str, Any]:
    """Return how well a GPU was read."""
    busy = [gpu.busy_fraction for gpu in timelines if gpu.busy_fraction is not None]
    return {
        "power_course": "+".join(sorted({course for gpu in timelines for course in gpu.power_courses})) or None,
        "nvml_busy_fraction": max(busy, default=None),
        "events": [event for gpu in timelines for event in gpu.events],
    }


def _conditions(measured: Measured, uuid: str) -> dict[str, Any]:
    """Return a GPU's state over what counts of all passes."""
    timelines = [restart.gpus.get(uuid) for restart, _ in measured.passes]
    parts = list(zip(timelines, measured.counted_spans, strict=True))
    throttled = {reason: grown for reason in VIOLATIONS if (grown := _throttled(parts, reason))}
    limited, limits_w = (sampled_throughout(parts, name) for name in ("clocks_limited", "power_limit_w"))
    worst = {reason: max(_share([in_pass]) for in_pass in grown) for reason, grown in throttled.items()}
    wholes = [run_pass.span for run_pass in measured.pass_records]
    over_counter = all_known(map(partial(_power_over_counter, measured), timelines, wholes))
    busy_percent = all_known(over([part], "gpu_utilization_percent", np.mean) for part in parts)
    return {
        "throttled_share": {reason: _share(grown) for reason, grown in throttled.items()} or None,
        "worst_pass_throttled_share": worst or None,
        "mean_sm_clock_mhz": over(parts, "sm_clock_mhz", np.mean),
        "mean_memory_clock_mhz": over(parts, "memory_clock_mhz", np.mean),
        "max_temperature_c": over(parts, "temperature_c", np.max),
        "max_memory_temperature_c": over(parts, "memory_temperature_c", np.max),
        "worst_pass_busy_share": min(busy_percent) / 100 if busy_percent else None,
        "mean_power_w": _mean_power_w(measured, parts),
        # The largest disagreement, with its sign: in a sum, passes of opposite signs would cancel.
        "power_over_counter": max(over_counter, key=abs) if over_counter else None,
        "clocks_limited_share": max(float(np.mean(flags)) for flags in limited) if limited else None,
        "power_limits_w": (min(map(min, limits_w)), max(map(max, limits_w))) if limits_w else None,
    }


def _evidence(measured: Measured, uuid: str) -> dict[str, Any]:
    """Return the evidence that only the runner was on a GPU: the worst values over restarts with passes."""
    restarts = [restart for restart in measured.restarts if restart.passes]
    timelines = [restart.gpus.get(uuid) for restart in restarts]
    lists = [_runner_lists(restart, uuid) for restart in restarts]
    evidence = {
        "counter_changes": min((len(gpu.ticks.energy_mj) if gpu else 0 for gpu in timelines), default=0),
        "process_lists": min((len(gpu.processes) if gpu else 0 for gpu in timelines), default=0),
        "runner_lists": min(map(len, lists), default=0),
    }
    if uuid not in measured.used:
        return evidence | {"above_idle_w": known_max(_above_idle_w(measured, restart, uuid) for restart in restarts)}
    beside = _beside_command if measured.config.command else _beside_engine
    found = [
        [beside(gpu, of_restart, run_pass.span) for run_pass in restart.passes]
        for restart, gpu, of_restart in zip(restarts, timelines, lists, strict=True)
    ]
    return evidence | {
        "unlisted_ends": max((sum(unlisted for unlisted, _ in of_restart) for of_restart in found), default=0),
        "foreign_bytes": known_max(foreign for of_restart in found for _, foreign in of_restart),
    }


def _beside_engine(gpu: GpuTimeline | None, lists: RunnerLists, span: Span) -> tuple[int, float | None]:
    """Return how many ends of a pass no list lies near, and most memory in use beyond the runner's in those that do."""
    begin, end = (
        [size for list_ns, size in lists if abs(list_ns - end_ns) <= LIST_REACH_NS]
        for end_ns in (span.start_ns, span.end_ns)
    )
    used, runner_bytes = sampled_throughout([(gpu, span)], "memory_used_bytes"), known_max(begin + end)
    return [begin, end].count([]), max(used[0]) - runner_bytes if used and runner_bytes is not None else None


def _beside_command(gpu: GpuTimeline | None, lists: RunnerLists, span: Span) -> tuple[int, float | None]:
    """Return the same of a command: its memory grows and shrinks, so that each list says what is in use just then.

    The least reading counts from the one before a list on, until what the command had freed is free. A command is not
    on the GPUs as its run begins and ends: any list of its run tells of both.
    """
    inside = [(list_ns, size) for list_ns, size in lists if span.start_ns <= list_ns <= span.end_ns]
    series = gpu and gpu.series.get("memory_used_bytes")
    if not inside or not series or not len(series.at_ns):
        return 0 if inside else 2, None
    found = []
    for list_ns, size_bytes in inside:
        at, end = (int(np.searchsorted(series.at_ns, at_ns)) for at_ns in (list_ns, list_ns + RELEASE_NS))
        used_bytes = float(series.value[max(0, at - 1) : max(at + 1, end)].min())
        found.append(None if size_bytes is None else used_bytes - size_bytes)
    return 0, known_max(found)


def _throttled(parts: list[Part], reason: str) -> list[tuple[float, float]] | None:
    """Per pass, growth of a cumulative counter between the samples around it, and the time between them; both in ns.

    None where a pass is not covered from end to end, or the counter began anew.
    """
    grown = []
    for gpu, span in parts:
        around = _around(gpu, f"violation_{reason}_ns", span)
        if around is None or (grown_ns := float(around[1][-1] - around[1][0])) < 0:
            return None
        grown.append((grown_ns, float(around[0][-1] - around[0][0])))
    return grown


def sampled_throughout(parts: Sequence[Part], name: str) -> list[list[float]] | None:
    """Return a state's samples in and around each pass; None where a pass has a gap, or no sample near an end."""
    samples = []
    for gpu, span in parts:
        around = _around(gpu, name, span)
        if around is None or int(np.diff(around[0]).max()) > STATE_GAP_NS:
            return None
        samples.append(around[1].tolist())
    return samples


def _share(grown: Sequence[tuple[float, float]]) -> float:
    return sum(grown_ns for grown_ns, _ in grown) / sum(elapsed_ns for _, elapsed_ns in grown)


def _around(gpu: GpuTimeline | None, name: str, span: Span) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return instants and values of a series from the sample before a span to the sample after it.

    Where there is none, from its first sample inside, or to its last. None without the series, and where one of the two
    is far from its end of the span.
    """
    if gpu is None or (series := gpu.series.get(name)) is None:
        return None
    near = np.flatnonzero(
        (series.at_ns >= span.start_ns - COUNTER_REACH_NS) & (series.at_ns <= span.end_ns + COUNTER_REACH_NS)
    )
    before, after = near[series.at_ns[near] <= span.start_ns], near[series.at_ns[near] >= span.end_ns]
    if not len(near):
        return None
    first, last = int(before[-1] if len(before) else near[0]), int(after[0] if len(after) else near[-1])
    late_ns, early_ns = series.at_ns[first] - span.start_ns, span.end_ns - series.at_ns[last]
    if last <= first or max(late_ns, early_ns) > COUNTER_REACH_NS:
        return None
    return series.at_ns[first : last + 1], series.value[first : last + 1]


def _power_over_counter(measured: Measured, gpu: GpuTimeline | None, span: Span) -> float | None:
    """Mean instant power over mean power by the counter, minus one; None for a short pass, or one sampled in part."""
    if gpu is None:
        return None
    power, lag = gpu.power_samples, EnergyCurve.SAMPLE_LAG
    if power is None:
        power, lag = gpu.series.get("power_w"), EnergyCurve.POWER_LAG
    if power is None:
        return None
    for margin_ns in MARGINS_NS:
        if span.end_ns - span.start_ns - 2 * margin_ns < MIN_STATIONARY_NS:
            return None
        inner = Span("stationary", span.start_ns + margin_ns, span.end_ns - margin_ns)
        counted = measured.energy.of_gpu(gpu, inner)
        if counted.mean_power_w:
            since_ns, until_ns = (at_ns + round(lag.mean_s * NS_PER_S) for at_ns in (inner.start_ns, inner.end_ns))
            inside = (power.at_ns > since_ns) & (power.at_ns < until_ns)
            # A sample holds for the time since the one before.
            lengths_ns = np.diff(power.at_ns[inside])
            covered_ns = int(np.minimum(lengths_ns, SAMPLE_REACH_NS).sum())
            if covered_ns < MIN_COVERED * (inner.end_ns - inner.start_ns):
                return None
            return float(np.average(power.value[inside][1:], weights=lengths_ns)) / counted.mean_power_w - 1
    return None


def listed_processes(restarts: Sequence[RestartRecord]) -> list[ListedProcess]:
    """Return every process in the timelines' process lists, once per GPU, kind and boot of the host.

    Process ids begin anew with a boot, so that the same id may belong to another process.
    """
    lists_of: dict[tuple[str, int, str, int], list[tuple[bool, GpuProcess]]] = {}
    clocks = RestartRecord.clock_facts(restarts)
    for restart in restarts:
        clock = clocks.number(restart.clock)
        for uuid, gpu in restart.gpus.items():
            for process in (process for sample in gpu.processes for process in sample.processes):
                seen = lists_of.setdefault((uuid, process.pid, process.kind, clock), [])
                seen.append((process.pid in restart.runner_pids, process))
    return [
        ListedProcess(
            gpu_uuid=uuid,
            pid=pid,
            kind=kind,
            of_runner=any(of_runner for of_runner, _ in seen),
            clock=clock,
            user=next((process.user for _, process in reversed(seen) if process.user), None),
            command=next((process.command for _, process in reversed(seen) if process.command), None),
        )
        for (uuid, pid, kind, clock), seen in lists_of.items()
    ]


def _runner_lists(restart: RestartRecord, uuid: str) -> RunnerLists:
    """Return when each list that shows the runner was made, and the runner's memory in it; None where unknown."""
    samples = restart.gpus[uuid].processes if uuid in restart.gpus else ()
    runners = [
        (sample.at_ns, [process.memory_bytes for process in sample.processes if process.pid in restart.runner_pids])
        for sample in samples
    ]
    return [(at_ns, known_sum(sizes_bytes)) for at_ns, sizes_bytes in runners if sizes_bytes]


def _above_idle_w(measured: Measured, restart: RestartRecord, uuid: str) -> float | None:
    """Return mean power in the pass where it is largest, less that before the runner started."""
    gpu, empty = restart.gpus.get(uuid), [span for span in restart.spans if IDLE_SPANS.get(span.name) == "empty"]
    busy_w = known_max(_mean_power_w(measured, [(gpu, run_pass.span)]) for run_pass in restart.passes)
    idle_w = _mean_power_w(measured, [(gpu, span) for span in empty])
    return None if busy_w is None or idle_w is None else busy_w - idle_w


def _mean_power_w(measured: Measured, parts: Sequence[Part]) -> float | None:
    energy_j = known_sum(measured.energy.of_gpu(gpu, span).energy_j if gpu else None for gpu, span in parts)
    return ratio(energy_j, sum(span.duration_s for _, span in parts))
