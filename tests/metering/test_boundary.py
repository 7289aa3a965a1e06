"""What an energy counter covers: the GPU, or the module of a superchip; the meter finds it, and reads its power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import GRACE_HOPPER, FakeGpu, constant, square
from metering.recordings import ORIGIN_NS, S, energy_of, only
from seams.host import NvmlError
from seams.metering import NvmlSource, counter_boundary, nvml_reader

from wattdock.host import nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wattdock.metering import GpuTimeline, Timeline

    Metered = Callable[[Sequence[FakeGpu], float], Timeline]

STEP = (constant(90.0, 12.0), constant(610.0, 10.0), constant(90.0))
MODULE_W = GRACE_HOPPER["module_w"]


def power_only(gpu: GpuTimeline) -> float:
    """Return the mean power of the step by the readings alone, W."""
    power = next(gpu.series[name] for name in ("power_sample_w", "power_w") if name in gpu.series)
    inside = (power.at_ns > ORIGIN_NS + 13 * S) & (power.at_ns < ORIGIN_NS + 21 * S)
    return float(power.value[inside].mean())


@pytest.mark.parametrize("unsupported", ["", "samples"])
def test_a_counter_of_the_module_is_named_so_and_held_against_power_of_the_module(
    metered: Metered, unsupported: str
) -> None:
    """610 W of the GPU and 150 W of CPU and memory, by the counter and by the readings, the driver's or polled."""
    gpu = only(metered([FakeGpu(profile=STEP, unsupported=unsupported, **GRACE_HOPPER)], 26))
    joules, timing_j, reason = energy_of(gpu, 11, 23)
    truth_j = 10 * 610 + 2 * 90 + 12 * MODULE_W
    assert (gpu.boundary, reason) == ("module", None)
    assert timing_j is not None
    assert joules == pytest.approx(truth_j, abs=4 * timing_j)
    assert power_only(gpu) == pytest.approx(610 + MODULE_W, rel=0.005)


def test_a_superchips_counter_of_the_gpu_alone_stays_a_boards(metered: Metered) -> None:
    """As on a GB200, whose module holds two GPUs: 150 W beside it are in no figure."""
    gpu = only(metered([FakeGpu(profile=STEP, **GRACE_HOPPER | {"counts_module": 0})], 26))
    joules, timing_j, _ = energy_of(gpu, 11, 23)
    assert timing_j is not None
    assert gpu.boundary == "gpu_boards"
    assert joules == pytest.approx(10 * 610 + 2 * 90, abs=4 * timing_j)
    assert power_only(gpu) == pytest.approx(610, rel=0.005)


BURSTS = {"profile": (square(120.0, 690.0, 0.45, 0.3),)}


@pytest.mark.parametrize(
    ("gpu", "boundary"),
    [
        ({}, "module"),
        ({"profile": (constant(690.0),), "module_w": 95.0}, "module"),
        ({"profile": (constant(690.0),), "module_w": 95.0, "counts_module": 0}, "gpu_boards"),
        (BURSTS, "module"),
        (BURSTS | {"counts_module": 0}, "gpu_boards"),
        # Zeus: some drivers tell the module's power only.
        ({"unsupported": "gpu_power"}, "module"),
        ({"unsupported": "gpu_power energy"}, "module"),
        # Without a counter, the readings are of the GPU.
        ({"unsupported": "energy"}, "gpu_boards"),
        # A driver that ignores the scope gives the GPU's power twice.
        ({"module_w": 0.01}, "gpu_boards"),
        ({"module_w": 0.0, "counts_module": 0}, "gpu_boards"),
    ],
)
def test_the_nearer_of_two_powers_says_what_a_counter_covers(
    metered: Metered, gpu: dict[str, Any], boundary: str
) -> None:
    """Idle, under load, in bursts, and where one of the three readings is missing."""
    assert only(metered([FakeGpu(**GRACE_HOPPER | gpu)], 12)).boundary == boundary


@pytest.mark.parametrize(("counts_module", "boundary"), [(1, "module"), (0, "gpu_boards")])
@pytest.mark.parametrize("every", [2, 3, 4, 7])
def test_errors_in_between_hide_no_boundary(library: Path, counts_module: int, boundary: str, every: int) -> None:
    """Every n-th call fails, the first ones, too."""
    gpu = FakeGpu(transient_error_every=every, **GRACE_HOPPER | {"counts_module": counts_module})
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:
        NvmlSource().open()
        assert counter_boundary(nvml.device(0), fake) == boundary


def test_power_that_is_there_and_cannot_be_read_is_an_error_and_no_guess(library: Path) -> None:
    """Power answers at first, and never again."""
    gpu = FakeGpu(failing_from_s=0.001, failing="fields", **GRACE_HOPPER)
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:
        NvmlSource().open()
        with pytest.raises(NvmlError, match="Unknown Error"):
            counter_boundary(nvml.device(0), fake)


def test_only_a_superchip_takes_time_to_find_its_boundary(library: Path) -> None:
    """2 s once for each GPU; any other GPU is known by one call."""
    gpus = [FakeGpu(), FakeGpu(uuid=fake_nvml.uuid_of(2), **GRACE_HOPPER)]
    with fake_nvml.loaded(library, gpus=gpus) as fake:
        NvmlSource().open()
        took_s = []
        for number in range(2):
            start_ns = fake.now_ns()
            nvml_reader(nvml.device(number), fake)
            took_s.append((fake.now_ns() - start_ns) / S)
    assert took_s[0] < 0.001
    # 40 waits of 50 ms, after each of which the counter is read in 3.2 ms.
    assert took_s[1] == pytest.approx(2.13, abs=0.05)


def test_two_superchips_and_a_card_of_one_host_have_a_boundary_each(metered: Metered) -> None:
    """In NVML's order."""
    kinds: list[dict[str, Any]] = [GRACE_HOPPER, {}, GRACE_HOPPER | {"counts_module": 0}]
    timeline = metered([FakeGpu(uuid=fake_nvml.uuid_of(n), **kind) for n, kind in enumerate(kinds, 1)], 12)
    assert [gpu.boundary for gpu in timeline.gpus.values()] == ["module", "gpu_boards", "gpu_boards"]
