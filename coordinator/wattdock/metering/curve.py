"""Turn one GPU's timeline and a span into joules and their timing uncertainty.

Pure: reads no hardware, knows no backend and no files. `timing_j` covers what the timeline cannot tell about *when*:
tick brackets, the course of power between ticks, the counter's lag, its resolution, another node's clock; never the
sensor's gain.
The model and its limits: docs/decisions/energy-uncertainty.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.power_profile import SAMPLE_LAG, EnergyInterpolation
from wattdock.metering.timeline import CAUSES, HBM_POWER, LOSSES, LagModel, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.metering.timeline import GpuTimeline

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

# Source: docs/measurements/meter.md: load and meter in two processes, 105 steps without a power overshoot,
# +6.6 to +10.1 ms per kind of step. One H200: the spread leaves room for others.
COUNTER_LAG = LagModel(mean_s=0.008, std_s=0.005)
# Source: 8 load steps on an H200; the instant power passed the half-way mark 23 to 138 ms late.
POWER_LAG = LagModel(mean_s=0.080, std_s=0.033)
# Source: docs/methodology.md, one H200: the memory's means are made anew every 0.1 s, and about 0.03 s old then.
HBM_LAG = LagModel(mean_s=0.08, std_s=0.03)
# Shortest span, and longest gap between two readings, for the memory's energy: its readings are means of a second.
LEAST_HBM_S, MAX_HBM_GAP_S = 5.0, 0.5
# Shortest span in which 0 J is refused: a board that is on draws power; the energy of a shorter span may round to 0.
LEAST_STILL_S = 0.01
# Largest share of the board's energy that is believed: some drivers report the whole board's power as the memory's.
MAX_HBM_SHARE = 0.9


@dataclass(frozen=True)
class SpanEnergy:
    """Energy of one GPU in one span.

    Attributes:
        energy_j: Joules of the GPU board, or None; `reason` then says why.
        timing_j: Standard uncertainty of `energy_j` that comes from timing, J; the sensor's gain is not in it.
        duration_s: Length of the span.
        lost: There is no energy because the GPU was lost or its counter froze.
    """

    energy_j: float | None
    timing_j: float | None
    reason: str | None
    duration_s: float
    lost: bool = False

    @property
    def mean_power_w(self) -> float | None:
        """Energy over duration in watts; None without energy or in a span of no length."""
        if self.energy_j is None or self.duration_s <= 0:
            return None
        return self.energy_j / self.duration_s

    def unless_still(self) -> SpanEnergy:
        """Return the same, or no joules with the reason where the board is said to have drawn nothing."""
        if self.energy_j != 0 or self.duration_s < LEAST_STILL_S:
            return self
        why = f"the counter stood at 0 W for {self.duration_s:.1f} s"
        return replace(self, energy_j=None, timing_j=None, reason=why)


class EnergyCurve:
    """Cumulative energy of one GPU, for many spans of one timeline."""

    # What is assumed of power samples.
    POWER_LAG: ClassVar = POWER_LAG
    SAMPLE_LAG: ClassVar = SAMPLE_LAG

    def __init__(self, gpu: GpuTimeline, lag: LagModel = COUNTER_LAG) -> None:
        self._gpu = gpu
        self._curve = EnergyInterpolation(gpu, lag) if gpu.energy_source else None

    def between(self, start_ns: int, end_ns: int) -> SpanEnergy:
        """Return the joules between two instants, CLOCK_MONOTONIC nanoseconds.

        Raises:
            ValueError: The span ends before it begins.
        """
        span = Span("", start_ns, end_ns)
        if self._curve is None:
            events = [event for event in self._gpu.events if event.kind in (*CAUSES, "not_supported")]
            messages = "; ".join(event.message for event in events)
            reason = f"no energy counter on {self._gpu.uuid}" + (f": {messages}" if messages else "")
            return SpanEnergy(None, None, reason, span.duration_s, lost=bool(self._gpu.losses))
        frozen = next((event.message for event in self._gpu.losses if event.end_ns and event.touches(span)), None)
        if why_not := frozen or self._curve.why_not(start_ns, end_ns):
            cause = self._gpu.cause(start_ns, end_ns)
            lost = cause is not None and cause.kind in LOSSES
            return SpanEnergy(None, None, cause.message if cause else why_not, span.duration_s, lost)
        energy_j, timing_j = map(float, self._timed(self._curve, start_ns, end_ns))
        return SpanEnergy(energy_j, timing_j, None, span.duration_s)

    def measured(self, spans: Sequence[Span]) -> list[SpanEnergy]:
        """Return the joules of spans, computed together; None with the reason where the board drew nothing."""
        curve, ends_ns = self._curve, np.array([(span.start_ns, span.end_ns) for span in spans]).T
        found: dict[Span, SpanEnergy] = {}
        if len(spans) > 1 and curve and not self._gpu.losses:
            are_plain = curve.are_plain(*ends_ns)
            joules = zip(*self._timed(curve, *ends_ns[:, are_plain]), strict=True) if are_plain.any() else ()
            for span, (energy_j, timing_j) in zip(compress(spans, are_plain), joules, strict=True):
                found[span] = SpanEnergy(float(energy_j), float(timing_j), None, span.duration_s)
        return [(found.get(span) or self.between(span.start_ns, span.end_ns)).unless_still() for span in spans]

    def _timed(self, curve: Any, start_ns: Any, end_ns: Any) -> tuple[Any, Any]:
        """Return joules and their timing uncertainty, that of another node's clock included: it moves both ends."""
        energy_j, timing_j = curve.between(start_ns, end_ns)
        if not (shift_ns := round(self._gpu.clock_std_s * NS_PER_S)):
            return energy_j, timing_j
        variance_j2 = timing_j**2
        for direction in (shift_ns, -shift_ns):
            # A step of power may lie beyond one standard uncertainty: the steeper of one and two counts.
            moved_ns = (direction, 2 * direction)
            slopes_j = [(curve.between(start_ns + by, end_ns + by)[0] - energy_j) * direction / by for by in moved_ns]
            variance_j2 = variance_j2 + np.maximum(*np.square(slopes_j)) / 2
        return energy_j, np.sqrt(variance_j2)

    def hbm_between(self, start_ns: int, end_ns: int) -> SpanEnergy:
        """Return the joules of the GPU's memory between two instants: a part of the board's joules.

        They are the driver's own figure, whose gain is unknown, and None where the board's are.

        Raises:
            ValueError: The span ends before it begins.
        """
        board, power = self.between(start_ns, end_ns), self._gpu.series.get(HBM_POWER)
        if board.energy_j is None:
            return board
        unknown = replace(board, energy_j=None, timing_j=None)
        if power is None:
            return replace(unknown, reason="the driver does not report the memory's power")
        at_s = (power.at_ns - start_ns) / NS_PER_S - HBM_LAG.mean_s
        if why_not := _hbm_why_not(at_s, board.duration_s):
            return replace(unknown, reason=why_not)
        energy_j, timing_j = _hbm_joules(at_s, power.value, board.duration_s)
        if not 0 < energy_j <= MAX_HBM_SHARE * board.energy_j:
            why_not = f"the driver's figure for the memory is {energy_j / board.energy_j:.0%} of the board's power"
            return replace(unknown, reason=why_not)
        return replace(board, energy_j=energy_j, timing_j=timing_j)

    def bins(self, start_ns: int, end_ns: int) -> tuple[Indices, Floats]:
        """Return the instants in a span at which its energy is known, not interpolated, and the joules between them.

        Returns:
            Ascending CLOCK_MONOTONIC nanoseconds, shape (m + 1,), and joules between neighbours, shape (m,).
        """
        assert self._curve is not None
        return self._curve.bins(start_ns, end_ns)


def _hbm_why_not(at_s: Floats, duration_s: float) -> str | None:
    """Return why a span has no energy of the memory, or None; `at_s`: ends of the readings, s after its begin."""
    if duration_s < LEAST_HBM_S:
        return f"the memory's power is a mean of one second; of {LEAST_HBM_S:.0f} s the span has {duration_s:.1f}"
    first, last = int(np.searchsorted(at_s, 1.0)) - 1, int(np.searchsorted(at_s, duration_s))
    if first < 0 or last >= len(at_s):
        return "the span is not inside the readings of the memory's power"
    if (longest_s := float(np.diff(at_s[first : last + 1]).max())) > MAX_HBM_GAP_S:
        return f"the memory's power was not read for {longest_s:.1f} s within the span"
    return None


def _hbm_joules(at_s: Floats, power_w: Floats, duration_s: float) -> tuple[float, float]:
    """Return joules and their standard uncertainty from readings, each the mean of the second before it.

    Readings at whole seconds after the begin add up to the energy until then; the part of a second that remains takes
    the mean of the last second. How power changed within that is unknown, and how old the readings are.
    """
    seconds, part_s = divmod(duration_s, 1.0)
    *means_w, last_w = np.interp([*np.arange(1.0, seconds + 1), duration_s], at_s, power_w)
    before_w, after_w = np.interp([0.0, duration_s + 1], at_s, power_w)
    edges_j = HBM_LAG.std_s * (abs(means_w[0] - before_w) + abs(last_w - after_w))
    inside = (at_s > 1.0) & (at_s < duration_s)
    # A mean of a second rises as fast as power differs from what it was a second before.
    differences_w = np.diff(power_w[inside]) / np.diff(at_s[inside])
    part_j = sqrt(float(np.mean(differences_w**2)) / 2 * part_s * (1 - part_s))
    return float(sum(means_w) + part_s * last_w), hypot(edges_j, part_j)
