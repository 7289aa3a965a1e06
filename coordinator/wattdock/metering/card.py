"""What was found out about one GPU's energy counter: the card that results cite."""

from __future__ import annotations

from wattdock.values import Stored

# Fewer pulses do not fill a period's phases; a counter that does not add up, or that still moves a period after a step,
# does not trail by one lag.
MIN_PULSES, MAX_ADDITIVITY, MAX_SMOOTHING_PERIODS = 100, 0.005, 1.0


class StepLag(Stored):
    """How far one kind of load step shows late in the counter.

    Attributes:
        overshoot: Power right after the step went beyond what followed, which pulls its apparent instant forward: the
            row says nothing about lag and is left out.
    """

    kind: str
    steps: int
    mean_s: float
    standard_deviation_s: float
    overshoot: bool


class MeterCard(Stored):
    """One GPU's energy counter, from load pulses made by another process at random phases.

    Attributes:
        period_s, period_std_s: Between changes of the counter.
        read_median_s, read_p99_s: Length of one call.
        lag_s, lag_std_s: Mean over the kinds of steps without overshoot, and its standard uncertainty.
        smoothing_periods: Mean number of periods, after the one that holds a step, that still lie between the two
            levels: 0 for a counter that shows a step at once.
        additivity: Sum of the pulses' and gaps' energies, one by one, ÷ the counter's own difference over all − 1.
    """

    gpu_uuid: str
    gpu_name: str
    driver_version: str | None
    measured_utc: str
    pulses: int
    period_s: float
    period_std_s: float
    read_median_s: float
    read_p99_s: float
    lag_s: float | None
    lag_std_s: float | None
    steps: list[StepLag]
    smoothing_periods: float | None
    additivity: float | None

    @property
    def doubt(self) -> str | None:
        """Why results do not take their lag from it; None where they may."""
        if self.lag_s is None or self.lag_std_s is None:
            return "it has no lag"
        if self.pulses < MIN_PULSES:
            return f"it is of {self.pulses} pulses, not {MIN_PULSES}"
        if self.additivity is None or abs(self.additivity) > MAX_ADDITIVITY:
            told = "unknown" if self.additivity is None else f"{self.additivity:+.2%}"
            return f"its additivity is {told}, not within {MAX_ADDITIVITY:.1%}"
        if self.smoothing_periods is None or self.smoothing_periods >= MAX_SMOOTHING_PERIODS:
            told = "unknown" if self.smoothing_periods is None else f"{self.smoothing_periods:.2f} periods"
            return f"its smoothing is {told}, not below {MAX_SMOOTHING_PERIODS:g}"
        return None
