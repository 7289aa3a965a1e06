"""The memory's part of a board's energy, from readings that are means of a second."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu, constant
from make.records import constant_power
from seams.metering import HBM_POWER, GpuSampler, NvmlSource, Series, nvml_reader

from wattdock.host import nvml
from wattdock.metering import EnergyCurve, GpuTimeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from wattdock.metering import Timeline

    Floats = NDArray[np.float64]
    Metered = Callable[[Sequence[FakeGpu], float], Timeline]

ORIGIN_NS = fake_nvml.VIRTUAL_ORIGIN_NS
S = 1_000_000_000
IDLE_W = 36.0
# Begin of every span; readings begin and end ten seconds from it.
BEGIN_S = 10.0


def with_readings(at_s: Floats, power_w: Floats, *, board_w: float = 600.0) -> GpuTimeline:
    board = constant_power("GPU-a", board_w, start_s=0, end_s=90)
    return replace(board, series={HBM_POWER: Series((at_s * S).astype(np.int64), power_w)})


def why_not(gpu: GpuTimeline, start_s: float, end_s: float) -> str:
    """Return why the memory has no energy in a span of which the board has some."""
    curve, ends_ns = EnergyCurve(gpu), (int(start_s * S), int(end_s * S))
    assert curve.between(*ends_ns).energy_j is not None
    got = curve.hbm_between(*ends_ns)
    assert (got.energy_j, got.timing_j) == (None, None)
    assert got.reason is not None
    return got.reason


def burst(t: Floats, random: np.random.Generator) -> Floats:
    return np.full(len(t), random.uniform(50, 114))


def late(t: Floats, random: np.random.Generator) -> Floats:
    return np.where(t < random.uniform(0, 0.5), IDLE_W, random.uniform(50, 114))


def decay(t: Floats, random: np.random.Generator) -> Floats:
    return random.uniform(60, 110) + random.uniform(-20, 20) * np.exp(-t / random.uniform(0.2, 2))


def rounds(t: Floats, random: np.random.Generator) -> Floats:
    return np.where(t / random.uniform(2, 10) % 1 < random.uniform(0.02, 0.3), 60.0, random.uniform(50, 114))


def square(t: Floats, random: np.random.Generator) -> Floats:
    shifted = t / random.uniform(0.05, 6) + random.uniform(0, 1)
    return np.where(shifted % 1 < random.uniform(0.1, 0.9), random.uniform(50, 114), 45.0)


@pytest.mark.parametrize("course", [burst, late, decay, rounds, square])
def test_intervals_hold_the_memorys_energy_whatever_its_course(
    course: Callable[[Floats, np.random.Generator], Floats],
) -> None:
    """Idle before and after, as a pass is; readings as an H200's: means of a second, anew each 0.1 s, and late."""
    random = np.random.default_rng(7)
    within, off_j = [], []
    for _ in range(150):
        duration_s = float(np.exp(random.uniform(np.log(5), np.log(60))))
        edges_s = np.arange(0, 2 * BEGIN_S + duration_s, 1e-3)
        since_s = edges_s[:-1] - BEGIN_S
        power_w = np.where((since_s >= 0) & (since_s < duration_s), course(since_s, random), IDLE_W)
        energy_j = np.concatenate(([0.0], np.cumsum(power_w) * 1e-3))
        at_s = np.arange(2.0, edges_s[-1], 0.1) + random.uniform(0, 0.1)
        made_s = np.floor((at_s - 0.03) / 0.1021) * 0.1021
        readings_w = np.interp(made_s, edges_s, energy_j) - np.interp(made_s - 1, edges_s, energy_j)
        start_ns, end_ns = (int(at * S) for at in (BEGIN_S, BEGIN_S + duration_s))
        got = EnergyCurve(with_readings(at_s, readings_w)).hbm_between(start_ns, end_ns)
        assert got.energy_j is not None, got.reason
        assert got.timing_j is not None
        true_j = float(np.diff(np.interp([BEGIN_S, BEGIN_S + duration_s], edges_s, energy_j))[0])
        off_j.append(got.energy_j - true_j)
        within.append(abs(got.energy_j - true_j) <= 1.96 * got.timing_j)
    assert np.mean(within) >= 0.9
    assert abs(np.mean(off_j)) < 2.5
    assert np.sqrt(np.mean(np.square(off_j))) < 6


@pytest.mark.parametrize(
    ("gpu", "end_s", "reason"),
    [
        (constant_power("GPU-a", 600, start_s=0, end_s=90), 30.0, ""),
        (with_readings(np.arange(0, 90, 0.1), np.full(900, 80.0)), 14.9, "4.9"),
        (with_readings(np.arange(0, 90, 0.6), np.full(150, 80.0)), 30.0, "0.6 s"),
        (with_readings(np.arange(20, 90, 0.1), np.full(700, 80.0)), 30.0, "readings"),
        (with_readings(np.arange(0, 25, 0.1), np.full(250, 80.0)), 30.0, "readings"),
        (with_readings(np.arange(0, 90, 0.1), np.full(900, 546.0)), 30.0, "91%"),
        (with_readings(np.arange(0, 90, 0.1), np.zeros(900)), 30.0, " 0%"),
    ],
)
def test_what_is_not_known_of_the_memory_is_null_with_its_reason(gpu: GpuTimeline, end_s: float, reason: str) -> None:
    """A driver that ignores the scope answers with the board's power, or with 0 W; neither must be believed."""
    assert reason in why_not(gpu, BEGIN_S, end_s)


def test_without_the_boards_energy_there_is_none_of_its_memory() -> None:
    """The reason is the board's."""
    gpu = with_readings(np.arange(0, 90, 0.1), np.full(900, 80.0))
    got = EnergyCurve(replace(gpu, energy_source=None)).hbm_between(int(10 * S), int(30 * S))
    assert (got.energy_j, "GPU-a" in str(got.reason)) == (None, True)


def test_the_meter_reads_the_memorys_power_where_the_driver_knows_it(metered: Metered) -> None:
    """0.15 of 20 s at 600 W; not the board's, where the driver ignores the scope; seldom read, not at all."""
    profile = (constant(100.0, 10.0), constant(600.0, 20.0), constant(100.0))
    faults: list[dict[str, Any]] = [{}, {"unsupported": "hbm_power"}, {"hbm_share": 1.0}, {"unsupported": "samples"}]
    gpus = [FakeGpu(uuid=fake_nvml.uuid_of(n), profile=profile, **fault) for n, fault in enumerate(faults)]
    timelines = list(metered(gpus, 31).gpus.values())
    parts = [EnergyCurve(gpu).hbm_between(ORIGIN_NS + 10 * S, ORIGIN_NS + 30 * S) for gpu in timelines]
    assert parts[0].timing_j is not None
    assert parts[0].energy_j == pytest.approx(0.15 * 600 * 20, abs=3 * parts[0].timing_j)
    assert parts[0].timing_j < 0.01 * 0.15 * 600 * 20
    assert [part.energy_j for part in parts[1:]] == [None] * 3
    assert [(event.kind, event.reading) for event in timelines[1].events] == [("not_supported", "hbm_power_w")]


def test_a_power_limit_is_not_shown_as_power(library: Path) -> None:
    """It is read ten times a second, too."""
    with fake_nvml.loaded(library, gpus=[FakeGpu(unsupported="samples power_instant power_average power")]) as fake:
        NvmlSource().open()
        sampler = GpuSampler(nvml_reader(nvml.device(0), fake), fake)
        sampler.stop_after(ORIGIN_NS + 3 * S)
        sampler.run()
    assert sampler.recording.series["power_limit_w"]
    assert sampler.latest_power_w is None
