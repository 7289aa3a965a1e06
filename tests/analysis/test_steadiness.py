"""When a warm-up is over, when a GPU is idle, and what is left above idle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, stepped_power, timeline
from seams.analysis import (
    drift,
    idle_baselines,
    idle_energy_j,
    idle_unsettled,
    late_temperatures_c,
    procedure,
    warm_up_steadiness,
)
from seams.metering import Series
from seams.records import TokenSeries

from wattdock.clock import NS_PER_S
from wattdock.config import IdleSpec, WarmUpSpec
from wattdock.metering import EnergyCurve, MeterEvent, Span
from wattdock.records import RestartRecord, WarmUpSample

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.metering import GpuTimeline

GPU = "GPU-a"
LIMITS = WarmUpSpec(profile="steady")
# A pass of 20 s between two idle spans with the model loaded.
AROUND = RestartRecord(
    0,
    spans=(
        Span("idle-loaded-before", 5 * NS_PER_S, 15 * NS_PER_S),
        Span("idle-loaded-after", 50 * NS_PER_S, 60 * NS_PER_S),
    ),
    passes=(measured(0, 20, 40, (request(0, 20, 21, 40, 100),)),),
)


def warm_up(
    seconds: int,
    *,
    tokens_per_s: Callable[[float], float] = lambda at_s: 1000.0,
    joules_per_token: Callable[[float], float] = lambda at_s: 0.1,
    temperature_c: Callable[[float], float] = lambda at_s: 50.0,
) -> list[WarmUpSample]:
    """Return passes of 15 s, back to back, whose figures follow their middle's instant."""
    samples = []
    for start_s in range(0, seconds, 15):
        at_s = start_s + 7.5
        tokens = round(15 * tokens_per_s(at_s))
        span = Span("warm-up", start_s * NS_PER_S, (start_s + 15) * NS_PER_S)
        samples.append(
            WarmUpSample(span, tokens, tokens * joules_per_token(at_s), {f"{GPU} temperature_c": temperature_c(at_s)})
        )
    return samples


def at_40_c(gpu: GpuTimeline, first_s: int, until_s: int) -> GpuTimeline:
    """Return a GPU with a reading of 40 °C in each of these seconds."""
    at_ns = np.arange(first_s, until_s, dtype=np.int64) * NS_PER_S
    return dataclasses.replace(gpu, series={"temperature_c": Series(at_ns, np.full(len(at_ns), 40.0))})


def test_a_warm_up_ends_when_it_was_long_enough_and_nothing_drifts() -> None:
    """120 s, and not one pass earlier."""
    assert warm_up_steadiness(warm_up(105), LIMITS, [GPU]).drifting == ("105 s of 120 s",)
    assert warm_up_steadiness(warm_up(120), LIMITS, [GPU]).drifting == ()


@pytest.mark.parametrize(
    ("samples", "drifting"),
    [
        (warm_up(240, tokens_per_s=lambda s: 1000 * (1 + 0.006 * s / 60)), "tokens/s +0.59 % ± 0.00 %"),
        (warm_up(240, joules_per_token=lambda s: 0.1 * (1 - 0.006 * s / 60)), "J/token -0.61 % ± 0.00 %"),
        (warm_up(240, joules_per_token=lambda s: 0.1 + 0.004 * (s % 2)), "J/token "),
        (warm_up(240, temperature_c=lambda s: 50 + s / 30), "temperature changed by 1.5 °C"),
    ],
)
def test_a_warm_up_goes_on_while_anything_drifts(samples: list[WarmUpSample], drifting: str) -> None:
    """Each of the three alone keeps it going, with its figure; so does scatter that hides one."""
    [found] = warm_up_steadiness(samples, LIMITS, [GPU]).drifting
    assert found.startswith(drifting)


def test_with_gpus_of_tokens_per_second_no_drift_may_show() -> None:
    """Joules per token are what is published; a busy host scatters tokens/s more, and alone they must be steady."""
    scattered = warm_up(240, tokens_per_s=lambda s: 1000 + 40 * (s // 15 % 2))
    assert warm_up_steadiness(scattered, LIMITS, [GPU]).drifting == ()
    [found] = warm_up_steadiness(scattered, LIMITS, []).drifting
    assert found.startswith("tokens/s ")


def test_a_few_passes_that_the_host_disturbed_do_not_hide_a_steady_state() -> None:
    """The median slope hardly moves: three passes in a row of an H100's took up to 5 % more joules per token."""
    disturbed = warm_up(300, joules_per_token=lambda s: 0.1 * (1.04 if 150 <= s < 180 else 1 + 0.001 * (s // 15 % 2)))
    assert warm_up_steadiness(disturbed, LIMITS, [GPU]).drifting == ()


def test_only_the_last_window_counts() -> None:
    """A clock that fell in the first third is what a warm-up is for."""
    fell = warm_up(180, tokens_per_s=lambda s: 1200 if s < 60 else 1000)
    assert warm_up_steadiness(fell, LIMITS, [GPU]).drifting == ()


def test_unknown_energy_or_temperature_of_a_gpu_is_not_steady() -> None:
    """Without GPUs there is none to know, and speed alone decides."""
    blind = [dataclasses.replace(sample, energy_j=None, temperature_c={}) for sample in warm_up(180)]
    assert [found.split(" (")[0] for found in warm_up_steadiness(blind, LIMITS, [GPU]).drifting] == [
        "J/token unknown",
        "temperature unknown",
    ]
    assert warm_up_steadiness(blind, LIMITS, []).drifting == ()


def test_four_passes_show_no_slope() -> None:
    """Their order alone does not tell with 95 % that there is a trend, or none."""
    limits = WarmUpSpec(profile="steady", min_s=60, window_s=60)
    assert "tokens/s unknown" in warm_up_steadiness(warm_up(60), limits, []).drifting[0]
    assert warm_up_steadiness(warm_up(75), limits, []).drifting == ()


def test_a_temperature_is_that_of_a_span_s_second_half() -> None:
    """A chip cools within a second between passes; the first half is its way back."""
    seconds = np.arange(0, 20, dtype=np.int64)
    gpu = constant_power(GPU, 300, start_s=0, end_s=20)
    gpu = dataclasses.replace(
        gpu, series={"temperature_c": Series(seconds * NS_PER_S, np.where(seconds < 10, 40.0, 60.0))}
    )
    assert late_temperatures_c(timeline(gpu), Span("warm-up", 0, 20 * NS_PER_S), [GPU]) == {f"{GPU} temperature_c": 60}
    short = Span("warm-up", 15 * NS_PER_S + 1, 15 * NS_PER_S + NS_PER_S // 2)
    assert late_temperatures_c(timeline(gpu), short, [GPU]) == {f"{GPU} temperature_c": 60}, "read before it began"


def test_a_gpu_whose_power_still_falls_is_not_at_rest() -> None:
    """80 W throughout is; 100 W and then 80 W is not."""
    limits, span = IdleSpec(duration_s=10), Span("idle-empty", 5 * NS_PER_S, 15 * NS_PER_S)
    calm = at_40_c(constant_power(GPU, 80, start_s=0, end_s=20), 0, 20)
    at_s = calm.ticks.after_start_ns / NS_PER_S
    falling_mj = np.round((at_s * 80 + np.minimum(at_s, 10) * 20) * 1e3).astype(np.int64)
    falling = dataclasses.replace(calm, ticks=dataclasses.replace(calm.ticks, energy_mj=falling_mj))
    assert idle_unsettled({GPU: calm}, span, [GPU], limits) == ()
    [found] = idle_unsettled({GPU: falling}, span, [GPU], limits)
    assert found.startswith("GPU-a: 100.0 W, then 80.0 W")
    assert idle_unsettled({}, span, [GPU], limits) == ("GPU-a: the meter did not see it",)


def test_a_gpu_whose_temperature_nobody_read_twice_is_not_known_to_be_at_rest() -> None:
    """One reading shows no change; a GPU that has no sensor is judged by its power."""
    limits, span = IdleSpec(duration_s=10), Span("idle-empty", 5 * NS_PER_S, 15 * NS_PER_S)
    blind = constant_power(GPU, 80, start_s=0, end_s=20)
    for gpu in (blind, at_40_c(blind, 7, 8)):
        assert idle_unsettled({GPU: gpu}, span, [GPU], limits) == ("GPU-a: temperature unknown",)
    assert idle_unsettled({GPU: at_40_c(blind, 7, 9)}, span, [GPU], limits) == ()
    told = MeterEvent(0, "not_supported", reading="temperature_c")
    assert idle_unsettled({GPU: dataclasses.replace(blind, events=(told,))}, span, [GPU], limits) == ()


def test_net_energy_takes_the_mean_of_before_and_after_and_half_their_difference_as_uncertainty() -> None:
    """120 W before, 110 W after, a pass of 20 s: 2,300 J idle, give or take 100 J."""
    gpu = constant_power(GPU, 120, start_s=0, end_s=80)
    at_s = gpu.ticks.after_start_ns / NS_PER_S
    energy_j = np.where(at_s < 20, 120 * at_s, np.where(at_s < 40, 2400 + 600 * (at_s - 20), 14400 + 110 * (at_s - 40)))
    gpu = dataclasses.replace(
        gpu, ticks=dataclasses.replace(gpu.ticks, energy_mj=np.round(energy_j * 1e3).astype(np.int64))
    )
    restart = dataclasses.replace(AROUND, timeline=timeline(gpu))
    baselines = idle_baselines(experiment(restart))
    assert [baseline.state for baseline in baselines] == ["loaded_before", "loaded_after"]
    idle = idle_energy_j(experiment(restart), baselines)
    assert idle is not None
    assert idle[0] == pytest.approx(2300, rel=1e-3)
    assert idle[1] == pytest.approx(100, rel=1e-2)
    assert EnergyCurve(gpu).between(20 * NS_PER_S, 40 * NS_PER_S).energy_j == pytest.approx(12_000, rel=1e-3)
    assert idle_energy_j(experiment(restart), baselines[:1]) is None
    # Its coordinator was killed after the pass; another runner went on with the restart.
    assert idle_energy_j(experiment(restart, restart), [*baselines, baselines[0]]) is None
    assert idle_energy_j(experiment(restart, restart), [*baselines, *baselines]) == pytest.approx(
        (2 * idle[0], 2 * idle[1])
    )


def test_idle_power_that_did_not_change_is_as_sure_as_its_timing() -> None:
    """0.3 W before and 0.1 W after, over a pass of 20 s: 4 J, where half of no difference would be 0."""
    restart = dataclasses.replace(AROUND, timeline=timeline(constant_power(GPU, 120, start_s=0, end_s=80)))
    found = idle_baselines(experiment(restart))
    known = [
        baseline.model_copy(update={"mean_power_w": 120.0, "timing_w": timing_w})
        for baseline, timing_w in zip(found, (0.3, 0.1), strict=True)
    ]
    assert idle_energy_j(experiment(restart), known) == pytest.approx((2400, 4))


def open_loop(seed: int, *, growth: float) -> RestartRecord:
    """Poisson arrivals, 8/s for 50 s, 10 tokens each; every second 200 W and 2 J per token, give or take 3 %.

    Args:
        growth: Of power at equal work, from the first half's middle to the second's.
    """
    rng = np.random.default_rng(seed)
    arrived_s = np.sort(rng.uniform(0, 50, 400))
    requests = tuple(
        dataclasses.replace(request(i, 10 + at_s, 10 + at_s, 11 + at_s, 10), intended_ns=round((10 + at_s) * NS_PER_S))
        for i, at_s in enumerate(arrived_s)
    )
    done = measured(0, 10, 61, requests)
    series = TokenSeries(np.array([record.finished_ns or 0 for record in requests]), 10 * np.arange(1, 401))
    done = dataclasses.replace(done, tokens=series)
    work = np.histogram(arrived_s + 1, bins=np.arange(52))[0] * 10
    watts = (200 + 2 * work) * (1 + growth * np.linspace(-1, 1, 51)) * rng.normal(1, 0.03, 51)
    gpu = stepped_power(GPU, [(10, 200), *((1.0, float(power_w)) for power_w in watts), (9, 200)])
    return RestartRecord(0, passes=(done,), timeline=timeline(gpu))


@pytest.mark.parametrize("growth", [0.0, 0.04])
def test_an_open_loop_drifts_where_power_at_equal_work_does(growth: float) -> None:
    """By chance one half has some percent more to do; what that changes is no drift, and what is one is seen."""
    runs = [open_loop(seed, growth=growth) for seed in range(40)]
    found = [drift(experiment(run), run, run.passes[0]) for run in runs]
    changes = [each.change for each in found if each.change]
    assert {each.quantity for each in found} == {"mean_power_w"}
    assert 0.005 < np.median([change.half95 for change in changes]) < 0.05
    assert sum(abs(change.relative - growth) <= change.half95 for change in changes) >= 36


def test_a_quick_warm_up_says_that_nobody_looked() -> None:
    """Neither converged nor not."""
    restart = RestartRecord(0, spans=(Span("warm-up", 0, 3 * NS_PER_S),))
    [seen] = procedure(experiment(restart, used=()), None).warm_up
    assert (seen.profile, seen.converged, seen.duration_s) == ("quick", None, 3)


@pytest.mark.parametrize("sensor", ["temperature_c", "memory_temperature_c"])
def test_a_gpu_without_a_sensor_that_another_has_is_not_known_to_be_steady(sensor: str) -> None:
    """Two GPUs of one model have the same sensors, and each speaks for its own only."""
    every = {f"{uuid} {name}": 50.0 for uuid in (GPU, "GPU-b") for name in ("temperature_c", "memory_temperature_c")}
    without = {name: value for name, value in every.items() if name != f"GPU-b {sensor}"}
    told, lacking = (
        [dataclasses.replace(sample, temperature_c=seen) for sample in warm_up(180)] for seen in (every, without)
    )
    assert warm_up_steadiness(told, LIMITS, [GPU, "GPU-b"]).drifting == ()
    [found] = warm_up_steadiness(lacking, LIMITS, [GPU, "GPU-b"]).drifting
    assert found.startswith("temperature unknown")
