"""Steady state of GPUs: over a warm-up, and idle. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import hypot
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

from wattdock.analysis.trend import MIN_RANKED, median_slope
from wattdock.clock import NS_PER_S
from wattdock.metering import EnergyCurve
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.analysis.trend import Change
    from wattdock.config import IdleSpec, WarmUpSpec
    from wattdock.metering import GpuTimeline, Span, Timeline
    from wattdock.records import WarmUpSample

S_PER_MIN = 60.0
# Share of a warm-up that is judged: its first third compiles kernels and heats the board fastest.
WINDOW_SHARE = 2 / 3
MIN_READINGS = 2
TEMPERATURES = ("temperature_c", "memory_temperature_c")
# Least time in which to look for a temperature, read once a second: half of a short span may hold none.
TEMPERATURE_REACH_S = 3.0
IDLE_SPANS: dict[str, Literal["empty", "loaded_before", "loaded_after"]] = {
    "idle-empty": "empty",
    "idle-loaded-before": "loaded_before",
    "idle-loaded-after": "loaded_after",
}


# Series whose mean an idle baseline holds under the same name.
IDLE_SERIES = ("temperature_c", "sm_clock_mhz", "memory_clock_mhz", "performance_state", "memory_used_bytes")


class IdleBaseline(Stored):
    """One GPU without work, over one idle span, by its energy counter.

    Attributes:
        state: "empty" before the runner started; "loaded_before" and "loaded_after" the passes, with context and
            weights.
        used: The GPU held a part of the model.
        unsettled: Why the GPU had not settled; null where it had.
        performance_state: NVML's P-state, 0 is the fastest.
    """

    restart: int
    gpu_uuid: str
    state: Literal["empty", "loaded_before", "loaded_after"]
    used: bool
    duration_s: float
    mean_power_w: float | None
    timing_w: float | None
    unsettled: str | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    performance_state: float | None
    memory_used_bytes: float | None
    utilization_percent: float | None = None


class Steadiness(Stored):
    """A warm-up over its last two thirds, or its last window where that is longer.

    Attributes:
        duration_s: Length of the warm-up so far.
        drifting: What is not steady yet, with its figure and limit; empty when the warm-up is over.
        tokens_slope_per_min, energy_slope_per_min: Relative change per minute of tokens/s, and of joules per token;
            null with too few passes, or without energy.
        tokens_slope95_per_min, energy_slope95_per_min: Half the widths of their 95 % intervals.
        temperature_range_c: Largest change of any sensor; null unless every sensor was read at least twice.
    """

    duration_s: float
    drifting: tuple[str, ...] = ()
    tokens_slope_per_min: float | None = None
    energy_slope_per_min: float | None = None
    tokens_slope95_per_min: float | None = None
    energy_slope95_per_min: float | None = None
    temperature_range_c: float | None = None


def warm_up_steadiness(samples: Sequence[WarmUpSample], limits: WarmUpSpec, gpu_uuids: Sequence[str]) -> Steadiness:
    """Judge a warm-up by the passes of its last window.

    What is published, joules per token, must be shown to be steady; of tokens/s, which a busy host moves more, no drift
    may show. Without GPUs tokens/s alone are there, and must be shown to be steady.

    Args:
        gpu_uuids: GPUs whose energy and temperature must be known for the warm-up to be steady.
    """
    if not samples:
        return Steadiness(duration_s=0.0, drifting=("not begun",))
    end_ns = samples[-1].span.end_ns
    duration_s = (end_ns - samples[0].span.start_ns) / NS_PER_S
    # Windows hold whole passes: as many as their length needs. That of the slopes holds enough to tell their interval,
    # and grows, so that what a short one cannot decide a longer one can.
    recent = _last(samples, end_ns - round(limits.window_s * NS_PER_S))
    long_s = max(limits.window_s, WINDOW_SHARE * duration_s)
    window = max(_last(samples, end_ns - round(long_s * NS_PER_S)), samples[-MIN_RANKED:], key=len)
    tokens = _slope_per_min(window, [sample.output_tokens / sample.span.duration_s for sample in window])
    joules = [
        sample.energy_j / sample.output_tokens
        for sample in window
        if sample.energy_j is not None and sample.output_tokens
    ]
    energy = _slope_per_min(window, joules) if len(joules) == len(window) else None
    temperature_c = _temperature_range_c(recent, gpu_uuids)
    drifting = []
    if duration_s < limits.min_s:
        drifting.append(f"{duration_s:.0f} s of {limits.min_s:g} s")
    for name, slope_per_min, must_be_shown in (
        ("tokens/s", tokens, not gpu_uuids),
        *([("J/token", energy, True)] if gpu_uuids else []),
    ):
        within = slope_per_min and slope_per_min.is_within(limits.slope_per_min)
        if slope_per_min is None or within is False or (must_be_shown and within is None):
            text = "unknown" if slope_per_min is None else f"{slope_per_min}/min"
            drifting.append(f"{name} {text} (limit {limits.slope_per_min:.2%}/min)")
    if gpu_uuids and (temperature_c is None or temperature_c > limits.temperature_c):
        text = "unknown" if temperature_c is None else f"changed by {temperature_c:.1f} °C"
        drifting.append(f"temperature {text} (limit {limits.temperature_c:g} °C)")
    return Steadiness(
        duration_s=duration_s,
        drifting=tuple(drifting),
        tokens_slope_per_min=tokens and tokens.relative,
        energy_slope_per_min=energy and energy.relative,
        tokens_slope95_per_min=tokens and tokens.half95,
        energy_slope95_per_min=energy and energy.half95,
        temperature_range_c=temperature_c,
    )


def _last(samples: Sequence[WarmUpSample], reach_ns: int) -> Sequence[WarmUpSample]:
    first = max((i for i, sample in enumerate(samples) if sample.span.start_ns <= reach_ns), default=0)
    return samples[first:]


def _slope_per_min(samples: Sequence[WarmUpSample], values: Sequence[float]) -> Change | None:
    """Return the median slope between the passes' middles; None with too few passes, or without a token."""
    middles_ns = np.array([(sample.span.start_ns + sample.span.end_ns) / 2 for sample in samples])
    return median_slope(middles_ns / NS_PER_S / S_PER_MIN, np.array(values)) if all(values) else None


def _temperature_range_c(samples: Sequence[WarmUpSample], gpu_uuids: Sequence[str]) -> float | None:
    """Return the largest change of a sensor; None where a GPU lacks a sensor that another GPU has, or any sensor."""
    names = {sensor.split()[1] for sample in samples for sensor in sample.temperature_c}
    sensors = [f"{uuid} {name}" for uuid in gpu_uuids for name in {TEMPERATURES[0], *names}]
    readings_c = [
        [sample.temperature_c[sensor] for sample in samples if sensor in sample.temperature_c] for sensor in sensors
    ]
    # A single reading shows no change.
    if any(len(of_sensor) < MIN_READINGS for of_sensor in readings_c):
        return None
    return max((max(of_sensor) - min(of_sensor) for of_sensor in readings_c), default=None)


def late_temperatures_c(timeline: Timeline, span: Span, uuids: Sequence[str]) -> dict[str, float]:
    """Return each sensor's mean over a span's second half or its last seconds, whichever is longer.

    Sensors are named "<GPU UUID> <sensor>".
    """
    since_ns = min((span.start_ns + span.end_ns) // 2, span.end_ns - round(TEMPERATURE_REACH_S * NS_PER_S))
    means: dict[str, float] = {}
    for uuid in uuids:
        for name in TEMPERATURES:
            values = series_values(timeline.gpus.get(uuid), name, since_ns, span.end_ns)
            if len(values):
                means[f"{uuid} {name}"] = float(np.mean(values))
    return means


def idle_unsettled(
    gpus: Mapping[str, GpuTimeline],
    span: Span,
    uuids: Sequence[str],
    limits: IdleSpec,
    *,
    curve_of: Callable[[GpuTimeline], EnergyCurve] = EnergyCurve,
) -> tuple[str, ...]:
    """Return which of the GPUs had not settled in a span without work, and why; empty where all had.

    Args:
        curve_of: Gives the energy curve of a GPU; who asks for many spans keeps them.
    """
    middle_ns = (span.start_ns + span.end_ns) // 2
    unsettled = []
    for uuid in uuids:
        if (gpu := gpus.get(uuid)) is None:
            unsettled.append(f"{uuid}: the meter did not see it")
            continue
        curve = curve_of(gpu)
        first = curve.between(span.start_ns, middle_ns).mean_power_w
        second = curve.between(middle_ns, span.end_ns).mean_power_w
        if not first or second is None:
            unsettled.append(f"{uuid}: power unknown")
        elif abs(second / first - 1) > limits.settled:
            unsettled.append(f"{uuid}: {first:.1f} W, then {second:.1f} W (limit {limits.settled:.1%})")
        since_ns = min(span.start_ns, span.end_ns - round(TEMPERATURE_REACH_S * NS_PER_S))
        temperatures = series_values(gpu, TEMPERATURES[0], since_ns, span.end_ns)
        if any(event.kind == "not_supported" and event.reading == TEMPERATURES[0] for event in gpu.events):
            continue
        if len(temperatures) < MIN_READINGS:
            unsettled.append(f"{uuid}: temperature unknown")
        elif np.ptp(temperatures) > limits.temperature_c:
            unsettled.append(f"{uuid}: {temperatures[0]:g} °C, then {temperatures[-1]:g} °C")
    return tuple(unsettled)


@dataclass(frozen=True)
class IdleState:
    """Mean power and temperature of a GPU in a span without work; None where unknown."""

    power_w: float | None
    temperature_c: float | None


def idle_states(gpus: Mapping[str, GpuTimeline], span: Span, uuids: Sequence[str]) -> dict[str, IdleState]:
    """Return mean power and temperature in a span without work of each GPU that the meter saw, by UUID."""
    states = {}
    for uuid in uuids:
        if (gpu := gpus.get(uuid)) is not None:
            temperatures = series_values(gpu, TEMPERATURES[0], span.start_ns, span.end_ns)
            states[uuid] = IdleState(
                EnergyCurve(gpu).between(span.start_ns, span.end_ns).mean_power_w,
                float(np.mean(temperatures)) if len(temperatures) else None,
            )
    return states


def not_cooled_down(
    current: Mapping[str, IdleState], initial: Mapping[str, IdleState], limits: IdleSpec
) -> tuple[str, ...]:
    """Return which GPUs have not cooled down to their first idle power and temperature yet, and by how much."""
    warm = []
    for uuid in (uuid for uuid in current if uuid in initial):
        watts, celsius = current[uuid].power_w, current[uuid].temperature_c
        watts_first, celsius_first = initial[uuid].power_w, initial[uuid].temperature_c
        if watts and watts_first and watts / watts_first - 1 > limits.band:
            warm.append(f"{uuid}: {watts:.1f} W, {watts_first:.1f} W at first (limit {limits.band:+.0%})")
        if celsius is not None and celsius_first is not None and celsius - celsius_first > limits.band_c:
            warm.append(f"{uuid}: {celsius:g} °C, {celsius_first:g} °C at first (limit {limits.band_c:+g} °C)")
    return tuple(warm)


def series_values(gpu: GpuTimeline | None, name: str, start_ns: int, end_ns: int) -> NDArray[np.float64]:
    """Return the samples of one series inside a span, shape (n,); empty without the series."""
    if gpu is None or (series := gpu.series.get(name)) is None:
        return np.zeros(0)
    return series.value[(series.at_ns >= start_ns) & (series.at_ns <= end_ns)]


def idle_baselines(measured: Measured) -> list[IdleBaseline]:
    """Return every GPU of the host in every idle span of every restart."""
    return [
        _baseline(measured, restart.restart, span, gpu)
        for restart in measured.restarts
        for span in restart.spans
        if span.name in IDLE_SPANS
        for gpu in restart.gpus.values()
    ]


def _baseline(measured: Measured, restart: int, span: Span, gpu: GpuTimeline) -> IdleBaseline:
    joules, curve_of = measured.energy.of_gpu(gpu, span), measured.energy.curve
    unsettled = idle_unsettled({gpu.uuid: gpu}, span, [gpu.uuid], measured.config.idle, curve_of=curve_of)
    means = {name: over([(gpu, span)], name, np.mean) for name in IDLE_SERIES}
    return IdleBaseline(
        restart=restart,
        gpu_uuid=gpu.uuid,
        state=IDLE_SPANS[span.name],
        used=gpu.uuid in measured.used,
        duration_s=span.duration_s,
        mean_power_w=joules.mean_power_w,
        timing_w=None if joules.timing_j is None else joules.timing_j / span.duration_s,
        unsettled="; ".join(unsettled) or None,
        utilization_percent=over([(gpu, span)], "gpu_utilization_percent", np.mean),
        **means,
    )


def idle_energy_j(measured: Measured, baselines: Sequence[IdleBaseline]) -> tuple[float, float] | None:
    """Return the energy that the GPUs used would have drawn in all passes, idle and loaded, and its uncertainty, in J.

    Per GPU, power is the mean of its idle powers before and after the passes. The uncertainty is the root of squares of
    half their difference and of their timing, each summed linearly: an upper bound. None where an idle power is
    unknown, or no GPU was used. A restart that was interrupted and resumed needs idle powers of each of its runners; an
    interrupted runner lacks those after its passes, and no other runner's replace them.
    """
    powers: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for baseline in baselines:
        if baseline.mean_power_w is not None and baseline.timing_w is not None:
            powers.setdefault((baseline.restart, baseline.gpu_uuid, baseline.state), []).append(
                (baseline.mean_power_w, baseline.timing_w)
            )
    runners = Counter(restart.restart for restart in measured.restarts if restart.passes)
    idle_j, half_difference_j, timing_j = 0.0, 0.0, 0.0
    for restart in measured.restarts:
        duration_s = sum(run_pass.span.duration_s for run_pass in restart.passes)
        for uuid in measured.used:
            sides = [powers.get((restart.restart, uuid, f"loaded_{side}"), []) for side in ("before", "after")]
            if min(map(len, sides)) < max(1, runners[restart.restart]):
                return None
            before_w, after_w = (fmean(power_w for power_w, _ in side) for side in sides)
            idle_j += duration_s * (before_w + after_w) / 2
            half_difference_j += duration_s * abs(before_w - after_w) / 2
            timing_j += duration_s * fmean(fmean(timing_w for _, timing_w in side) for side in sides)
    return (idle_j, hypot(half_difference_j, timing_j)) if measured.used and idle_j else None


def over(parts: Sequence[tuple[GpuTimeline | None, Span]], name: str, summary: Callable[..., float]) -> float | None:
    """Summarise one series' samples in some spans; None without any."""
    values = np.concatenate([[], *(series_values(gpu, name, span.start_ns, span.end_ns) for gpu, span in parts)])
    return float(summary(values)) if len(values) else None
