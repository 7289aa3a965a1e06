"""Cumulative energy of one GPU from its counter and, where there are any, the driver's 20 ms power samples.

The counter gives the level at the changes that were looked for; the samples give the course between them, scaled to the
counter. Where there are none, the counter's own mean powers between changes stand for them. Pure.
The model and its limits: docs/decisions/energy-uncertainty.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import MAX_GAP_S, MJ_PER_J, LagModel, Ticks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.metering.timeline import GpuTimeline

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Instants = NDArray[np.int64] | int

# Source: docs/measurements/meter.md: a random on/off load on one H200 fits means of 20 ms that end 4 ms before their
# time stamps, and a counter that trails by another 4 ms.
SAMPLE_LAG = LagModel(mean_s=0.004, std_s=0.003)
# How well a time stamp tells where a sample's mean ends. Source: the same recording; what samples say of the energy
# between two changes of the counter, left out in turn, scatters as if each boundary were off by so much.
BOUNDARY_STD_S = 0.0045
# Standard uncertainty of power between two changes without samples, as a share of the steps to their neighbours.
COURSE_STD = 0.4
# Longest gap between two changes, with samples in seconds and without samples in periods; beyond it nothing was read.
MAX_COUNTER_GAP_S, MAX_GAP_PERIODS = 10.0, 10.0
# Changes needed beyond those around a span where there are no samples.
SPARE = 2
# A change is never closer to the one before it than this share of the period: 0.74 was the least on an H200 under load.
LEAST_INTERVAL_PERIODS = 0.5
# Least distance of two samples, in usual ones, between which a sample was lost.
LOST_SAMPLES = 1.5
# A stretch without samples of this many of their distances is a gap, in which power is unknown. Of a shorter one the
# counter tells less than the neighbours do: its changes are bracketed to 15 ms.
GAP_SAMPLES = 3.5
# More than any board or superchip's module draws, W: between two changes, a counter that grew faster has jumped.
MOST_POWER_W = 5_000.0
# From how many standard deviations on counter and samples contradict each other between two changes: 2.5 was the most
# in 6,902 intervals of the H200s whose records are kept.
CONTRADICTION_STD = 6.0
UNREAD = "; it was not read in that time: was this machine stopped, or far too busy?"
# Standard uncertainty of a burst's place inside one sample, as a share of the sample.
BURST_STD = 0.6


class EnergyInterpolation:
    """Energy from counter changes and, where there are any, power samples; instants are seconds from the first change.

    Args:
        lag: How far the counter trails.

    Attributes:
        has_samples: Whether the driver's samples tell the course; else the changes alone do.
    """

    def __init__(self, gpu: GpuTimeline, lag: LagModel) -> None:
        ticks, samples = gpu.ticks, gpu.power_samples
        self.has_samples = samples is not None
        self._spare = 0 if self.has_samples else SPARE
        self._base_ns = int(ticks.before_start_ns[0]) if len(ticks.energy_mj) else 0
        self._lag = lag
        # Of the counter's changes: what they show, the instants of that, and how well these are known.
        self._shown_j = (ticks.energy_mj - ticks.energy_mj[:1]) / MJ_PER_J
        at_s, self._std_s, period_s = tick_instants(ticks, self._base_ns, gpu.period_s if self.has_samples else None)
        self._at_s = at_s - lag.mean_s
        # Between each change and the next one, how long reads saw it stand still.
        self._stood_s = (ticks.before_start_ns[1:] - ticks.after_end_ns[:-1]) / NS_PER_S
        self._max_gap_s = MAX_COUNTER_GAP_S if self.has_samples else max(MAX_GAP_S, MAX_GAP_PERIODS * period_s)
        self._gaps_s = np.diff(self._at_s)
        counted_j = np.diff(self._shown_j)
        self._resets = (counted_j < 0) | (counted_j > MOST_POWER_W * (self._gaps_s + period_s))
        # Up to each change, resets of the counter and gaps in which it was not seen to change.
        self._odd = np.concatenate(([0], np.cumsum(self._resets | (self._gaps_s > self._max_gap_s))))
        # Piece i is the mean power from edge i to edge i + 1; nothing is known before the first edge.
        ends_s, power_w, usual_s = self._at_s[:1], np.zeros(1), 0.0
        if samples:
            ends_s = (samples.at_ns - self._base_ns) / NS_PER_S - SAMPLE_LAG.mean_s
            usual_s = float(np.median(np.diff(ends_s)))
            apart = np.diff(ends_s, prepend=ends_s[0]) / usual_s
            is_lost = (apart > LOST_SAMPLES) & (apart <= GAP_SAMPLES)
            # The time of a lost sample has the mean of both neighbours.
            lost_part = np.where(is_lost, 1 - 1 / np.maximum(apart, 1), 0.0)
            power_w = samples.value - lost_part / 2 * np.diff(samples.value, prepend=samples.value[0])
        self._edges_s, self._power_w, is_filled = _filled(ends_s, power_w, usual_s, self._at_s, self._shown_j)
        lengths_s = np.diff(self._edges_s)
        variance_j2 = self._piece_variances_j2(usual_s, is_filled)
        self._sampled_j = np.concatenate(([0.0], np.cumsum(self._power_w * lengths_s)))
        self._var_j2 = np.concatenate(([0.0], np.cumsum(variance_j2)))
        self._filled_s = np.concatenate(([0.0], np.cumsum(lengths_s * is_filled)))
        self._resolution_var_j2 = (resolution_mj(ticks) / MJ_PER_J) ** 2 / 12
        self._contradicted_j = np.concatenate(([0.0], np.cumsum(self._contradictions_j(counted_j))))

    def _contradictions_j(self, counted_j: Floats) -> Floats:
        """Return by how much samples exceed the counter between changes where both cannot be right, else 0."""
        at_s, of_all = self._at_s, (self._sampled_j, self._var_j2, self._filled_s)
        known_j, variance_j2, filled_s = (np.diff(np.interp(at_s, self._edges_s, of)) for of in of_all)
        is_whole = (filled_s == 0) & (counted_j > 0) & ~self._resets
        if not is_whole.any():
            return np.zeros(len(counted_j))
        difference_j = known_j / np.median(known_j[is_whole] / counted_j[is_whole]) - counted_j
        ends_j2 = (self._power_w[self._sample_at(at_s)[0]] * np.hypot(self._std_s, self._lag.std_s)) ** 2
        variance_j2 = variance_j2 + ends_j2[1:] + ends_j2[:-1] + 2 * self._resolution_var_j2
        return np.where(is_whole & (difference_j**2 > CONTRADICTION_STD**2 * variance_j2), difference_j, 0.0)

    def _piece_variances_j2(self, usual_s: float, is_filled: NDArray[np.bool_]) -> Floats:
        """Return what each piece adds to the variance of the energy that is summed over pieces.

        A sample is a mean over the usual distance of samples, whatever the distance to the one before, and its end is
        known to within BOUNDARY_STD_S: where power changes, both put energy into the wrong sample. In the time of a
        lost sample, power is off by the standard deviation of the samples around. Where the counter stands for samples,
        power has any course that its neighbours allow.
        """
        lengths_s, (rise_w, then_w) = np.diff(self._edges_s), self._rises_w(np.arange(len(self._power_w)))
        missing_s = lengths_s - usual_s
        local_w2 = (rise_w**2 + then_w**2 + (rise_w + then_w) ** 2) / 9
        unseen_w2 = np.where(missing_s > (LOST_SAMPLES - 1) * usual_s, local_w2, rise_w**2 / 12)
        course_j2 = (COURSE_STD * lengths_s) ** 2 * (rise_w**2 + then_w**2) / 2
        return np.where(is_filled, course_j2, rise_w**2 * BOUNDARY_STD_S**2 + missing_s**2 * unseen_w2)

    def _around(self, start_ns: Instants, end_ns: Instants) -> tuple[Indices, Indices]:
        """Return which changes spans depend on, first and last; what lies outside of the recorded ones is needed."""
        at_s, margin_s, spare = self._at_s, SAMPLE_LAG.std_s + self._lag.std_s, self._spare
        first = np.searchsorted(at_s, (start_ns - self._base_ns) / NS_PER_S - margin_s) - 1 - spare
        return first, np.searchsorted(at_s, (end_ns - self._base_ns) / NS_PER_S + margin_s) + spare

    def are_plain(self, start_ns: Instants, end_ns: Instants) -> NDArray[np.bool_]:
        """Return which spans have energy, with no gap nor reset near; of the others, `why_not` tells."""
        first, last = self._around(start_ns, end_ns)
        inside = (first >= 0) & (last < len(self._at_s))
        plain: NDArray[np.bool_] = inside & (self._odd[first * inside] == self._odd[last * inside])
        return plain

    def why_not(self, start_ns: int, end_ns: int) -> str | None:
        """Return why a span has no energy, or None."""
        at_s, gaps_s, spare = self._at_s, self._gaps_s, self._spare
        first, last = map(int, self._around(start_ns, end_ns))
        if first < 0 or last >= len(at_s):
            never = "the energy counter never changed"
            return "the span is not inside the recorded counter changes" if len(at_s) > 1 else never
        if self._resets[first:last].any():
            return "the energy counter was reset, or jumped, within the span or next to it"
        long = np.flatnonzero(gaps_s[first:last] > self._max_gap_s) + first
        # A counter goes on while nobody reads it; only the changes near each end must be close together.
        unread = self.has_samples | (self._stood_s[long] < MAX_GAP_S)
        unread_inside = unread & (long > first + 2 * spare) & (long < last - 1 - 2 * spare)
        if not unread_inside.all():
            longest = max(long[~unread_inside], key=gaps_s.__getitem__)
            why_not = (
                f"the energy counter was not seen to change for {gaps_s[longest]:.1f} s within the span or next to it"
            )
            return why_not + UNREAD * bool(self._stood_s[longest] < MAX_GAP_S)
        return None

    def between(self, start_ns: Instants, end_ns: Instants) -> tuple[Floats, Floats]:
        """Return joules and their standard uncertainty, for all of many spans at once."""
        ends_s = (np.array([start_ns, end_ns]) - self._base_ns) / NS_PER_S
        counter_std_s = self._lag.std_s
        lags_s = ((SAMPLE_LAG.std_s, 0.0), (0.0, counter_std_s)) if self.has_samples else ((counter_std_s,) * 2,)
        # As it is, and with each lag longer and shorter by its uncertainty.
        shifts_s = np.array([(0.0, 0.0), *lags_s, *((-samples, -counter) for samples, counter in lags_s)])
        samples_s, counter_s = shifts_s.T.reshape(2, -1, *[1] * ends_s.ndim)
        energy_j, *shifted_j = np.diff(self._energy_j(ends_s, samples_s, counter_s), axis=1)[:, 0]
        variance_j2 = self._variance_j2(ends_s) + sum((shifted - energy_j) ** 2 for shifted in shifted_j) / 2
        return energy_j, np.sqrt(variance_j2)

    def bins(self, start_ns: int, end_ns: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the ends of the samples in a span, and the joules between them."""
        at_ns = self._base_ns + np.round(self._edges_s * NS_PER_S).astype(np.int64)
        inside = slice(*np.searchsorted(at_ns, (start_ns, end_ns)))
        return at_ns[inside], np.diff(self._energy_j(self._edges_s[inside]))

    def _energy_j(self, at_s: Floats, samples_s: Floats | float = 0.0, counter_s: Floats | float = 0.0) -> Floats:
        """Return cumulative energy at instants, if samples trail by `samples_s` more and the counter by `counter_s`.

        Columns of these, shape (k, 1, …), give a row for each: one call for all costs as much as one of them.
        """
        k = self._change_before(at_s)
        before_s, after_s = self._at_s[k] - counter_s, self._at_s[k + 1] - counter_s
        at_j, before_j, after_j = self._sampled(np.stack(np.broadcast_arrays(at_s, before_s, after_s)) + samples_s)
        part: Floats = (at_j - before_j) / np.maximum(after_j - before_j, 1e-9)
        return self._shown_j[k] + part * (self._shown_j[k + 1] - self._shown_j[k])

    def _change_before(self, at_s: Floats) -> NDArray[np.int64]:
        k: NDArray[np.int64] = np.searchsorted(self._at_s, at_s, side="right") - 1
        # Several times as quick as `np.clip` for a few values, of which there are thousands of calls.
        return np.minimum(np.maximum(k, 0), len(self._at_s) - 2)

    def _sample_at(self, at_s: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Return the samples that hold instants, the part of each that has passed, and their lengths, s."""
        i = np.searchsorted(self._edges_s, at_s, side="right") - 1
        i = np.minimum(np.maximum(i, 0), len(self._power_w) - 1)
        length_s = self._edges_s[i + 1] - self._edges_s[i]
        return i, (at_s - self._edges_s[i]) / length_s, length_s

    def _sampled(self, at_s: Floats) -> Floats:
        """Return the samples' energy up to instants: a sample between two levels is a step from one to the other."""
        i, part, length_s = self._sample_at(at_s)
        rise_w, then_w = self._rises_w(i)
        least_j = length_s * np.minimum(part * np.abs(rise_w), (1 - part) * np.abs(then_w))
        step_j = np.where(rise_w * then_w > 0, np.sign(rise_w) * least_j, 0.0)
        return self._sampled_j[i] + part * length_s * self._power_w[i] - step_j

    def _rises_w(self, i: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return by how much samples exceed the ones before them, and the ones after exceed them, W."""
        power_w = self._power_w
        return power_w[i] - power_w[np.maximum(i - 1, 0)], power_w[np.minimum(i + 1, len(power_w) - 1)] - power_w[i]

    def _variance_j2(self, ends_s: Floats) -> Floats:
        """Return the variance of spans from the course between counter changes, their instants, the counter's steps.

        Args:
            ends_s: Begins and ends, shape (2, …).
        """
        i, passed, length_s = self._sample_at(ends_s)
        rise_w, then_w = self._rises_w(i)
        burst_j = BURST_STD * length_s * np.minimum(np.abs(rise_w), np.abs(then_w)) * (rise_w * then_w < 0)
        k = self._change_before(ends_s)
        points_s = np.stack((self._at_s[k], ends_s, self._at_s[k + 1]))
        before_j, after_j = np.diff(self._sampled(points_s), axis=0)
        var_j2, filled_s = (np.interp(points_s, self._edges_s, of) for of in (self._var_j2, self._filled_s))
        before_j2, after_j2 = np.diff(var_j2, axis=0)
        part = before_j / np.maximum(before_j + after_j, 1e-9)
        share = np.where(filled_s[2] > filled_s[0], before_j2 / np.maximum(before_j2 + after_j2, 1e-12), part)
        # The counter fixes the sum: an error inside it is scaled away by its own share.
        course_j2 = ((1 - share) ** 2 * before_j2 + share**2 * after_j2).sum(axis=0)
        # Of one interval, the span and the rest.
        share, inside_j2, rest_j2 = share[1] - share[0], before_j2[1] - before_j2[0], before_j2[0] + after_j2[1]
        course_j2 = np.where(k[0] == k[1], (1 - share) ** 2 * inside_j2 + share**2 * rest_j2, course_j2)
        ticks, weights = np.concatenate((k, k + 1)), np.concatenate((part - 1, -part))
        weights[1::2] *= -1
        power_w = self._power_w[self._sample_at(self._at_s[ticks])[0]]
        each_j2 = (power_w * self._std_s[ticks]) ** 2 + self._resolution_var_j2
        level_j2 = weights[:, None] * weights * (ticks[:, None] == ticks) * each_j2
        doubtful_j = np.diff(np.interp(ends_s, self._at_s, self._contradicted_j), axis=0)[0]
        variance_j2: Floats = (
            doubtful_j**2 + course_j2 + (burst_j**2 * passed * (1 - passed)).sum(axis=0) + level_j2.sum(axis=(0, 1))
        )
        return variance_j2


def _filled(
    ends_s: Floats, power_w: Floats, usual_s: float, change_s: Floats, change_j: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the samples' edges and powers with the counter in place of missing ones, and which of them it fills.

    Its energy between changes, less what samples say of the rest; also from the first change to the first sample and
    from the last sample to the last change, however short that is.
    """
    if len(change_s) < 2:
        return np.zeros(1), np.empty(0), np.empty(0, dtype=bool)
    begins_s = np.append(ends_s - usual_s, max(change_s[-1], ends_s[-1]))
    # Beyond the last change, power is taken to go on.
    edges_s = np.concatenate(([min(change_s[0], begins_s[0])], ends_s, begins_s[-1:] + usual_s))
    power_w = np.append(power_w, power_w[-1])
    is_gap = np.diff(edges_s) > GAP_SAMPLES * usual_s
    is_gap[[0, -1]] = edges_s[[0, -2]] < begins_s[[0, -1]]
    inside_s = change_s[np.isin(np.searchsorted(edges_s, change_s) - 1, np.flatnonzero(is_gap))]
    pieces_s = np.unique(np.concatenate((edges_s, begins_s[is_gap], inside_s)))
    middles_s, lengths_s = (pieces_s[1:] + pieces_s[:-1]) / 2, np.diff(pieces_s)
    sample = np.searchsorted(edges_s, middles_s) - 1
    missing = is_gap[sample] & (middles_s < begins_s[sample])
    filled_w = np.where(missing, 0.0, power_w[sample])
    known_j, missing_s = (
        np.diff(np.interp(change_s, pieces_s, np.concatenate(([0.0], np.cumsum(parts)))))
        for parts in (filled_w * lengths_s, missing * lengths_s)
    )
    counted_j = np.diff(change_j)
    whole = (missing_s == 0) & (counted_j > 0)
    if whole.any():
        # Samples that are off by 3 % would leave 20 J of a second to a moment of it.
        counted_j *= np.median(known_j[whole] / counted_j[whole])
    between_w = np.clip(counted_j - known_j, 0, None) / np.maximum(missing_s, 1e-9)
    interval = np.clip(np.searchsorted(change_s, middles_s) - 1, 0, len(between_w) - 1)
    return pieces_s, np.where(missing, between_w[interval], filled_w), missing


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
