"""Which readings around a load step a card's figures come from: one that is off in each, and beside each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from fake_nvml import FakeGpu
from make.audit_world import gpu_info
from seams.doctor import Pulse, apparent_lag_s, card_of_pulses
from seams.metering import Ticks

from wattdock.clock import NS_PER_S
from wattdock.metering import GpuTimeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wattdock.metering.cards import MeterCard

MS = 1_000_000
PERIOD_MS, HALF = 100, 20


def ticks(at_ms: list[int], energy_j: list[float]) -> Ticks:
    """Changes of a counter that reads bracket within 2 ms."""
    at_ns = np.array(at_ms, dtype=np.int64) * MS
    energy_mj = np.round(np.array(energy_j) * 1e3).astype(np.int64)
    return Ticks(at_ns - MS, at_ns - MS, at_ns + MS, at_ns + MS, energy_mj)


def stepping(at_ms: list[int], *, step_w: float = 500.0, off_at_ms: int | None = None) -> Ticks:
    """A counter that shows at once that power steps from 100 W at 1 s; one value may be a joule too high."""
    values_j = [0.1 * ms + max(0, ms - 1000) * step_w / 1e3 + (ms == off_at_ms) for ms in at_ms]
    return ticks(at_ms, values_j)


EVERY_10_MS = list(range(5, 2000, 10))


@pytest.mark.parametrize(
    ("off_at_ms", "matters"),
    [
        *((545, False), (555, True), (975, True), (985, False)),
        *((1115, False), (1125, True), (1545, True), (1555, False)),
    ],
)
def test_a_step_s_instant_comes_from_the_courses_before_it_and_well_after_it(off_at_ms: int, *, matters: bool) -> None:
    """Half a second on either side, without the instants at which a lag or an overshoot shows."""
    assert apparent_lag_s(stepping(EVERY_10_MS), NS_PER_S) == pytest.approx(0, abs=1e-6)
    lag_s = apparent_lag_s(stepping(EVERY_10_MS, off_at_ms=off_at_ms), NS_PER_S)
    assert lag_s is not None
    assert (abs(lag_s) > 1e-6) == matters


@pytest.mark.parametrize(
    ("at_ms", "step_w", "known"),
    [
        (EVERY_10_MS, 51.0, True),
        (EVERY_10_MS, -49.0, False),
        ([600, 700, 800, 1200, 1300, 1400], 500.0, True),
        ([700, 800, 1200, 1300, 1400], 500.0, False),
        ([600, 700, 800, 1200, 1300], 500.0, False),
    ],
)
def test_a_step_needs_fifty_watts_and_three_changes_on_either_side(
    at_ms: list[int], step_w: float, *, known: bool
) -> None:
    """Less has no clear instant."""
    assert (apparent_lag_s(stepping(at_ms, step_w=step_w), NS_PER_S) is not None) == known


def card(extra_w: dict[int, float], *, odd_w: float = 0.0, pulses: int = 12) -> MeterCard:
    """Return the card of a counter with pulses of 500 W above 100 W, 2 s each.

    Args:
        extra_w: Power above that in intervals between changes, by their number from the one that holds a pulse's begin.
        odd_w: The same in the interval after every second begin, upwards, and after the others downwards.
    """
    power_w = np.full(2 * HALF * (pulses + 1), 100.0)
    begins = [HALF + 2 * HALF * number for number in range(pulses)]
    for number, begin in enumerate(begins):
        power_w[begin] = 350.0
        power_w[begin + 1 : begin + HALF] = 600.0
        power_w[begin + HALF] = 350.0
        for after, watts in extra_w.items():
            power_w[begin + after] += watts
        power_w[begin + 1] += odd_w * (-1) ** number
    return made(power_w, [(begin, begin + HALF) for begin in begins])


def made(power_w: NDArray[np.float64], edges: list[tuple[int, int]]) -> MeterCard:
    """Return the card of a counter with these powers between changes and pulses from one of them to another."""
    at_ms = [PERIOD_MS * number for number in range(1, len(power_w) + 2)]
    energy_j = np.concatenate(([0.0], np.cumsum(power_w) * PERIOD_MS / 1e3))
    gpu = GpuTimeline(uuid="GPU-a", energy_source="counter", ticks=ticks(at_ms, energy_j.tolist()))
    # Half way between two changes.
    pulses = [Pulse("square", *((PERIOD_MS * (edge + 1) + PERIOD_MS // 2) * MS for edge in pair)) for pair in edges]
    return card_of_pulses(gpu, pulses, gpu_info(0, FakeGpu()), measured_utc="")


@pytest.mark.parametrize(
    ("extra_w", "overshoots", "smoothing_periods"),
    [
        ({}, False, 0.0),
        ({0: 100}, False, 0.0),
        ({1: 100}, True, 0.5),
        ({2: 100}, False, 0.5),
        ({4: 100}, False, 0.0),
        ({1: 100, 2: 100}, True, 1.0),
        ({2: 45}, False, 0.0),
        ({2: 55}, False, 0.5),
        # As much later on: that is the level.
        ({1: 100, 2: 100, 3: 100, 4: 100}, False, 0.0),
        # Neither before a step nor later than 0.4 s after it.
        ({-5: 300, -1: 300, 5: 300}, False, 0.0),
        # A twentieth of the step from the level in the three intervals before it.
        ({1: 25.5}, True, 0.0),
        ({1: 25.5, -3: -60}, False, 0.0),
    ],
)
def test_overshoot_and_smoothing_are_those_of_the_first_three_intervals_after_a_step(
    extra_w: dict[int, float], smoothing_periods: float, *, overshoots: bool
) -> None:
    """Over begins and ends of pulses alike; a tenth of a step off is off."""
    steps = {step.kind: step for step in card(extra_w).steps}
    assert (steps["square on"].overshoot, steps["square off"].overshoot) == (overshoots, False)
    assert card(extra_w).smoothing_periods == smoothing_periods


@pytest.mark.parametrize(("before", "after", "known"), [(3, 4, True), (2, 4, False), (3, 3, False)])
def test_smoothing_needs_three_intervals_before_a_step_and_four_after_it(
    before: int, after: int, *, known: bool
) -> None:
    """The levels on either side; the end of the pulse lies beyond the readings."""
    power_w = np.array([100.0] * before + [350.0] + [600.0] * after)
    assert (made(power_w, [(before, 99)]).smoothing_periods == 0) == known
    assert known or made(power_w, [(before, 99)]).smoothing_periods is None


def test_power_that_swings_after_a_step_is_no_overshoot() -> None:
    """On average it does not exceed what follows."""
    assert not card({}, odd_w=100.0).steps[0].overshoot


def test_additivity_compares_pulses_and_gaps_with_what_the_counter_showed_before_the_first_and_the_last_edge() -> None:
    """58 ms after these changes, with the lag: 9.8 J into the first pulse, and 30.8 J more at the end of the last."""
    assert card({}).additivity == pytest.approx((30.8 - 9.8) / (11 * 1_400 + 1_175), rel=0.02)


@pytest.mark.parametrize(("end", "known"), [(35, True), (99, False)])
def test_two_pulses_have_an_additivity_where_their_energy_is_known(end: int, *, known: bool) -> None:
    """It is not where the last one ends after the last reading."""
    assert (made(np.full(40, 100.0), [(10, 20), (30, end)]).additivity is not None) == known


def test_the_card_s_lag_has_an_uncertainty_from_between_and_within_the_kinds_of_steps() -> None:
    """Two kinds without scatter, 4 ms apart; then steps that scatter as well."""
    exact, scattered = card({1: 20.0}), card({1: 20.0}, odd_w=60.0)
    for made in (exact, scattered):
        means_s = [step.mean_s for step in made.steps]
        within_s2 = sum(step.standard_deviation_s**2 / step.steps for step in made.steps) / 4
        assert made.lag_std_s == pytest.approx((np.var(means_s, ddof=1) + within_s2) ** 0.5)
    assert exact.lag_std_s is not None
    assert 0.001 < exact.lag_std_s < (scattered.lag_std_s or 0)
