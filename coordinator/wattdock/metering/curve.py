"""Turn one GPU's timeline and a span into joules and their timing uncertainty.

Pure: reads no hardware, knows no backend and no files. `timing_j` covers what the timeline cannot tell about *when*:
tick brackets, the course of power between ticks, the counter's lag, its resolution; never the sensor's gain.
The model and its limits: docs/decisions/energy-uncertainty.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot, sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.course import SAMPLE_LAG, SampledCurve
from wattdock.metering.timeline import CAUSES, HBM_POWER, LOSSES, MAX_GAP_S, MJ_PER_J, SAMPLES, LagModel, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.metering.timeline import EnergySource, GpuTimeline, Series, Ticks

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

MAX_GAP_PERIODS = 10.0
# Differences between neighbouring ticks' powers count as far as they exceed their own noise by this factor.
NOISE_FACTOR = 1.5
# What is left open where power is taken to have stepped, or to have changed steadily, as a share of the correction.
STEP_STD, RAMP_STD = 0.15, 0.3
# A burst of unknown place and height inside one tick.
BURST_STD = 0.6
# Fluctuation that only the power samples show: the time to either side over which it is judged, and its weight.
HIDDEN_SPAN_S = 0.5
HIDDEN_STD = 0.75
# Ticks on either side that the energy at one instant hangs on.
REACH = 3


# Source: docs/measurements/meter.md: load and meter in two processes, 105 steps without a power overshoot,
# +6.6 to +10.1 ms per kind of step. One H200: the spread leaves room for others.
COUNTER_LAG = LagModel(mean_s=0.008, std_s=0.005)
# Read as power at an instant, a sample of 20 ms trails by half of them more.
SAMPLE_READING_LAG = LagModel(mean_s=SAMPLE_LAG.mean_s + 0.01, std_s=SAMPLE_LAG.std_s)
# Source: 8 load steps on an H200; the instant power passed the half-way mark 23 to 138 ms late.
POWER_LAG = LagModel(mean_s=0.080, std_s=0.033)
# Source: NVML API, nvmlDeviceGetPowerUsage: averaged over one second on recent GPUs.
POWER_AVERAGE_LAG = LagModel(mean_s=0.5, std_s=0.29)
# Source: docs/methodology.md, one H200: the memory's means are made anew every 0.1 s, and about 0.03 s old then.
HBM_LAG = LagModel(mean_s=0.08, std_s=0.03)
# They are means of a second: they say too little of shorter spans, nor can more time lie between two readings.
LEAST_HBM_S, MAX_HBM_GAP_S = 5.0, 0.5
# A driver that knows no parts of the board answers with the whole board's power.
MAX_HBM_SHARE = 0.9
# A change is never closer to the one before it than this share of the period: 0.74 was the least on an H200 under load.
LEAST_INTERVAL_PERIODS = 0.5


@dataclass(frozen=True)
class SpanEnergy:
    """Energy of one GPU in one span.

    Attributes:
        energy_j: Joules of the GPU board, or None; `reason` then says why.
        timing_j: Standard uncertainty of `energy_j` that comes from timing, J; the sensor's gain is not in it.
        source: What it was computed from.
        duration_s: Length of the span.
        lost: There is no energy because the GPU was lost or its counter froze.
    """

    energy_j: float | None
    timing_j: float | None
    source: EnergySource | None
    reason: str | None
    duration_s: float
    lost: bool = False

    @property
    def mean_power_w(self) -> float | None:
        """Energy over duration in watts; None without energy or in a span of no length."""
        if self.energy_j is None or self.duration_s <= 0:
            return None
        return self.energy_j / self.duration_s


class EnergyCurve:
    """Cumulative energy of one GPU, for many spans of one timeline."""

    # What is assumed of a counter without a card, and of power samples.
    COUNTER_LAG: ClassVar = COUNTER_LAG
    POWER_LAG: ClassVar = POWER_LAG
    SAMPLE_LAG: ClassVar = SAMPLE_LAG

    def __init__(self, gpu: GpuTimeline, *, lag: LagModel | None = None) -> None:
        self.source = gpu.energy_source
        self._gpu = gpu
        self._curves: list[SampledCurve | _CounterCurve | _PowerCurve] = []
        if gpu.energy_source == "counter":
            counter_lag = lag or gpu.lag or COUNTER_LAG
            if gpu.power_samples is not None and len(gpu.power_samples.at_ns) > 1 and len(gpu.ticks.energy_mj) > 1:
                self._curves.append(_sampled_curve(gpu, gpu.power_samples, counter_lag))
            self._curves.append(_CounterCurve(gpu.ticks, gpu.series.get("power_w"), counter_lag))
        elif gpu.energy_source:
            self._curves += _power_curves(gpu, lag)

    @cached_property
    def _fallbacks(self) -> list[_PowerCurve]:
        """Integrated power, for spans in which the counter did not answer."""
        return _power_curves(self._gpu)

    @cached_property
    def changes(self) -> Ticks:
        """All of the counter's changes; where some were not looked for, as the power samples tell them."""
        curve = next(iter(self._curves), None)
        if isinstance(curve, SampledCurve) and self._gpu.period_s:
            return curve.changes(self._gpu.period_s)
        return self._gpu.ticks

    def between(self, start_ns: int, end_ns: int) -> SpanEnergy:
        """Return the joules between two instants, CLOCK_MONOTONIC nanoseconds.

        Raises:
            ValueError: The span ends before it begins.
        """
        if end_ns < start_ns:
            raise ValueError(f"the span ends {start_ns - end_ns} ns before it begins")
        duration_s = (end_ns - start_ns) / NS_PER_S
        if not self._curves:
            events = [event for event in self._gpu.events if event.kind in (*CAUSES, "not_supported")]
            why = "; ".join(event.message for event in events)
            reason = f"no energy source on {self._gpu.uuid}" + (f": {why}" if why else "")
            return SpanEnergy(None, None, None, reason, duration_s, lost=bool(self._gpu.losses))
        span = Span("", start_ns, end_ns)
        frozen = next((event.message for event in self._gpu.losses if event.end_ns and event.touches(span)), None)
        reasons = {curve: frozen or curve.why_not(start_ns, end_ns) for curve in self._curves}
        curve, source = next((curve for curve, why_not in reasons.items() if not why_not), None), self.source
        if curve is None:
            cause = self._gpu.cause(start_ns, end_ns)
            lost = cause is not None and cause.kind in LOSSES
            curve = next((curve for curve in self._fallbacks if not curve.why_not(start_ns, end_ns)), None)
            if cause is None or lost or curve is None:
                return SpanEnergy(
                    None, None, source, cause.message if cause else reasons[self._curves[0]], duration_s, lost
                )
            source = "integrated_power"
        energy_j, timing_j = curve.between(start_ns, end_ns)
        return SpanEnergy(energy_j, timing_j, source, None, duration_s)

    def hbm_between(self, start_ns: int, end_ns: int) -> SpanEnergy:
        """Return the joules of the GPU's memory between two instants: a part of the board's joules.

        They are the driver's own figure, whose gain is unknown, and None where the board's are.

        Raises:
            ValueError: The span ends before it begins.
        """
        board, power = self.between(start_ns, end_ns), self._gpu.series.get(HBM_POWER)
        if board.energy_j is None:
            return board
        curve = power and _HbmCurve(power)
        why_not = curve.why_not(start_ns, end_ns) if curve else "the driver does not report the memory's power"
        energy_j, timing_j = curve.between(start_ns, end_ns) if curve and not why_not else (None, None)
        if energy_j is not None and not 0 < energy_j <= MAX_HBM_SHARE * board.energy_j:
            why_not = f"the driver's figure for the memory is {energy_j / board.energy_j:.0%} of the board's power"
            energy_j = timing_j = None
        return replace(board, energy_j=energy_j, timing_j=timing_j, source="integrated_power", reason=why_not)

    def bins(self, start_ns: int, end_ns: int) -> tuple[Indices, Floats]:
        """Return instants between two others at which energy is known without a guess at its course, and the joules.

        Returns:
            Ascending CLOCK_MONOTONIC nanoseconds, shape (m + 1,), and joules between neighbours, shape (m,); both are
            empty without an energy counter.
        """
        for curve in self._curves:
            if isinstance(curve, _CounterCurve | SampledCurve) and not curve.why_not(start_ns, end_ns):
                return curve.bins(start_ns, end_ns)
        return np.empty(0, dtype=np.int64), np.empty(0)


class _CounterCurve:
    """Energy from counter changes: linear between them, corrected by the powers of the neighbouring intervals."""

    def __init__(self, ticks: Ticks, power: Series | None, lag: LagModel) -> None:
        self._lag = lag
        self._base_ns = int(ticks.before_start_ns[0]) if len(ticks.energy_mj) else 0
        self._at_s, self._std_s, self._period_s = tick_instants(ticks, self._base_ns)
        self._energy_j = (ticks.energy_mj - ticks.energy_mj[:1]) / MJ_PER_J
        self._resolution_j = resolution_mj(ticks) / MJ_PER_J
        self._noise_w = _difference_noise_w(self._at_s, self._energy_j, self._std_s)
        # Between each change and the next one, how long reads saw it stand still.
        self._stood_s = (ticks.before_start_ns[1:] - ticks.after_end_ns[:-1]) / NS_PER_S
        self._hidden_std_w = np.zeros(max(0, len(self._at_s) - 1))
        if power is not None and len(self._at_s) > 2 * REACH and len(power.at_ns):
            self._hidden_std_w = self._hidden(power)

    def why_not(self, start_ns: int, end_ns: int) -> str | None:
        """Return why a span has no energy, or None."""
        margin_s = abs(self._lag.mean_s) + self._lag.std_s
        first = self._tick_before(self._seconds(start_ns) - margin_s) - REACH + 1
        last = self._tick_before(self._seconds(end_ns) + margin_s) + REACH
        if first < 0 or last >= len(self._at_s):
            return f"the span is not inside the recorded counter changes ({REACH} are needed on either side)"
        if (np.diff(self._energy_j[first : last + 1]) < 0).any():
            return "the energy counter was reset within the span or next to it"
        gaps_s = np.diff(self._at_s)
        long = np.flatnonzero(gaps_s[first:last] > max(MAX_GAP_S, MAX_GAP_PERIODS * self._period_s)) + first
        # A counter goes on while nobody reads it; only the ticks near each end must be close together.
        unread_inside = (self._stood_s[long] < MAX_GAP_S) & (long >= first + 2 * REACH) & (long < last - 2 * REACH)
        if not unread_inside.all():
            longest_s = float(gaps_s[long[~unread_inside]].max())
            return f"the energy counter was not seen to change for {longest_s:.1f} s within the span or next to it"
        return None

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Return joules and their standard uncertainty."""
        start_s, end_s = (self._seconds(at_ns) + self._lag.mean_s for at_ns in (start_ns, end_ns))
        start, end = self._end(start_s), self._end(end_s)
        energy_j = end.energy_j - start.energy_j
        lag_j = _lag_part(
            *(
                self._end(end_s + s).energy_j - self._end(start_s + s).energy_j - energy_j
                for s in (self._lag.std_s, -self._lag.std_s)
            )
        )
        # A tick that both ends depend on moves both: its effects are summed before they are squared.
        effects_j = np.zeros((3, max(end.ticks.stop, start.ticks.stop) - start.ticks.start))
        for sign, point in ((-1, start), (1, end)):
            effects_j[:, point.ticks.start - start.ticks.start : point.ticks.stop - start.ticks.start] += (
                sign * point.effects_j
            )
        variance_j2 = (
            float((np.array([[0.5], [0.5], [1.0]]) * effects_j**2).sum())
            + lag_j**2
            + start.shape_var_j2
            + end.shape_var_j2
        )
        return energy_j, sqrt(variance_j2)

    def bins(self, start_ns: int, end_ns: int) -> tuple[Indices, Floats]:
        """Return the instants of the counter's changes in a span, and the joules between them."""
        at_ns = self._base_ns + np.round((self._at_s - self._lag.mean_s) * NS_PER_S).astype(np.int64)
        inside = slice(*np.searchsorted(at_ns, (start_ns, end_ns)))
        return at_ns[inside], np.diff(self._energy_j[inside])

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self._base_ns) / NS_PER_S

    def _tick_before(self, at_s: float) -> int:
        return int(np.searchsorted(self._at_s, at_s, side="right")) - 1

    def _end(self, at_s: float) -> _End:
        """Return energy at one end of a span, and how it changes when each tick around it moves by its uncertainty."""
        k = self._tick_before(at_s)
        ticks = slice(k - REACH + 1, k + REACH + 1)
        # Row 0 as recorded, then each tick's instant moved later, earlier, then each tick's value moved.
        count = 2 * REACH
        instants_s = np.tile(self._at_s[ticks], (1 + 3 * count, 1))
        values_j = np.tile(self._energy_j[ticks], (1 + 3 * count, 1))
        instants_s[1 : 1 + count] += np.diag(self._std_s[ticks])
        instants_s[1 + count : 1 + 2 * count] -= np.diag(self._std_s[ticks])
        values_j[1 + 2 * count :] += np.eye(count) * self._resolution_j / sqrt(12)
        energies_j, shape_std_j = bent_energy(at_s, instants_s, values_j, self._noise_w[k - 1 : k + 3])
        part = (at_s - self._at_s[k]) / (self._at_s[k + 1] - self._at_s[k])
        hidden_j = HIDDEN_STD * float(self._hidden_std_w[k]) * float(self._at_s[k + 1] - self._at_s[k])
        return _End(
            energy_j=float(energies_j[0]),
            shape_var_j2=float(shape_std_j[0]) ** 2 + hidden_j**2 * float(part * (1 - part)),
            ticks=ticks,
            effects_j=(energies_j[1:] - energies_j[0]).reshape(3, count),
        )

    def _hidden(self, power: Series) -> Floats:
        """Return the standard deviation of power in each interval that neither means nor steps nor ramps explain, W.

        Total variance of the instant power around an interval, less that of the intervals' means, less what the bends
        account for. Says nothing about when, so it only widens.
        """
        middle_s = (self._at_s[:-1] + self._at_s[1:]) / 2
        # A reset's huge drop says nothing about power, and would dominate the sums.
        power_w = np.clip(np.diff(self._energy_j), 0, None) / np.diff(self._at_s)
        first, last = (np.searchsorted(middle_s, middle_s + side * HIDDEN_SPAN_S) for side in (-1, 1))
        sampled_s = (power.at_ns - self._base_ns) / NS_PER_S - POWER_LAG.mean_s
        samples = (np.searchsorted(sampled_s, self._at_s[edge]) for edge in (first, last))
        total_w2 = _moving_variance(power.value, *samples)
        explained_w2 = _moving_mean(_bend_variance_w2(power_w, self._noise_w), first, last)
        return np.sqrt(np.clip(total_w2 - _moving_variance(power_w, first, last) - explained_w2, 0, None))


@dataclass(frozen=True)
class _End:
    """One end of a span.

    Attributes:
        energy_j: Joules since the first tick.
        shape_var_j2: Variance from the unknown course of power inside the interval, J².
        ticks: Those that `energy_j` hangs on, n of them.
        effects_j: What it changes by if each of them came later, came earlier, showed more; shape (3, n).
    """

    energy_j: float
    shape_var_j2: float
    ticks: slice
    effects_j: Floats


def tick_instants(ticks: Ticks, base_ns: int, period_s: float | None = None) -> tuple[Floats, Floats, float]:
    """Return counter changes' estimated instants, s since `base_ns`, their standard uncertainties and the period, s.

    The period is the median interval between the changes, unless given.

    A change lies uniformly between two sampling instants, each of them uniform inside its call. Where other changes
    were missed before it, or where the last one is too close, the bracket's far end is cut off.
    """
    before_s = ((ticks.before_start_ns - base_ns) + (ticks.before_end_ns - base_ns)) / 2 / NS_PER_S
    after_s = ((ticks.after_start_ns - base_ns) + (ticks.after_end_ns - base_ns)) / 2 / NS_PER_S
    middle_s = (before_s + after_s) / 2
    if period_s is None:
        period_s = float(np.median(np.diff(after_s))) if len(after_s) > 1 else 0.0
    spread_before_s = (ticks.before_end_ns - ticks.before_start_ns) / NS_PER_S
    spread_after_s = (ticks.after_end_ns - ticks.after_start_ns) / NS_PER_S
    if period_s:
        nearest_s = np.concatenate(([-np.inf], middle_s[:-1] + LEAST_INTERVAL_PERIODS * period_s))
        earliest_s = np.minimum(np.maximum(nearest_s, after_s - period_s), after_s)
        cut = earliest_s > before_s
        before_s = np.where(cut, earliest_s, before_s)
        spread_before_s = np.where(cut, 0.0, spread_before_s)
    variance_s2 = (after_s - before_s) ** 2 / 12 + (spread_before_s**2 + spread_after_s**2) / 36
    return (before_s + after_s) / 2, np.sqrt(variance_s2), period_s


def resolution_mj(ticks: Ticks) -> float:
    """Return the counter's step in millijoules: the largest number that divides all of its values.

    Values, not differences: differences of a steady load can all be equal.
    """
    return float(np.gcd.reduce(ticks.energy_mj)) if len(ticks.energy_mj) else 0.0


def bent_energy(at_s: float, instants_s: Floats, values_j: Floats, noise_w: Floats) -> tuple[Floats, Floats]:
    """Return the energy at an instant between the middle two of six ticks, and what the unknown course adds to its std.

    The course of power lies between a step from one neighbour's power to the other's and a ramp through them, weighted
    by how flat power is beyond the neighbours. Both bends vanish at the ticks and keep power from going below zero.

    Args:
        at_s: The instant.
        instants_s: Ticks' instants, shape (rows, 6).
        values_j: Cumulative energy at them, shape (rows, 6).
        noise_w: Standard uncertainty of the four differences between the five intervals' powers.
    """
    length_s = instants_s[:, REACH] - instants_s[:, REACH - 1]
    beyond_s = at_s - instants_s[:, REACH - 1]
    # A tick moved by its uncertainty may pass the instant: then the line is extended without a correction.
    part = np.clip(beyond_s / length_s, 0, 1)
    powers_w = np.diff(values_j) / np.diff(instants_s)
    left_w, before_w, after_w, right_w = _without_noise(np.diff(powers_w), noise_w).T
    power_w = powers_w[:, REACH - 1]
    rampness = _rampness(left_w, before_w, after_w, right_w)
    ramp_j = length_s * part * (1 - part) / 2 * np.clip((before_w + after_w) / 2, -2 * power_w, 2 * power_w)
    least_j = length_s * np.minimum(part * np.abs(before_w), (1 - part) * np.abs(after_w))
    one_way = before_w * after_w > 0
    step_j = np.where(one_way, np.sign(before_w) * least_j, 0.0)
    burst_j = np.where(
        one_way, 0.0, length_s * np.minimum(np.abs(before_w), np.abs(after_w)) * np.sqrt(part * (1 - part))
    )
    bend_j = rampness * ramp_j + (1 - rampness) * step_j
    variance_j2 = (
        rampness * (1 - rampness) * (step_j - ramp_j) ** 2
        + rampness * (RAMP_STD * ramp_j) ** 2
        + (1 - rampness) * ((STEP_STD * step_j) ** 2 + (BURST_STD * burst_j) ** 2)
    )
    return values_j[:, REACH - 1] + beyond_s * power_w - bend_j, np.sqrt(variance_j2)


def _rampness(left_w: Floats, before_w: Floats, after_w: Floats, right_w: Floats) -> Floats:
    """Return 1 where power keeps changing on both sides as at the interval's ends, 0 between two plateaus or turns."""
    return (_goes_on(left_w, before_w) + _goes_on(right_w, after_w)) / 2


def _goes_on(beyond_w: Floats, at_end_w: Floats) -> Floats:
    changes = at_end_w != 0
    return np.where(changes, np.clip(beyond_w / np.where(changes, at_end_w, 1.0), 0, 1), 0.0)


def _without_noise(differences_w: Floats, noise_w: Floats) -> Floats:
    """Return differences less the noise that tick timing adds to a constant power."""
    share = 1 - (NOISE_FACTOR * noise_w) ** 2 / np.maximum(differences_w**2, 1e-12)
    return differences_w * np.sqrt(np.clip(share, 0, None))


def _difference_noise_w(at_s: Floats, energy_j: Floats, std_s: Floats) -> Floats:
    """Return the standard uncertainty of interval k's power less that of k - 1, W, from tick instants; inf at first."""
    slopes = np.diff(energy_j) / np.diff(at_s) ** 2
    noise_w2 = (
        (slopes[1:] * std_s[2:]) ** 2
        + ((slopes[1:] + slopes[:-1]) * std_s[1:-1]) ** 2
        + (slopes[:-1] * std_s[:-2]) ** 2
    )
    return np.concatenate(([np.inf], np.sqrt(noise_w2)))


def _bend_variance_w2(power_w: Floats, noise_w: Floats) -> Floats:
    """Return the variance of power inside each interval that the correction explains, W²."""
    differences_w = np.zeros(len(power_w) + 3)
    differences_w[2:-2] = _without_noise(np.diff(power_w), noise_w[1:])
    left_w, before_w, after_w, right_w = (differences_w[n : n + len(power_w)] for n in range(4))
    rampness = _rampness(left_w, before_w, after_w, right_w)
    return rampness * ((before_w + after_w) / 2) ** 2 / 12 + (1 - rampness) * np.clip(before_w * after_w, 0, None)


class _PowerCurve:
    """Energy by the trapezoid rule over power samples."""

    def __init__(self, power: Series, lag: LagModel) -> None:
        self._lag = lag
        self._base_ns = int(power.at_ns[0]) if len(power.at_ns) else 0
        self._at_s = (power.at_ns - self._base_ns) / NS_PER_S
        self._power_w = power.value
        lengths_s = np.diff(self._at_s)
        steps_w = np.diff(power.value)
        self._length_s = lengths_s
        self._energy_j = np.concatenate(([0.0], np.cumsum(lengths_s * (power.value[:-1] + power.value[1:]) / 2)))
        # A step anywhere between two samples: the trapezoid is off by up to half of step times interval.
        self._var_j2 = np.concatenate(([0.0], np.cumsum((steps_w * lengths_s) ** 2 / 12)))

    def why_not(self, start_ns: int, end_ns: int) -> str | None:
        """Return why a span has no energy, or None."""
        margin_s = abs(self._lag.mean_s) + self._lag.std_s
        first_s = (start_ns - self._base_ns) / NS_PER_S - margin_s
        last_s = (end_ns - self._base_ns) / NS_PER_S + margin_s
        if len(self._at_s) < 2 or first_s < self._at_s[0] or last_s > self._at_s[-1]:
            return "the span is not inside the recorded power samples"
        first, last = np.searchsorted(self._at_s, [first_s, last_s])
        longest_s = float(self._length_s[max(0, first - 1) : last].max(initial=0.0))
        if longest_s > MAX_GAP_S:
            return f"no power sample for {longest_s:.1f} s within the span"
        return None

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Return joules and their standard uncertainty."""
        ends_s = (np.array([start_ns, end_ns]) - self._base_ns) / NS_PER_S + self._lag.mean_s
        energy_j = self._energy(ends_s)
        lag_j = _lag_part(*(self._energy(ends_s + s) - energy_j for s in (self._lag.std_s, -self._lag.std_s)))
        start_var_j2, end_var_j2 = np.interp(ends_s, self._at_s, self._var_j2)
        return energy_j, sqrt(float(end_var_j2 - start_var_j2) + lag_j**2)

    def _energy(self, ends_s: Floats) -> float:
        k = np.clip(np.searchsorted(self._at_s, ends_s, side="right") - 1, 0, len(self._length_s) - 1)
        into_s = ends_s - self._at_s[k]
        slope = (self._power_w[k + 1] - self._power_w[k]) / self._length_s[k]
        start_j, end_j = self._energy_j[k] + into_s * (self._power_w[k] + slope * into_s / 2)
        return float(end_j - start_j)


class _HbmCurve:
    """Energy of the memory from readings, each the mean of the second before it."""

    def __init__(self, power: Series) -> None:
        self._power = power

    def why_not(self, start_ns: int, end_ns: int) -> str | None:
        """Return why a span has no energy, or None."""
        at_s, duration_s = self._since(start_ns), (end_ns - start_ns) / NS_PER_S
        if duration_s < LEAST_HBM_S:
            return f"the memory's power is a mean of one second; of {LEAST_HBM_S:.0f} s the span has {duration_s:.1f}"
        first, last = int(np.searchsorted(at_s, 1.0)) - 1, int(np.searchsorted(at_s, duration_s))
        if first < 0 or last >= len(at_s):
            return "the span is not inside the readings of the memory's power"
        if (longest_s := float(np.diff(at_s[first : last + 1]).max())) > MAX_HBM_GAP_S:
            return f"the memory's power was not read for {longest_s:.1f} s within the span"
        return None

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """Return joules and their standard uncertainty.

        Readings at whole seconds after the begin add up to the energy until then; the part of a second that remains
        takes the mean of the last second. How power changed within that is unknown, and how old the readings are.
        """
        at_s, duration_s = self._since(start_ns), (end_ns - start_ns) / NS_PER_S
        seconds, part_s = divmod(duration_s, 1.0)
        *means_w, last_w = np.interp([*np.arange(1.0, seconds + 1), duration_s], at_s, self._power.value)
        before_w, after_w = np.interp([0.0, duration_s + 1], at_s, self._power.value)
        edges_j = HBM_LAG.std_s * (abs(means_w[0] - before_w) + abs(last_w - after_w))
        inside = (at_s > 1.0) & (at_s < duration_s)
        # A mean of a second rises as fast as power differs from what it was a second before.
        differences_w = np.diff(self._power.value[inside]) / np.diff(at_s[inside])
        part_j = sqrt(float(np.mean(differences_w**2)) / 2 * part_s * (1 - part_s))
        return float(sum(means_w) + part_s * last_w), hypot(edges_j, part_j)

    def _since(self, start_ns: int) -> Floats:
        """Return when the seconds of the readings ended, s."""
        return (self._power.at_ns - start_ns) / NS_PER_S - HBM_LAG.mean_s


def _sampled_curve(gpu: GpuTimeline, samples: Series, lag: LagModel) -> SampledCurve:
    base_ns = int(gpu.ticks.before_start_ns[0])
    at_s, std_s, _ = tick_instants(gpu.ticks, base_ns, gpu.period_s)
    return SampledCurve(gpu.ticks, (at_s, std_s), resolution_mj(gpu.ticks) / MJ_PER_J, samples, lag, base_ns)


def _power_curves(gpu: GpuTimeline, lag: LagModel | None = None) -> list[_PowerCurve]:
    """Return the integrals of sampled, of instant and of averaged power, of what there is."""
    usual_lags = {SAMPLES: SAMPLE_READING_LAG, "power_w": POWER_LAG, "power_average_w": POWER_AVERAGE_LAG}
    return [_PowerCurve(gpu.series[name], lag or usual) for name, usual in usual_lags.items() if name in gpu.series]


def _lag_part(later_j: float, earlier_j: float) -> float:
    """Return the root mean square of the changes from shifting a span either way."""
    return sqrt((later_j**2 + earlier_j**2) / 2)


def _moving_mean(values: Floats, first: Indices, last: Indices) -> Floats:
    """Return the mean of values[first:last] for each pair; 0 for an empty one."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    means: Floats = (sums[last] - sums[first]) / np.maximum(last - first, 1)
    return means


def _moving_variance(values: Floats, first: Indices, last: Indices) -> Floats:
    """Return the variance of values[first:last] for each pair; 0 for an empty one."""
    centred = values - values.mean()
    return np.clip(_moving_mean(centred**2, first, last) - _moving_mean(centred, first, last) ** 2, 0, None)
