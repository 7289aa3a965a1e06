"""Characterise an energy counter from load pulses at known instants. Pure.

Knows no engine and reads no hardware: it is given a timeline, and when the load really began and ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import hypot, sqrt
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering import COUNTER_LAG, MJ_PER_J, EnergyCurve, LagModel, MeterCard, StepLag, tick_instants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.host import Gpu
    from wattdock.metering import GpuTimeline, Ticks

# Where the counter's course is taken from, before and after a step, in seconds from it.
BEFORE_S, AFTER_S = (-0.45, -0.02), (0.12, 0.55)
MIN_STEP_W = 50.0
# Right after the step against later, as a share of the step.
OVERSHOOT_SHARE = 0.05
# Closer to a level than this share of the step is on it.
LEVEL_SHARE = 0.1
MIN_STEPS = 10


@dataclass(frozen=True)
class Pulse:
    """One stretch of load: when it began on an idle GPU, and when the device had drained; ns."""

    kind: str
    on_ns: int
    off_ns: int


def meter_card(gpu: GpuTimeline, pulses: Sequence[Pulse], info: Gpu, *, measured_utc: str) -> MeterCard:
    """Return what `pulses` show of one GPU's counter."""
    ticks = gpu.ticks
    intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
    reads_s = (ticks.after_end_ns - ticks.after_start_ns) / NS_PER_S
    steps = _step_lags(gpu, pulses)
    clean = [one for one in steps if not one.overshoot and one.steps >= MIN_STEPS]
    lag = _combined(clean)
    return MeterCard(
        gpu_uuid=gpu.uuid,
        gpu_name=info.name,
        driver_version=info.driver_version,
        measured_utc=measured_utc,
        pulses=len(pulses),
        period_s=float(np.median(intervals_s)),
        period_std_s=float(np.std(intervals_s)),
        read_median_s=float(np.median(reads_s)),
        read_p99_s=float(np.quantile(reads_s, 0.99)),
        lag_s=lag.mean_s if lag else None,
        lag_std_s=lag.std_s if lag else None,
        steps=steps,
        smoothing_periods=_smoothing(ticks, pulses),
        additivity=_additivity(gpu, pulses),
    )


def apparent_lag_s(ticks: Ticks, step_ns: int) -> float | None:
    """Return where the counter's courses before and after a step meet, in s after it; None without a clear step."""
    at_s, _, _ = tick_instants(ticks, step_ns)
    energy_j = (ticks.energy_mj - ticks.energy_mj[0]) / MJ_PER_J
    lines = []
    for low_s, high_s in (BEFORE_S, AFTER_S):
        inside = (at_s > low_s) & (at_s < high_s)
        if np.count_nonzero(inside) < 3:
            return None
        lines.append(np.polyfit(at_s[inside], energy_j[inside], 1))
    (slope_a, level_a), (slope_b, level_b) = lines
    return None if abs(slope_a - slope_b) < MIN_STEP_W else float((level_a - level_b) / (slope_b - slope_a))


def _step_lags(gpu: GpuTimeline, pulses: Sequence[Pulse]) -> list[StepLag]:
    instants: dict[str, list[int]] = {}
    for pulse in pulses:
        instants.setdefault(f"{pulse.kind} on", []).append(pulse.on_ns)
        instants.setdefault(f"{pulse.kind} off", []).append(pulse.off_ns)
    found = []
    for kind, steps_ns in instants.items():
        lags_s = [lag_s for at_ns in steps_ns if (lag_s := apparent_lag_s(gpu.ticks, at_ns)) is not None]
        if len(lags_s) > 1:
            overshoot = _overshoots(gpu.ticks, steps_ns)
            mean_s, std_s = float(np.mean(lags_s)), float(np.std(lags_s, ddof=1))
            found.append(
                StepLag(kind=kind, steps=len(lags_s), mean_s=mean_s, standard_deviation_s=std_s, overshoot=overshoot)
            )
    return found


def _overshoots(ticks: Ticks, steps_ns: Sequence[int]) -> bool:
    """Whether power right after a kind of step goes beyond what follows, on average over the steps.

    Right after is the first interval between counter changes that begins after the step: it holds nothing of what was
    before, and on average over phases half of what the step began with.
    """
    at_ns, energy_j = ticks.after_start_ns, ticks.energy_mj / MJ_PER_J
    shares = []
    for step_ns in steps_ns:
        first = int(np.searchsorted(at_ns, step_ns))
        if not 4 <= first < len(at_ns) - 4:
            continue
        before_w, early_w, late_w = (
            (energy_j[end] - energy_j[start]) / (at_ns[end] - at_ns[start]) * NS_PER_S
            for start, end in ((first - 4, first - 1), (first, first + 1), (first + 2, first + 4))
        )
        if abs(late_w - before_w) >= MIN_STEP_W:
            shares.append((early_w - late_w) / (late_w - before_w))
    return bool(shares) and float(np.mean(shares)) > OVERSHOOT_SHARE


def _combined(steps: Sequence[StepLag]) -> LagModel | None:
    """Mean over kinds of steps; its uncertainty from how kinds differ and from the spread within them.

    One kind alone does not tell how kinds differ: then it is taken to be as much as where no lag was measured.
    """
    if not steps:
        return None
    means_s = [one.mean_s for one in steps]
    within_s = sqrt(sum(one.standard_deviation_s**2 / one.steps for one in steps)) / len(steps)
    between_s = float(np.std(means_s, ddof=1)) if len(means_s) > 1 else COUNTER_LAG.std_s
    return LagModel(mean_s=float(np.mean(means_s)), std_s=hypot(within_s, between_s))


def _smoothing(ticks: Ticks, pulses: Sequence[Pulse]) -> float | None:
    """Mean number of whole periods after a step's own whose power is on neither level."""
    at_ns, power_w = (
        ticks.after_start_ns,
        np.diff(ticks.energy_mj) / np.diff(ticks.after_start_ns) * NS_PER_S / MJ_PER_J,
    )
    counts = []
    for step_ns in (one for pulse in pulses for one in (pulse.on_ns, pulse.off_ns)):
        own = int(np.searchsorted(at_ns, step_ns)) - 1
        if own < 3 or own + 5 > len(power_w):
            continue
        before_w, after_w = float(np.median(power_w[own - 3 : own])), float(np.median(power_w[own + 2 : own + 5]))
        if abs(after_w - before_w) < MIN_STEP_W:
            continue
        off_level = np.abs(power_w[own + 1 : own + 4] - after_w) > LEVEL_SHARE * abs(after_w - before_w)
        counts.append(int(np.count_nonzero(off_level)))
    return float(np.mean(counts)) if counts else None


def _additivity(gpu: GpuTimeline, pulses: Sequence[Pulse]) -> float | None:
    """Pulses and gaps one by one against the counter's own difference from the first pulse to the last."""
    if len(pulses) < 2:
        return None
    edges_ns = [edge for pulse in pulses for edge in (pulse.on_ns, pulse.off_ns)]
    curve = EnergyCurve(gpu)
    parts = [curve.between(a, b).energy_j for a, b in itertools.pairwise(edges_ns)]
    first, last = np.searchsorted(gpu.ticks.after_end_ns, [edges_ns[0], edges_ns[-1]]) - 1
    whole_j = float(gpu.ticks.energy_mj[last] - gpu.ticks.energy_mj[first]) / MJ_PER_J
    known = [part for part in parts if part is not None]
    return sum(known) / whole_j - 1 if len(known) == len(parts) and whole_j else None
