"""Power of GPUs without work, and what is left above it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, stepped_power, timeline
from seams.analysis import idle_baselines, idle_energy_j, measured_energy
from seams.metering import Series

from wattdock.clock import NS_PER_S
from wattdock.metering import GpuTimeline, Span
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from seams.analysis import Measured

GPU, OTHER = "GPU-a", "GPU-b"
EMPTY, LOADED = (
    Span(f"idle-{state}", at * NS_PER_S, (at + 10) * NS_PER_S) for state, at in (("empty", 2), ("loaded", 20))
)


def restart(*gpus: GpuTimeline, number: int = 0, spans: tuple[Span, ...] = (EMPTY, LOADED)) -> RestartRecord:
    """Return a restart whose pass lasts from 40 to 60 s."""
    done = measured(0, 40, 60, (request(0, 40, 41, 60, 100),))
    return RestartRecord(number, spans=spans, passes=(done,), timeline=timeline(*gpus))


def idling(empty_w: float, loaded_w: float, later_w: float, uuid: str = GPU) -> GpuTimeline:
    """Return a GPU of one power until 15 s, another until the middle of the loaded span, a third until the pass."""
    return stepped_power(uuid, [(15, empty_w), (10, loaded_w), (15, later_w), (20, 500), (20, later_w)])


def test_idle_power_is_that_of_each_state_and_as_uncertain_as_its_halves_differ() -> None:
    """80 W empty; 120 W and then 110 W loaded: 115 W, give or take 5 W."""
    empty, loaded = idle_baselines(experiment(restart(idling(80, 120, 110))))
    assert [(each.state, each.used, each.duration_s) for each in (empty, loaded)] == [
        ("empty", True, 10),
        ("loaded", True, 10),
    ]
    assert (empty.mean_power_w, loaded.mean_power_w) == pytest.approx((80, 115), rel=1e-3)
    assert loaded.uncertainty_w == pytest.approx(5, rel=0.02)
    assert empty.uncertainty_w is not None
    assert empty.uncertainty_w < 0.5, "timing alone"


def test_every_gpu_of_the_host_has_its_own_and_other_spans_none() -> None:
    """Readings are means of those in the span."""
    at_s = np.arange(0, 60)
    series = {"memory_used_bytes": Series(at_s * NS_PER_S, np.where(at_s < 15, 30.0, at_s))}
    used, unused = replace(idling(80, 120, 120), series=series), constant_power(OTHER, 60, start_s=0, end_s=80)
    spans = (EMPTY, LOADED, Span("launch", 13 * NS_PER_S, 19 * NS_PER_S))
    found = idle_baselines(experiment(restart(used, unused, spans=spans), bystanders=[OTHER]))
    assert [(each.gpu_uuid, each.state, each.used, each.memory_used_bytes) for each in found] == [
        (GPU, "empty", True, 30),
        (OTHER, "empty", False, None),
        (GPU, "loaded", True, 25),
        (OTHER, "loaded", False, None),
    ]


def idle_j(made_up: Measured) -> tuple[float, float] | None:
    spans = [run_pass.span for run_pass in made_up.pass_records]
    return idle_energy_j(made_up, idle_baselines(made_up), spans)


def test_net_energy_is_above_the_idle_power_with_the_model_loaded() -> None:
    """A pass of 20 s of 500 W: 7,700 J above 115 W, and 100 J unsure; a restart of equal size doubles both."""
    one = measured_energy(experiment(restart(idling(80, 120, 110))))
    assert one.net_j == pytest.approx(7700, rel=1e-3)
    assert one.net_uncertainty_j == pytest.approx(100, rel=0.03)
    two = measured_energy(experiment(*(restart(idling(80, 120, 110), number=number) for number in range(2))))
    assert (two.net_j, two.net_uncertainty_j) == pytest.approx((2 * (one.net_j or 0), 200), rel=0.03)
    # Of a second GPU, too.
    both = measured_energy(experiment(restart(idling(80, 120, 110), idling(80, 100, 100, OTHER)), used=[GPU, OTHER]))
    assert both.net_j == pytest.approx(7700 + 20 * 400, rel=1e-3)


def test_a_restart_that_another_runner_resumed_has_the_mean_of_both_loads() -> None:
    """Its passes are those of both: 20 s at 115 W each, at 105 W after the second load."""
    first, second = restart(idling(80, 120, 110)), restart(idling(80, 110, 100))
    idle = idle_j(experiment(first, second))
    assert idle == pytest.approx((40 * 110, 40 * 5), rel=0.03)


def test_without_the_idle_power_of_every_gpu_there_is_no_net_energy() -> None:
    """Metered in one restart of two, of one GPU of two, or not at all; without a GPU there is none either."""
    metered, blind = restart(idling(80, 120, 110)), restart(idling(80, 120, 110), number=1, spans=(EMPTY,))
    for made_up in (
        experiment(metered, blind),
        experiment(metered, used=[GPU, OTHER]),
        experiment(blind),
        experiment(metered, used=[]),
    ):
        assert idle_j(made_up) is None
    found = measured_energy(experiment(blind))
    assert (found.net_j, found.net_reason) == (None, "no idle power of every GPU after each load; set idle.duration_s")
    # A restart that failed before its first pass takes nothing away.
    failed = replace(blind, passes=())
    idle = idle_j(experiment(metered, failed))
    assert idle == pytest.approx((20 * 115, 100), rel=0.03)
