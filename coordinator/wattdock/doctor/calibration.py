"""Calibrate an energy counter with load pulses, and store a card of it, which later results cite.

A card comes from a timeline and the instants at which the load really began and ended. Must not know: engines,
hardware, who makes the load.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from math import hypot, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, MeterError
from wattdock.metering import EnergyCurve, MeterCard
from wattdock.metering.cards import COUNTER_LAG, MJ_PER_J, StepLag, tick_instants
from wattdock.text import from_json
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.host import Gpu
    from wattdock.metering import GpuTimeline, Meter
    from wattdock.metering.cards import Ticks

# Windows around a step, in seconds from it, to which the counter's slopes before and after it are fitted.
BEFORE_S, AFTER_S = (-0.45, -0.02), (0.12, 0.55)
MIN_STEP_W = 50.0
# Power right after a step, above power later, as a share of the step: more is an overshoot.
OVERSHOOT_SHARE = 0.05
# Power is at a level when it differs from it by less than this share of the step.
LEVEL_SHARE = 0.1
MIN_STEPS = 10


class Pulse(NamedTuple):
    """One stretch of load: when it began on an idle GPU, and when the device had drained; ns."""

    kind: str
    on_ns: int
    off_ns: int


def recorded_card(gpu: Gpu, meter: Meter, make_load: Callable[[], str]) -> MeterCard:
    """Return the card of a counter that `meter` records while `make_load` runs.

    Args:
        make_load: Returns a line for each load pulse, the arguments of `Pulse` in JSON.

    Raises:
        RunnerError: The load could not be made.
        MeterError: The GPU has no energy counter.
    """
    meter.start()
    try:
        printed = make_load()
    finally:
        timeline = meter.stop()
    pulses = [Pulse(*from_json(line)) for line in printed.splitlines()]
    recorded = timeline.gpus.get(gpu.uuid)
    if recorded is None or recorded.energy_source != "counter" or recorded.period_s is None:
        reason = timeline.reason or "see wattdock doctor"
        raise MeterError(f"{gpu.name} {gpu.uuid} has no energy counter to calibrate: {reason}", cause=Cause.NO_GPU)
    return card_of_pulses(recorded, pulses, gpu, measured_utc=datetime.now(UTC).isoformat(timespec="seconds"))


def card_of_pulses(gpu: GpuTimeline, pulses: Sequence[Pulse], info: Gpu, *, measured_utc: str) -> MeterCard:
    """Return what load pulses show of a counter.

    Args:
        gpu: The GPU's timeline.
        info: The same GPU as the host lists it.
    """
    ticks = gpu.ticks
    intervals_s = np.diff(ticks.after_start_ns) / NS_PER_S
    reads_s = (ticks.after_end_ns - ticks.after_start_ns) / NS_PER_S
    steps = _step_lags(ticks, pulses)
    counted = [step for step in steps if not step.overshoot and step.steps >= MIN_STEPS]
    lag_s = lag_std_s = None
    if counted:
        means_s = [step.mean_s for step in counted]
        lag_s = float(np.mean(means_s))
        within_s = sqrt(sum(step.standard_deviation_s**2 / step.steps for step in counted)) / len(counted)
        # One kind of step alone shows no spread between kinds: that of the assumed lag stands for it.
        between_s = float(np.std(means_s, ddof=1)) if len(means_s) > 1 else COUNTER_LAG.std_s
        lag_std_s = hypot(within_s, between_s)
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
        lag_s=lag_s,
        lag_std_s=lag_std_s,
        steps=steps,
        smoothing_periods=_smoothing(ticks, pulses),
        additivity=_additivity(gpu, pulses),
    )


def apparent_lag_s(ticks: Ticks, step_ns: int) -> float | None:
    """Return where the counter's courses before and after a step meet, in s after it; None without a clear step."""
    at_s, _, _ = tick_instants(ticks, step_ns)
    energy_j = (ticks.energy_mj - ticks.energy_mj[0]) / MJ_PER_J
    lines = []
    for window_s in (BEFORE_S, AFTER_S):
        first, end = np.searchsorted(at_s, window_s)
        if end - first < 3:
            return None
        lines.append(np.polyfit(at_s[first:end], energy_j[first:end], 1))
    (slope_a, level_a), (slope_b, level_b) = lines
    return None if abs(slope_a - slope_b) < MIN_STEP_W else float((level_a - level_b) / (slope_b - slope_a))


def _step_lags(ticks: Ticks, pulses: Sequence[Pulse]) -> list[StepLag]:
    instants: dict[str, list[int]] = {}
    for pulse in pulses:
        instants.setdefault(f"{pulse.kind} on", []).append(pulse.on_ns)
        instants.setdefault(f"{pulse.kind} off", []).append(pulse.off_ns)
    step_lags = []
    for kind, steps_ns in instants.items():
        lags_s = [lag_s for at_ns in steps_ns if (lag_s := apparent_lag_s(ticks, at_ns)) is not None]
        if len(lags_s) > 1:
            step = StepLag(
                kind=kind,
                steps=len(lags_s),
                mean_s=float(np.mean(lags_s)),
                standard_deviation_s=float(np.std(lags_s, ddof=1)),
                overshoot=_overshoots(ticks, steps_ns),
            )
            step_lags.append(step)
    return step_lags


def _overshoots(ticks: Ticks, steps_ns: Sequence[int]) -> bool:
    """Return whether power right after a kind of step exceeds later power, on average over the steps.

    "Right after" is the first interval between counter changes that begins after the step.
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


def _smoothing(ticks: Ticks, pulses: Sequence[Pulse]) -> float | None:
    """Return the mean number of periods, after the period with the step, whose power is at neither level."""
    at_ns = ticks.after_start_ns
    power_w = np.diff(ticks.energy_mj) / np.diff(at_ns) * NS_PER_S / MJ_PER_J
    counts = []
    for step_ns in (edge_ns for pulse in pulses for edge_ns in (pulse.on_ns, pulse.off_ns)):
        step = int(np.searchsorted(at_ns, step_ns)) - 1
        if step < 3 or step + 5 > len(power_w):
            continue
        before_w, after_w = float(np.median(power_w[step - 3 : step])), float(np.median(power_w[step + 2 : step + 5]))
        if abs(after_w - before_w) < MIN_STEP_W:
            continue
        off_level = np.abs(power_w[step + 1 : step + 4] - after_w) > LEVEL_SHARE * abs(after_w - before_w)
        counts.append(int(np.count_nonzero(off_level)))
    return float(np.mean(counts)) if counts else None


def _additivity(gpu: GpuTimeline, pulses: Sequence[Pulse]) -> float | None:
    """Return the sum of the energies of pulses and gaps ÷ the counter's difference over all of them − 1."""
    if len(pulses) < 2:
        return None
    edges_ns = [edge for pulse in pulses for edge in (pulse.on_ns, pulse.off_ns)]
    curve = EnergyCurve(gpu)
    first, last = np.searchsorted(gpu.ticks.after_end_ns, [edges_ns[0], edges_ns[-1]]) - 1
    whole_j = float(gpu.ticks.energy_mj[last] - gpu.ticks.energy_mj[first]) / MJ_PER_J
    parts_j = known_sum(curve.between(start_ns, end_ns).energy_j for start_ns, end_ns in itertools.pairwise(edges_ns))
    return parts_j / whole_j - 1 if parts_j is not None and whole_j else None
