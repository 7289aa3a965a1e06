"""State of the GPUs during the measured passes, from their timelines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.conditions_schema import GpuConditions
from wattdock.analysis.steadiness import series_values
from wattdock.clock import NS_PER_S
from wattdock.metering import POWER_LAG, Span
from wattdock.values import all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.joules import SpanJoules
    from wattdock.metering import GpuTimeline, Series
    from wattdock.records import RestartRecord

VIOLATIONS = ("power", "thermal", "board_limit", "reliability")
# Of a pass, not looked at on either side: power there is not stationary, and the two sources lag differently. More
# where the counter was not read near the first of them.
MARGINS_NS = tuple(seconds * NS_PER_S for seconds in (1, 2, 3, 4))
MIN_STATIONARY_NS = 5 * NS_PER_S
# Power is sampled every 50 ms; a sample stands for no more than this much of the time until the next one.
SAMPLE_REACH_NS = NS_PER_S // 2
MIN_COVERED = 0.75
# Violation counters are read once a second, a little later where the GPU is busy.
COUNTER_REACH_NS = 2 * NS_PER_S
# Between two samples of a state; a host that stalls for a second or two still saw it before and after.
STATE_GAP_NS = 5 * NS_PER_S

# A pass, and what was seen of a GPU in its restart; None where nothing was.
Part = tuple["GpuTimeline | None", "Span"]


def gpu_conditions(
    restarts: Sequence[RestartRecord], used: Sequence[str], joules_in: SpanJoules
) -> dict[str, GpuConditions]:
    """Return, per GPU of the host, its state over all measured passes of all restarts."""
    passes = [(restart.gpus, measured.span) for restart in restarts for measured in restart.passes]
    uuids = dict.fromkeys(uuid for gpus, _ in passes for uuid in gpus)
    return {
        uuid: _conditions(uuid, [(gpus.get(uuid), span) for gpus, span in passes], joules_in, is_used=uuid in used)
        for uuid in uuids
    }


def _conditions(uuid: str, parts: list[Part], joules_in: SpanJoules, *, is_used: bool) -> GpuConditions:
    throttled = {reason: found for reason in VIOLATIONS if (found := _throttled(parts, reason))}
    total_j = known_sum(joules_in.of_gpu(gpu, span).energy_j if gpu else None for gpu, span in parts)
    seconds = sum(span.duration_s for _, span in parts)
    limited, limits_w = (sampled_throughout(parts, name) for name in ("clocks_limited", "power_limit_w"))
    return GpuConditions(
        gpu_uuid=uuid,
        used=is_used,
        throttled_share={reason: _share(found) for reason, found in throttled.items()} or None,
        worst_pass_throttled_share={reason: max(_share([one]) for one in found) for reason, found in throttled.items()}
        or None,
        mean_sm_clock_mhz=over(parts, "sm_clock_mhz", np.mean),
        mean_memory_clock_mhz=over(parts, "memory_clock_mhz", np.mean),
        max_temperature_c=over(parts, "temperature_c", np.max),
        max_memory_temperature_c=over(parts, "memory_temperature_c", np.max),
        mean_power_w=None if total_j is None or not seconds else total_j / seconds,
        power_over_counter=_power_over_counter(parts, joules_in),
        clocks_limited_share=max(float(np.mean(one)) for one in limited) if limited else None,
        power_limits_w=(min(map(min, limits_w)), max(map(max, limits_w))) if limits_w else None,
    )


def over(parts: Sequence[tuple[GpuTimeline | None, Span]], name: str, summary: Callable[..., float]) -> float | None:
    """Summarise one series' samples in some spans; None without any."""
    values = np.concatenate([[], *(series_values(gpu, name, span.start_ns, span.end_ns) for gpu, span in parts)])
    return float(summary(values)) if len(values) else None


def _throttled(parts: list[Part], reason: str) -> list[tuple[float, float]] | None:
    """Per pass, growth of a cumulative counter between the samples around it, and the time between them; both in ns.

    None where a pass is not covered from end to end, or the counter began anew.
    """
    grown = []
    for gpu, span in parts:
        series = gpu.series.get(f"violation_{reason}_ns") if gpu else None
        around = _around(series, span) if series else None
        if series is None or around is None:
            return None
        grown_ns, elapsed_ns = (float(values[around[1]] - values[around[0]]) for values in (series.value, series.at_ns))
        if grown_ns < 0:
            return None
        grown.append((grown_ns, elapsed_ns))
    return grown


def sampled_throughout(parts: Sequence[Part], name: str) -> list[list[float]] | None:
    """Return a state's samples in and around each pass; None where one has none near an end, or none for long."""
    every = []
    for gpu, span in parts:
        series = gpu.series.get(name) if gpu else None
        around = _around(series, span) if series else None
        if series is None or around is None:
            return None
        inside = slice(around[0], around[1] + 1)
        if int(np.diff(series.at_ns[inside]).max()) > STATE_GAP_NS:
            return None
        every.append([float(one) for one in series.value[inside]])
    return every


def _share(grown: Sequence[tuple[float, float]]) -> float:
    return sum(grown_ns for grown_ns, _ in grown) / sum(elapsed_ns for _, elapsed_ns in grown)


def _around(series: Series, span: Span) -> tuple[int, int] | None:
    """The last sample before a span and the first after it, or the outermost inside; None where they are not near."""
    near = np.flatnonzero(
        (series.at_ns >= span.start_ns - COUNTER_REACH_NS) & (series.at_ns <= span.end_ns + COUNTER_REACH_NS)
    )
    before, after = near[series.at_ns[near] <= span.start_ns], near[series.at_ns[near] >= span.end_ns]
    if not len(near):
        return None
    first, last = int(before[-1] if len(before) else near[0]), int(after[0] if len(after) else near[-1])
    late_ns, early_ns = series.at_ns[first] - span.start_ns, span.end_ns - series.at_ns[last]
    return (first, last) if last > first and max(late_ns, early_ns) <= COUNTER_REACH_NS else None


def _power_over_counter(parts: list[Part], joules_in: SpanJoules) -> float | None:
    """The largest disagreement of any pass, with its sign: in a sum, one pass's would hide another's."""
    ratios = all_known(_pass_power_over_counter(gpu, span, joules_in) for gpu, span in parts)
    return max(ratios, key=abs) if ratios else None


def _pass_power_over_counter(gpu: GpuTimeline | None, span: Span, joules_in: SpanJoules) -> float | None:
    """Mean instant power over mean power by the counter, minus one; None for a short pass, or one sampled in part."""
    power = gpu.series.get("power_w") if gpu and gpu.energy_source == "counter" else None
    if gpu is None or power is None:
        return None
    for margin_ns in MARGINS_NS:
        inner = Span("stationary", span.start_ns + margin_ns, span.end_ns - margin_ns)
        if inner.end_ns - inner.start_ns < MIN_STATIONARY_NS:
            return None
        if counted_w := joules_in.of_gpu(gpu, inner).mean_power_w:
            power_w = _sampled_w(power, inner)
            return None if power_w is None else power_w / counted_w - 1
    return None


def _sampled_w(power: Series, span: Span) -> float | None:
    """Mean of a span's power samples; None where they cover too little of it."""
    lag_ns = round(POWER_LAG.mean_s * NS_PER_S)
    inside = (power.at_ns > span.start_ns + lag_ns) & (power.at_ns < span.end_ns + lag_ns)
    covered_ns = _covered_ns(power.at_ns[inside])
    return float(np.mean(power.value[inside])) if covered_ns >= MIN_COVERED * (span.end_ns - span.start_ns) else None


def _covered_ns(at_ns: NDArray[np.int64]) -> int:
    """How much time samples stand for."""
    return int(np.minimum(np.diff(at_ns), SAMPLE_REACH_NS).sum())
