"""What was found out about one GPU's energy counter: the card that results cite."""

from __future__ import annotations

from wattdock.results.stored import Stored


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
