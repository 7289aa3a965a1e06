"""Whether 95 % intervals from `timing_j` are worth their name, over thousands of windows with known energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from metering.energy_population import FAULTS, PROFILES, Window, coverage, draw_cut_windows, draw_windows, strata

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sampled(library: Path) -> list[Window]:
    """Windows over a GPU of every fault and profile whose driver keeps samples, by the real meter in virtual time."""
    return draw_windows(library, gpus=len(PROFILES), windows_per_gpu=60, seed=20261128, faults=tuple(FAULTS))


@pytest.fixture(scope="module")
def counted(library: Path) -> list[Window]:
    """Windows over 70 independent GPUs with a counter only."""
    return draw_windows(library, gpus=70, windows_per_gpu=34, seed=20261101, has_samples=False)


@pytest.fixture(scope="module")
def without_samples(library: Path) -> tuple[list[Window], list[Window]]:
    """Of 144 GPUs: windows next to ends of recordings that are cut where power steps, and those that end in a hole."""
    return draw_cut_windows(library, gpus=144, seed=20261102)


@pytest.fixture(params=["sampled", "counted"])
def windows(request: pytest.FixtureRequest) -> list[Window]:
    """Windows of either kind."""
    drawn: list[Window] = request.getfixturevalue(request.param)
    return drawn


def width_over_ideal(windows: list[Window]) -> float:
    """Mean half width of the intervals over the one that would just hold 95 % of these errors."""
    half_widths_j = [1.96 * window.timing_j for window in windows]
    return float(np.mean(half_widths_j) / np.quantile([abs(window.error_j) for window in windows], 0.95))


def test_intervals_hold_the_truth_as_often_as_they_say(windows: list[Window]) -> None:
    """93 to 97 % of all windows, and at least 90 % of every kind, with samples as with a counter only."""
    assert len(windows) >= 2000
    assert 0.93 <= coverage(windows) <= 0.97
    for name, some in strata(windows).items():
        assert coverage(some) >= 0.90, name


def test_intervals_are_at_most_twice_as_wide_as_they_need_be(windows: list[Window]) -> None:
    """Overall, in every stratum of length and for every profile by itself."""
    for name, some in {"all": windows, **strata(windows)}.items():
        assert width_over_ideal(some) <= 2, name


def test_uncertainty_follows_the_error_from_window_to_window(windows: list[Window]) -> None:
    """Errors in units of their own uncertainty spread like a normal variable: wide where needed, narrow elsewhere."""
    scaled = np.array([window.error_j / window.timing_j for window in windows])
    assert 0.85 < scaled.std() < 1.15
    assert abs(scaled.mean()) < 0.15
    assert np.quantile(np.abs(scaled), 0.95) > 1.96 / 2


def test_plain_differences_of_the_counter_are_several_times_worse(windows: list[Window]) -> None:
    """What a begin and an end reading would have given for the same windows."""
    ours_j = np.quantile([abs(window.error_j) for window in windows], 0.95)
    plain_j = np.quantile([abs(window.difference_j - window.true_j) for window in windows], 0.95)
    assert plain_j > 4 * ours_j


def test_samples_more_than_halve_the_error_of_a_tenth_of_a_second(sampled: list[Window], counted: list[Window]) -> None:
    """Over windows of every profile, within and across changes of the counter; five draws gave 1/3.1 to 1/5.7."""

    def usual_error_j(windows: list[Window]) -> float:
        return float(np.median([abs(window.error_j) for window in windows if 0.07 <= window.duration_s <= 0.14]))

    assert usual_error_j(sampled) < usual_error_j(counted) / 2


def test_intervals_hold_where_samples_are_missing_and_power_steps(
    without_samples: tuple[list[Window], list[Window]],
) -> None:
    """Within 60 ms of the last change or of the first one, and in holes, with samples of a wrong gain."""
    cut, holed = without_samples
    assert len(cut) >= 1000
    assert 0.93 <= coverage(cut) <= 0.97
    assert width_over_ideal(cut) <= 1.5
    assert np.sqrt(np.mean([window.error_j**2 for window in cut])) < 4
    assert 0.93 <= coverage(holed) <= 0.97
